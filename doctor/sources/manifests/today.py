"""The environment that an installer makes today of a few names: their newest releases and what these require."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from doctor.model import TORCH, Facts
from doctor.packages.index import load_index
from doctor.packages.needs import needs_of
from doctor.packages.platform import Platform

from .base import DeclaredRequirement, Manifest
from .resolve import Declaration, resolve

TODAY = "what pip installs today"
_MOST = 40  # packages followed


def todays_declaration(names: Iterable[str], facts: Facts, watched: Collection[str]) -> Declaration:
    """Return the environment with these packages, and with the watched ones that their newest releases require."""
    machine = facts.value("platform.machine")
    platform = Platform(facts.value("python.version"), machine=machine if isinstance(machine, str) else "x86_64")
    index = load_index()
    waiting, found = list(names), dict[str, None]()
    while waiting and len(found) < _MOST:
        name = waiting.pop(0)
        if name in found or name not in index:
            continue
        found[name] = None
        newest = index.newest.get(name)
        release = index.release(name, newest) if newest else None
        needs = needs_of(release.requires, platform) if release is not None and name != TORCH else ()
        waiting += [need.package for need in needs if need.package in watched]
    entries = tuple(DeclaredRequirement(name, TODAY, 0) for name in found)
    return replace(resolve([Manifest(entries)], facts), today=True)
