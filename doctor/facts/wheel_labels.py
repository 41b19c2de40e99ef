"""What the local label of a wheel says of its build: torch release, CUDA, C++ ABI, in every grammar that is in use.

| label | projects |
|---|---|
| `cu12torch2.8cxx11abiTRUE`, `cu12torch25.08cxx11abiTRUE` (a container of NVIDIA) | flash-attn, mamba-ssm |
| `cu128torch2.9.0andhigher.post4`, `cu128.torch27`, `cu130.torch210` | SageAttention, Cosmos |
| `cu121.torch2.5.0`, `torch2.8.0.cu128`, `torch2.7` | exllamav2, nunchaku |
| `torch250cu124`, `torch2100cu128` | NATTEN |
| `pt24cu121`, `pt2.5.1cu124`, `pt210cu130` | PyG, gsplat, pytorch3d |
| `cu12torch2.8.0.cu128cxx11abiTRUE` | TransformerEngine, which puts torch's own label in |

Digits without dots are read in every way that a release of torch allows; the CUDA of the label rules out the rest.
"""

# No postponed annotations: a named tuple would compile each of them again, at every start.

import re
from functools import lru_cache
from typing import NamedTuple

from doctor.model import ABSENT
from doctor.util.patterns import pattern

from .vocabulary import parse_version

Minor = tuple[int, int]
#: torch's name, or `pt`, with its release behind it.
_TORCH = pattern(r"(?:torch|pt)_?(?P<release>\d+(?:\.\d+)*)(?P<later>andhigher)?")
_ABI = pattern(r"cxx11abi(true|false)", re.IGNORECASE)
#: It separates torch 2.1.0 from 2.10 in `torch210`.
_FIRST_CUDA_OF_TWO_DIGITS = (12, 4)  # torch 2.10 and later have no build for an older one, torch 2.1 none for a newer


class WheelLabel(NamedTuple):
    """What one label names; None and empty where it names nothing."""

    torch: frozenset[Minor] = frozenset()  # the minor releases that it can mean
    later: bool = False  # later releases fit too
    container: str = ""  # 25.08: the release of NVIDIA's container whose torch it was built with
    cuda_major: int | None = None
    cxx11_abi: bool | None = None

    @property
    def names_build(self) -> bool:
        """Whether it says anything that can be compared with a torch."""
        return bool(self.torch or self.container or self.cuda_major is not None)

    @property
    def torch_words(self) -> str:
        """The torch that it names, in words."""
        if self.container:
            return f"the torch of NVIDIA's container {self.container}"
        named = " or ".join(f"{major}.{minor}" for major, minor in sorted(self.torch))
        return f"torch {named}{' and later' if self.later else ''}"


@lru_cache(maxsize=4096)
def parse_label(version: str) -> WheelLabel:
    """Return what the local label of a version says: `1.0.0+cu130.torch210`."""
    label = version.partition("+")[2].lower()
    if not label:
        return WheelLabel()
    cuda = _cuda(label)
    abi = _ABI.search(label)
    found = _TORCH.search(label)
    named = "" if found is None else found["release"]
    container = named if "." in named and int(named.partition(".")[0]) >= 20 else ""
    return WheelLabel(
        torch=frozenset() if container else _releases(named, cuda),
        later=bool(found and found["later"]),
        container=container,
        cuda_major=cuda[0],
        cxx11_abi=None if abi is None else abi[1] == "true",
    )


def _cuda(label: str) -> tuple[int | None, int | None]:
    """Return major and minor CUDA release that a label names."""
    matches = [match for match in re.finditer(r"cu(?:da)?_?(1\d)\.?(\d)?(?!\d)", label)]
    if not matches:
        return None, None
    precise = next((match for match in matches if match[2]), matches[0])
    return int(precise[1]), int(precise[2]) if precise[2] else None


def _releases(named: str, cuda: tuple[int | None, int | None]) -> frozenset[Minor]:
    """Return the minor releases of torch that `2.8.0`, `28`, `210` or `2100` can mean next to a CUDA release."""
    parts = named.split(".")
    if len(parts) > 1 and len(parts[0]) == 1:
        return frozenset({(int(parts[0]), int(parts[1]))})
    digits = named
    if len(parts) > 1 or not 2 <= len(digits) <= 4 or digits[0] not in "12":
        return frozenset()
    major, rest = int(digits[0]), digits[1:]
    found = {(major, int(rest[:1]))} if len(rest) <= 2 else set()
    if len(rest) >= 2 and rest[0] == "1":  # 2.10 and later: 210, 2100, 2110
        found.add((major, int(rest[:2])))
    known = cuda[0] is not None
    if len(found) > 1 and known and (cuda[1] is not None or cuda[0] != 12):
        late = (cuda[0] or 0, cuda[1] or 0) >= _FIRST_CUDA_OF_TWO_DIGITS
        found = {one for one in found if (one[1] >= 10) is late}
    return frozenset(found)


def torch_fits(label: WheelLabel, torch: str) -> bool | None:
    """Return whether a torch is one that the label names; None where it names none or that is open."""
    if torch == ABSENT or not (label.torch or label.container):
        return None
    if label.container:
        return f"nv{label.container}" in torch.partition("+")[2]
    installed = parse_version(torch).release[:2]
    if label.later:
        return installed >= min(label.torch)
    return installed in label.torch


def cuda_fits(label: WheelLabel, cuda: str | None) -> bool | None:
    """Return whether torch's CUDA is of the major release that the label names; None where either is unknown."""
    if cuda in (None, ABSENT) or label.cuda_major is None:
        return None
    return parse_version(str(cuda)).major == label.cuda_major


def abi_fits(label: WheelLabel, abi: bool | None) -> bool | None:
    """Return whether torch has the C++ ABI that the label names; None where either is unknown."""
    return None if abi is None or label.cxx11_abi is None else abi is label.cxx11_abi
