"""Where a finding is at home: the file and line that declare what it complains about, as far as sources tell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from doctor.model import Evidence, Fact, Facts, Finding, Report

from .cases import facts_behind

_FILE_LINE = re.compile(r"(?P<file>[^\n]*?[^\n:]):(?P<line>[1-9]\d*)(?:,.*)?")
_BRINGS = re.compile(r"what (?P<package>\S+) \S+ brings")
_DEEPEST = 4  # a version implies a build, which implies a library, which something is derived from


@dataclass(frozen=True)
class SourceLocation:
    """A line of a file, and the fact that stands there."""

    file: str
    line: int
    fact: Fact


def place_of(report: Report, finding: Finding) -> SourceLocation | None:
    """The line of the pin behind a finding: first of what would cure it, then of what it merely mentions."""
    return next(iter(places_of(report, finding)), None)


def places_of(report: Report, finding: Finding) -> list[SourceLocation]:
    """Every line that the evidence goes back to, each once; first the package that the best way out changes."""
    best = finding.alternatives[0].require if finding.alternatives else {}

    def stays(place: SourceLocation) -> bool:
        wanted = best.get(place.fact.key.removesuffix(".version"))
        return wanted is None or wanted.lstrip("=") == place.fact.value  # a package may be named to be held

    return sorted(_places(report, finding), key=stays)


def _places(report: Report, finding: Finding) -> Iterator[SourceLocation]:
    seen = set()
    for evidence in _worth_changing_first(finding.evidence):
        for fact in _origins(facts_behind(report, finding), evidence.fact, _DEEPEST):
            place = place_of_fact(fact)
            if place is not None and (place.file, place.line) not in seen:
                seen.add((place.file, place.line))
                yield place


def place_of_fact(fact: Fact) -> SourceLocation | None:
    """The line a fact was read from, None for one that comes from elsewhere."""
    match = _FILE_LINE.fullmatch(fact.source)
    return SourceLocation(match["file"], int(match["line"]), fact) if match else None


def _worth_changing_first(evidence: tuple[Evidence, ...]) -> list[Evidence]:
    return sorted(evidence, key=lambda item: (not item.needs, item.key.startswith("workload.")))


def _origins(facts: Facts, fact: Fact, depth: int) -> Iterator[Fact]:
    """The fact itself, and those that its source says it follows from."""
    yield fact
    if depth == 0:
        return
    match = _BRINGS.fullmatch(fact.source)
    keys = [f"{match['package']}.version"] if match else []
    if fact.source.startswith("derived from "):
        keys = fact.source.removeprefix("derived from ").split(", ")
    for key in keys:  # one that is derived in turn is no fact of the report: its library's version is
        behind = facts.get(key) or facts.get(f"{key.split('.')[0]}.version")
        if behind is not None and behind is not fact:
            yield from _origins(facts, behind, depth - 1)
