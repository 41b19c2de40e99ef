"""Packages that only a file knows: an extra's torchvision, which the examined environment does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from doctor.model import ABSENT
from doctor.packages.index import admits
from doctor.packages.relations import leader_of
from doctor.solver.environment import Stack

from .changes import Goal


def companion(stack: Stack, chosen: Mapping[str, str], package: str, spec: str) -> Goal | None:
    """What it must become beside the new versions, a version of None where no release goes with them.

    None altogether where it may stay: a release in its range goes with them, or nothing is on record of it.
    """
    if package not in stack.index or stack.installed.get(package, ABSENT) != ABSENT or leader_of(package):
        return None
    releases = stack.index.releases(package)
    admitted = [version for version, release in releases.items() if not release.is_prerelease and admits(spec, version)]
    if not admitted or any(stack.fits(package, version, chosen) for version in admitted):
        return None
    beside = replace(stack, installed={**stack.installed, package: admitted[-1]}, memo={})
    fitting = (
        version
        for version in beside.domain(package)
        if beside.fits(package, version, chosen) and not beside.outdated(package, version, chosen)
    )
    return Goal(package, next(fitting, None), "goes with what the fix brings", False)
