"""What a `pip install` moves: packages that are there already and that do not suit what it installs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from doctor.packages.index import load_index
from doctor.packages.platform import Platform
from doctor.packages.requirements import Need, admits, needs_of

from .base import DeclaredRequirement
from .version_ranges import binding

#: Their wheels ask for one torch or one core; compiled from a repository they take what is there and have no core.
LOOSE_FROM_SOURCE = ("torchvision", "xformers", "transformer-engine")


def displaced(there: Mapping[str, Sequence[DeclaredRequirement]], command: Collection[str]) -> list[str]:
    """The packages of earlier commands that pip replaces, since what this command names does not go with them."""
    gone: list[str] = []
    index = load_index()
    known = (name for name in command if name in index)  # of others it is not on record what they need
    queue = [(name, entry.version, entry.source) for name in known for entry in there.get(name, ()) if entry.version]
    seen = set()
    while queue:
        name, version, source = queue.pop()
        if (name, version) in seen or version is None:
            continue
        seen.add((name, version))
        for need in _needs(name, version, source):
            if need.package in command or need.package in gone:
                continue
            entry = next((entry for entry in there.get(need.package, ()) if not entry.constraint), None)
            if entry is not None and not _suits(entry, need):
                gone.append(need.package)
            if need.pin and (entry is None or need.package in gone):
                queue.append((need.package, need.pin, False))
    return gone


def _needs(name: str, version: str, source: bool) -> Iterator[Need]:
    release = load_index().release(name, version)
    if release is None or (source and name in LOOSE_FROM_SOURCE):
        return iter(())
    return binding(name, version, needs_of(release.requires, Platform()), True)


def _suits(entry: DeclaredRequirement, need: Need) -> bool:
    """Whether pip leaves a package alone; one of unknown release makes room for an exact pin only."""
    if entry.version is None:
        return need.pin is None
    return admits(need.range, entry.version)
