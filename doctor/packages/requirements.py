"""Requirements of any form, read by the parser of `packaging`; `needs` reads the usual ones without it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement

from .platform import Platform
from .specifiers import is_excessive


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


def name_and_range(text: str, platform: Platform | None, extras: frozenset[str]) -> tuple[str, str] | None:
    """Return what a line requires; None if its marker does not hold, or if no installer can read it.

    Without a platform its marker does not count.
    """
    try:
        parsed = requirement(text)
    except InvalidRequirement:
        return None
    if parsed.marker is not None and platform is not None:
        values, marker = platform.markers, parsed.marker
        if not any(marker_holds(marker, {**values, "extra": extra}) for extra in ("", *sorted(extras))):
            return None
    return parsed.name, str(parsed.specifier)
