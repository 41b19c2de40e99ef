"""Requires-Dist lines of the plain kind, read without `packaging.requirements`, whose import costs a bare Python start.

A line is plain if it is a name, extras, a version range and a marker of comparisons joined by `and` and `or`; anything
else yields None, and the caller asks `packaging`. A test holds both to the same answers over the whole index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[A-Za-z0-9._,\s-]*\])?"
    r"\s*(?:\((?P<inside>[^;()@]*)\)|(?P<range>[^;()@]*))\s*(?:;\s*(?P<marker>[^()]+))?"
)
_CLAUSE = re.compile(r"(>=|<=|==|!=|~=|>|<)\s*([A-Za-z0-9.!+*_-]+)")
_TERM = re.compile(r"(?P<name>[a-z_]+)\s*(?P<operator>==|!=|>=|<=|>|<)\s*(?P<quote>['\"])(?P<value>[^'\"]*)(?P=quote)")
_VERSIONS = ("python_version", "python_full_version")
_TEXTS = ("platform_system", "sys_platform", "os_name", "platform_machine", "extra", "platform_python_implementation")


class RequirementLine(NamedTuple):
    """A plain line, taken apart."""

    name: str
    clauses: tuple[str, ...]  # each as `>=2.1`, sorted as `packaging` writes them
    marker: str | None


def read_line(text: str) -> RequirementLine | None:
    """The parts of a plain line."""
    match = _LINE.fullmatch(text.strip())
    if match is None:
        return None
    clauses = []
    for part in filter(None, (piece.strip() for piece in (match["inside"] or match["range"] or "").split(","))):
        clause = _CLAUSE.fullmatch(part)
        if clause is None:
            return None
        clauses.append(clause[1] + clause[2])
    marker = match["marker"]
    return RequirementLine(match["name"], tuple(sorted(clauses)), marker.strip() if marker else None)


def marker_holds(marker: str, values: Mapping[str, str], admits: Callable[[str, str], bool]) -> bool | None:
    """Whether a plain marker holds; None for any other. `admits` judges a version by a range."""
    verdict = False
    for group in re.split(r"\s+or\s+", marker):
        every = True
        for term in re.split(r"\s+and\s+", group):
            match = _TERM.fullmatch(term.strip())
            if match is None:
                return None
            name, operator, wanted = match["name"], match["operator"], match["value"]
            if name in _VERSIONS:
                every = every and admits(operator + wanted, values[name])
            elif name in _TEXTS and operator in ("==", "!="):
                every = every and (values.get(name, "") == wanted) is (operator == "==")
            else:
                return None
        verdict = verdict or every
    return verdict
