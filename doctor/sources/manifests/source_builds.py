"""Installed packages that a `pip install` replaces, because its packages exclude their releases."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from doctor.packages.index import load_index
from doctor.packages.needs import Need, needs_of
from doctor.packages.platform import Platform
from doctor.packages.relations import LOOSE_FROM_SOURCE
from doctor.packages.specifiers import admits

from .base import DeclaredRequirement
from .version_ranges import binding


def displaced(installed: Mapping[str, Sequence[DeclaredRequirement]], command: Collection[str]) -> list[str]:
    """Return the packages of earlier commands that pip replaces, because this command's packages exclude them."""
    replaced: list[str] = []
    index = load_index()
    known = (name for name in command if name in index)  # the requirements of others are unknown
    queue = [
        (name, entry.version, entry.source) for name in known for entry in installed.get(name, ()) if entry.version
    ]
    seen = set()
    while queue:
        name, version, source = queue.pop()
        if (name, version) in seen or version is None:
            continue
        seen.add((name, version))
        for need in _needs(name, version, source):
            if need.package in command or need.package in replaced:
                continue
            entry = next((entry for entry in installed.get(need.package, ()) if not entry.constraint), None)
            if entry is not None and not _satisfies(entry, need):
                replaced.append(need.package)
            if need.pin and (entry is None or need.package in replaced):
                queue.append((need.package, need.pin, False))
    return replaced


def _needs(name: str, version: str, source: bool) -> Iterator[Need]:
    release = load_index().release(name, version)
    if release is None or (source and name in LOOSE_FROM_SOURCE):
        return iter(())
    return binding(name, version, needs_of(release.requires, Platform()), True)


def _satisfies(entry: DeclaredRequirement, need: Need) -> bool:
    """Return whether pip keeps a package; one of unknown release is replaced for an exact pin only."""
    if entry.version is None:
        return need.pin is None
    return admits(need.range, entry.version)
