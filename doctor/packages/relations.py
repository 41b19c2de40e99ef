"""Which packages hang on another: parts come along at the version their owner pins, and are never chosen; what is
compiled against torch is built again when it moves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from doctor.facts.libraries.record import flag
from doctor.model import ABSENT, TORCH

#: What library files say of their packages, declared when rules are loaded, as frameworks are.
#: Compiled against one torch (its C++ ABI and CUDA), so that another torch needs another build of the same release ->
#: whether the registry has it; else it has nothing under this name, or something else.
BUILT_AGAINST_TORCH: dict[str, bool] = {}
#: Built for each CUDA in the PyTorch indexes; the registry has one build of each.
BUILT_PER_INDEX: set[str] = set()
#: Their wheels require one torch or one core; compiled from a repository, they use the installed torch, without a core.
LOOSE_FROM_SOURCE: set[str] = set()
#: Package -> a part of the addresses of its own index, which has builds for several CUDA releases.
OWN_INDEXES: dict[str, str] = {}
#: What a package pins: its install replaces other releases of these.
PINNED_BY: dict[str, tuple[str, ...]] = {}
#: The extras with which a job on torch has a package; the major release of torch's CUDA replaces `{cuda_major}`.
EXTRAS: dict[str, tuple[str, ...]] = {}
#: Package -> pattern of the names of its parts: what it brings along, at the version that it pins.
PARTS: dict[str, str] = {}


def declare_relations(packages: Mapping[str, Mapping[str, Any]], unregistered: Iterable[str]) -> None:
    """Add what one library file says of packages; `unregistered`: those that the registry does not have."""
    for name, row in packages.items():
        if flag(row, "built_against_torch"):
            BUILT_AGAINST_TORCH[name] = name not in unregistered
        if flag(row, "built_per_index"):
            BUILT_PER_INDEX.add(name)
        if flag(row, "loose_from_source"):
            LOOSE_FROM_SOURCE.add(name)
        if "own_index" in row:
            OWN_INDEXES[name] = row["own_index"]
        if "pins" in row:
            PINNED_BY[name] = tuple(row["pins"])
        if "torch_extras" in row:
            EXTRAS[name] = tuple(row["torch_extras"])
        if "parts" in row and PARTS.get(name) != row["parts"]:
            PARTS[name] = row["parts"]
            owner_of.cache_clear()


@lru_cache(maxsize=4096)
def owner_of(package: str) -> str | None:
    """The package whose part this one is: it brings it along at the version it pins."""
    return next((owner for owner, parts in PARTS.items() if re.fullmatch(parts, package)), None)


def extra_of(package: str) -> str:
    """Return the extra to install a package with, in brackets: it brings the parts of the same release."""
    return next((f"[{extra}]" for extra in EXTRAS.get(package, ())), "")


def other_build(torch: str, part: str) -> bool:
    """Whether a torch from another index (2.6.0+cu126) brings its own release of this part."""
    label = re.search(r"\+cu([0-9][0-9])", torch)
    made_for = re.search(r"-cu([0-9][0-9])$", part)
    return label is not None and (made_for is None or made_for[1] == label[1])


def orphans(installed: Mapping[str, str], versions: Mapping[str, str], chosen: Mapping[str, str]) -> list[str]:
    """Parts of the old release that the new one replaces by other packages (cu12 wheels by cu13 ones)."""
    return sorted(
        name
        for name, version in versions.items()
        if version == ABSENT and installed.get(name, ABSENT) != ABSENT and name not in chosen
    )


def install_order(package: str) -> tuple[bool, str]:
    """Return the sort key of packages in plans, commands and reports: torch first, the others by name."""
    return package != TORCH, package
