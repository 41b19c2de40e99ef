"""Requirements of distributions and version ranges, read by `packaging` and cached."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from doctor.facts.versions import split_clauses
from doctor.facts.vocabulary import parse_version

from .platform import Platform


@functools.lru_cache(maxsize=65536)
def normalized(name: str) -> str:
    """Return a distribution name in its PEP 503 form."""
    return re.sub(r"[-_.]+", "-", name).lower()


#: `packaging` reads recursively, and Python refuses numbers of more than 4,300 digits: such a text is no requirement.
_LONGEST, _DEEPEST = 16_384, 64
_LONG_NUMBER = re.compile(r"[0-9]{128}")


def _is_excessive(text: str) -> bool:
    return len(text) > _LONGEST or text.count("(") > _DEEPEST or _LONG_NUMBER.search(text) is not None


def parse_requirement(text: str) -> Requirement:
    """Parse a requirement; InvalidRequirement where it is none, or nested or long beyond reason."""
    if _is_excessive(text):
        raise InvalidRequirement("too long, or nested too deeply")
    return Requirement(text)


def parse_marker(text: str) -> Marker:
    """Parse an environment marker; InvalidMarker where it is none, or nested or long beyond reason."""
    if _is_excessive(text):
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


@functools.lru_cache(maxsize=65536)
def specifier(text: str) -> SpecifierSet:
    """Parse a version range; InvalidSpecifier where it is none."""
    if _is_excessive(text):
        raise InvalidSpecifier("too long")
    return SpecifierSet(text)


@functools.lru_cache(maxsize=262144)
def admits(range_text: str, version: str) -> bool:
    """Return whether the version is in the range; pre-releases count."""
    return not range_text or specifier(range_text).contains(parse_version(version), prereleases=True)


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


def named_release(wanted: str) -> str | None:
    """Return the lowest release that a range names and admits: a lower bound, else an upper one."""
    bounds = [(operator, bound) for operator, bound in split_clauses(wanted) if operator in (">=", "~=", "<=", "==")]
    bounds.sort(key=lambda item: item[0] == "<=")
    texts = (bound.removesuffix(".*") for _, bound in bounds if not bound.startswith("="))
    return next((text for text in texts if admits(wanted, text)), None)
