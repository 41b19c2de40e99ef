"""Group releases that package metadata cannot distinguish: where one of them fits nowhere, no other does."""

from __future__ import annotations

from typing import Any

from doctor.model import ABSENT, TORCH
from doctor.packages.specifiers import admits

from .environment import PackageSet


def metadata_class(stack: PackageSet, package: str, version: str, torch: str | None) -> Any:
    """All that metadata has of a release: what it needs, what others need of it, its parts, and its age."""
    if version == ABSENT:
        return ABSENT
    key = ("alike", package, version, stack.cuda_major(torch))
    if key not in stack.memo:
        needs = stack.needs(package, version, torch)
        release = stack.index.release(package, version)
        compiled = release is not None and not set(release.machines) <= {"any"}
        pins = [need.pin for need in needs if need.package == TORCH]
        stack.memo[key] = (
            frozenset(
                (need.package, need.range)
                for need in needs
                if need.package in stack.installed or need.package in stack.index
            ),
            tuple(admits(spec, version) for spec in _said_of(stack, package)),
            tuple(sorted(stack.bundled_packages(package, version, torch).items())),
            release.date if release is not None and compiled and pins and pins[0] is None else None,
        )
    return stack.memo[key]


def _said_of(stack: PackageSet, package: str) -> list[str]:
    """Every range that a release of an installed package puts on this one."""
    key = ("said of", package)
    if key not in stack.memo:
        found = set()
        for other, version in stack.installed.items():
            if version == ABSENT or other == package:
                continue
            candidates = stack.index.releases(other) if stack.index.mentions(other, package) else ()
            for release in {version, *candidates}:
                found |= {need.range for need in stack.needs(other, release, None) if need.package == package}
        stack.memo[key] = sorted(found - {""})
    known: list[str] = stack.memo[key]
    return known
