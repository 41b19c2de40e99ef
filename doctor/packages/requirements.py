"""Requirements of distributions and version ranges, read by `packaging` and cached."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement

from .platform import Platform
from .specifiers import admits as admits
from .specifiers import is_excessive
from .specifiers import named_release as named_release
from .specifiers import specifier as specifier


@functools.lru_cache(maxsize=65536)
def normalized(name: str) -> str:
    """Return a distribution name in its PEP 503 form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_requirement(text: str) -> Requirement:
    """Parse a requirement; InvalidRequirement where it is none, or nested or long beyond reason."""
    if is_excessive(text):
        raise InvalidRequirement("too long, or nested too deeply")
    return Requirement(text)


def parse_marker(text: str) -> Marker:
    """Parse an environment marker; InvalidMarker where it is none, or nested or long beyond reason."""
    if is_excessive(text):
        raise InvalidMarker("too long, or nested too deeply")
    return Marker(text)


def marker_holds(marker: Marker, values: Mapping[str, str]) -> bool | None:
    """Evaluate a marker; None where it compares what cannot be compared, or needs a value that is missing."""
    try:
        return bool(marker.evaluate(dict(values)))
    except (UndefinedComparison, UndefinedEnvironmentName, KeyError, ValueError):  # ValueError: of what is no version
        return None


@functools.lru_cache(maxsize=65536)
def requirement(text: str) -> Requirement:
    """Parse a requirement once; InvalidRequirement where it is none."""
    return parse_requirement(text)


class Need(NamedTuple):
    """One requirement of a distribution."""

    package: str
    range: str
    pin: str | None  # the version that `==` leaves as the only one


def needs_of(lines: tuple[str, ...], platform: Platform, extras: frozenset[str] = frozenset()) -> tuple[Need, ...]:
    """Return the Requires-Dist lines whose markers hold on the platform, with no extra or one of these."""
    needs = (_need(line, platform, extras) for line in lines)
    return tuple(need for need in needs if need is not None)


@functools.lru_cache(maxsize=131072)
def _need(text: str, platform: Platform, extras: frozenset[str]) -> Need | None:
    """Return what a line requires; None if its marker does not hold, or if no installer can read it."""
    try:
        parsed = requirement(text)
    except InvalidRequirement:
        return None
    if parsed.marker is not None:
        values = platform.markers
        marker = parsed.marker
        if not any(marker_holds(marker, {**values, "extra": extra}) for extra in ("", *sorted(extras))):
            return None
    clauses = list(parsed.specifier)
    exact = len(clauses) == 1 and clauses[0].operator in ("==", "===") and not clauses[0].version.endswith(".*")
    return Need(normalized(parsed.name), str(parsed.specifier), clauses[0].version if exact else None)
