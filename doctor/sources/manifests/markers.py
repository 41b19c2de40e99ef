"""Evaluate environment markers where parts of the machine are unknown: yes, no, or unknown."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from packaging.markers import InvalidMarker, Marker

from doctor.errors import fault
from doctor.model import ABSENT, Facts
from doctor.packages.platform import Platform
from doctor.packages.requirements import marker_holds, parse_marker
from doctor.packages.specifiers import admits
from doctor.util.redact import shortened

from .base import DeclaredRequirement

_PYTHONS = ("3.9.20", "3.10.15", "3.11.10", "3.12.7", "3.13.1", "3.14.0")


def platforms(requires_python: Sequence[str], facts: Facts) -> tuple[Platform, ...]:
    """Return the machines it may be installed on: Linux with each Python that the files and the user allow."""
    system, machine = facts.value("platform.system"), facts.value("platform.machine")
    python = facts.value("python.version")
    known = [] if python in (None, ABSENT) else [_full(str(python))]
    pythons = known or pythons_of(*requires_python)
    return tuple(
        Platform(found, str(system or "Linux"), str(machine or "x86_64")) for found in pythons or [_PYTHONS[2]]
    )


def pythons_of(*requires_python: str) -> list[str]:
    """Return one Python of every minor version in use that these ranges allow."""
    return [found for found in _PYTHONS if all(_admits(text, found) for text in requires_python)]


def _full(python: str) -> str:
    return python if python.count(".") > 1 else f"{python}.0"


def _admits(text: str, python: str) -> bool:
    try:
        return admits(text, python)
    except ValueError:  # InvalidSpecifier
        return True  # a range of another syntax excludes nothing


def applies(entry: DeclaredRequirement, likely: Sequence[Platform]) -> bool | None:
    """Return whether the line counts on these machines; None where they differ, or the marker needs other facts."""
    if entry.marker is None:
        return True
    if _parsed(entry.marker) is None and not entry.locked:  # a lock may use newer variables, such as groups
        raise fault(entry.file, entry.line, f"`{shortened(entry.marker, 80)}` is not a marker")
    verdicts = {_holds(entry.marker, platform) for platform in likely}
    return verdicts.pop() if len(verdicts) == 1 else None


@functools.lru_cache(maxsize=16384)
def _holds(marker: str, platform: Platform) -> bool | None:
    parsed = _parsed(marker)
    if parsed is None:
        return None
    return marker_holds(parsed, {**platform.markers, "extra": ""})


@functools.lru_cache(maxsize=4096)
def _parsed(marker: str) -> Marker | None:
    try:
        return parse_marker(marker)
    except InvalidMarker:
        return None
