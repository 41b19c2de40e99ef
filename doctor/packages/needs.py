"""What releases require: the usual lines are read here, all others by the parser of `packaging`.

That parser takes longer to import and to read the lines of one environment than the rules take to judge it. What is
read here means the same; tests/packages/test_requirements.py compares every line on record.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier

from .platform import Platform
from .specifiers import admits, is_excessive, normalized, specifier

# `name[extra] (>=1,<2) ; marker`, without a URL; one comparison of a marker
_LINE = re.compile(
    r"\s*(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[A-Za-z0-9]+(?:,[A-Za-z0-9]+)*\])?\s*"
    r"(?P<open>\()?(?P<range>[^;@()\[\]]*)(?(open)\))\s*(?:;\s*(?P<marker>.+))?"
)
_COMPARISON = re.compile(
    r"""\s*(?P<name>[a-z_]+)\s*(?P<operator>==|!=|<=|>=|<|>)\s*(?:"(?P<a>[^"\\]*)"|'(?P<b>[^'\\]*)')\s*"""
)
_TEXTS = frozenset(("os_name", "sys_platform", "platform_machine", "platform_system"))
_VERSIONS = frozenset(("python_version", "python_full_version"))


class Need(NamedTuple):
    """One requirement of a distribution."""

    package: str
    range: str
    pin: str | None  # the version that `==` leaves as the only one


def needs_of(lines: tuple[str, ...], platform: Platform, extras: frozenset[str] = frozenset()) -> tuple[Need, ...]:
    """Return the Requires-Dist lines whose markers hold on the platform, with no extra or one of these."""
    needs = (_need(line, platform, extras) for line in lines)
    return tuple(need for need in needs if need is not None)


def named_in(text: str) -> str | None:
    """Return the package that a requirement names; None for what is no requirement."""
    read = _read(text)
    if read is not None and not read["marker"]:
        return normalized(read["name"])
    found = _by_packaging(text, None, frozenset())
    return None if found is None else normalized(found[0])


@functools.lru_cache(maxsize=131072)
def _need(text: str, platform: Platform, extras: frozenset[str]) -> Need | None:
    """Return what a line requires; None if its marker does not hold, or if no installer can read it."""
    read = _read(text)
    holds = None if read is None else _holds(read["marker"], platform, extras)
    if read is None or holds is None:
        found = _by_packaging(text, platform, extras)
        return None if found is None else _made(*found)
    return _made(read["name"], read["range"]) if holds else None


def _read(text: str) -> re.Match[str] | None:
    """Read a line of the usual form; None for any other."""
    read = None if is_excessive(text) else _LINE.fullmatch(text)
    if read is None or "===" in read["range"] or not all(map(str.strip, (read["range"].strip() or "any").split(","))):
        return None
    try:
        specifier(read["range"])
    except InvalidSpecifier:
        return None
    return read


@functools.lru_cache(maxsize=4096)
def _holds(marker: str | None, platform: Platform, extras: frozenset[str]) -> bool | None:
    """Evaluate comparisons that `and` joins; None for any other marker."""
    if marker is None:
        return True
    comparisons = [_COMPARISON.fullmatch(part) for part in marker.split(" and ")]
    values = platform.markers
    held = True
    for item in comparisons:
        if item is None:
            return None
        name, operator, wanted = item["name"], item["operator"], item["a"] if item["b"] is None else item["b"]
        if name in _TEXTS and operator in ("==", "!="):
            held = held and (values[name] == wanted) is (operator == "==")
        elif name in _VERSIONS and re.fullmatch(r"[0-9]+(\.[0-9]+)*", wanted):
            held = held and admits(f"{operator}{wanted}", values[name])
        elif name == "extra" and operator == "==" and len(comparisons) == 1:
            held = normalized(wanted) in map(normalized, extras)
        else:
            return None
    return held


def _made(name: str, range_text: str) -> Need:
    clauses = list(specifier(range_text))
    exact = len(clauses) == 1 and clauses[0].operator in ("==", "===") and not clauses[0].version.endswith(".*")
    return Need(normalized(name), str(specifier(range_text)), clauses[0].version if exact else None)


def _by_packaging(text: str, platform: Platform | None, extras: frozenset[str]) -> tuple[str, str] | None:
    from .requirements import name_and_range  # door: requirements

    return name_and_range(text, platform, extras)
