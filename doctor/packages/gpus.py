"""GPUs and drivers by name: pure functions over the tables of a rulebook, which are passed in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from doctor.errors import DoctorError
from doctor.facts.vocabulary import fact, nearest
from doctor.model import ABSENT, Fact, Facts
from doctor.util.redact import shortened

#: The facts that describe one kind of GPU; `gpu.count` is not among them.
GPU_KEYS = ("gpu.sm", "gpu.name", "gpu.memory_bytes", "gpu.all", "gpu.mig")

#: Name of a GPU -> its `sm`, `memory_gib` and `aliases`; or a CUDA release -> its `driver`.
Table = Mapping[str, Mapping[str, Any]]

_CAPABILITY = r"(?i)(?:sm|compute)?[_ ]?([0-9]{1,2})\.?([0-9])[af]?"
_COUNTED = r"([1-9][0-9]{0,4}) ?[xX*\u00d7] ?([A-Za-z].*)"  # 8xh100, 8 x H100
#: Accelerators of other vendors -> what to call them.
_OTHERS = (
    (r"(amd)?(instinct|radeon)?(mi\d{2,3}[a-z]?|rx\d{4}\w*|radeon\w*|gfx\d+\w*)", "AMD GPUs"),
    (r"(intel)?(gaudi\d?|arca?\d{3}\w*|hpu|xpu|datacenter(gpu)?max\w*|max1[15]\d0)", "Intel accelerators"),
    (r"(apple)?m[1-9](pro|max|ultra)?|mps", "Apple GPUs"),
    (r"(google|cloud)*tpu\w*|trainium\d?|trn\d\w*|inferentia\d?", "TPUs and cloud accelerators"),
)
_NOISE = r"nvidia|geforce|tesla|quadro|graphics|generation|[^a-z0-9]"


def gpu_facts(name: str, gpus: Table) -> tuple[Fact, ...]:
    """Return the facts of a GPU by name (h100, rtx4090, "NVIDIA A100-SXM4-80GB") or capability (sm90, 9.0).

    A count in front (8xh100) is the `gpu.count` of the job. Every key of `GPU_KEYS` is among the facts, so that they
    replace all of another GPU. Raise DoctorError for a GPU that the table does not hold.
    """
    source = f"--gpu {name.strip()}"
    values: dict[str, Any] = {}
    counted = re.fullmatch(_COUNTED, name.strip())
    if counted:
        values["gpu.count"], name = counted[1], counted[2]
    match = re.fullmatch(_CAPABILITY, name.strip())
    if match:
        sm = f"{int(match[1])}.{match[2]}"
        known = {str(entry["sm"]) for entry in gpus.values()}
        if sm not in known:
            raise DoctorError(
                f"no GPU has the compute capability {sm}", "known: " + ", ".join(sorted(known, key=_rank))
            )
        values["gpu.sm"] = sm
    else:
        official, entry = _find(name, gpus)
        values["gpu.sm"], values["gpu.name"] = entry["sm"], official
        if "memory_gib" in entry:  # missing where one name was sold with several sizes
            values["gpu.memory_bytes"] = round(float(entry["memory_gib"]) * (1 << 30))
    problem = f"`{source}` does not determine it"
    keys = (*GPU_KEYS, "gpu.count") if counted else GPU_KEYS
    return tuple(fact(key, values.get(key), source, problem=None if key in values else problem) for key in keys)


def with_capability(facts: Facts, gpus: Table) -> Facts:
    """Return the facts with `gpu.sm` added where they name a known GPU and give no capability."""
    name = facts.value("gpu.name")
    if "gpu.sm" in facts or not isinstance(name, str) or name == ABSENT:
        return facts
    try:
        entry = _find(name, gpus)[1]
    except DoctorError:
        return facts  # not in the table: its capability stays unknown
    return facts.with_(fact("gpu.sm", entry["sm"], "derived from gpu.name"))


def newest_cuda(driver: str, cuda_drivers: Table) -> str | None:
    """Return the newest CUDA released with this driver or an older one; None for a driver older than the table."""
    supported = [
        cuda
        for cuda, entry in cuda_drivers.items()
        if "driver" in entry and Version(str(entry["driver"])) <= Version(driver)
    ]
    return max(supported, key=_rank, default=None)


def _find(name: str, gpus: Table) -> tuple[str, Mapping[str, Any]]:
    """Return the official name and the table's entry."""
    spellings = {
        _spelling(spelling): official for official, entry in gpus.items() for spelling in (official, *_aliases(entry))
    }
    wanted = _spelling(name)
    for spelling in (wanted, f"rtx{wanted}", re.sub("^(dgx|hgx)", "", wanted)):
        if spelling in spellings and wanted:
            return spellings[spelling], gpus[spellings[spelling]]
    shown = shortened(name, 60)
    for pattern, vendor in _OTHERS:
        if re.fullmatch(pattern, wanted):
            raise DoctorError(
                f"`{shortened(name, 60)}`: {vendor} are not supported", "NVIDIA GPUs are, for example `h100`"
            )
    shown = shortened(name, 60)
    hint = nearest(wanted, spellings) or "a capability such as `sm90` works too"
    raise DoctorError(f"unknown GPU `{shown}`", hint)


def _aliases(entry: Mapping[str, Any]) -> tuple[str, ...]:
    names = entry.get("aliases") or ()
    return (names,) if isinstance(names, str) else tuple(str(name) for name in names)


def _spelling(name: str) -> str:
    """Return one form for all spellings: `NVIDIA GeForce RTX 4090`, `rtx-4090` and `RTX4090` are one GPU."""
    return re.sub(_NOISE, "", name.lower())


def _rank(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
