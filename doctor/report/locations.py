"""The location of a finding: the file and line that declare what it reports, where sources name them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from doctor.model import Evidence, Fact, Facts, Finding, Report

from .cases import facts_behind

_FILE_LINE = re.compile(r"(?P<file>[^\n]*?[^\n:]):(?P<line>[1-9]\d*)(?:,.*)?")
_BRINGS = re.compile(r"what (?P<package>\S+) \S+ brings")
PROJECT_FILE = "pyproject.toml"  # of findings that no file declares
_FALLBACKS = ("declared", "project", "facts", "workload", "model")
_DEEPEST = 4  # a version implies a build, which implies a library, which something is derived from


@dataclass(frozen=True)
class SourceLocation:
    """A line of a file, and the fact in it."""

    file: str
    line: int
    fact: Fact


def place_of(report: Report, finding: Finding) -> SourceLocation | None:
    """The line of the pin behind a finding: first of what would fix it, then of what it only mentions."""
    return next(iter(places_of(report, finding)), None)


def places_of(report: Report, finding: Finding) -> list[SourceLocation]:
    """Every line that the evidence goes back to, each once; first the package that the best fix changes."""
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


def home_of(report: Report, finding: Finding) -> SourceLocation:
    """Return a file for every finding: where its cause is declared, else the file that states most of it.

    In this order: a line of the user's own code; the line of a pin; the model, workload or facts file that the evidence
    names; the first declared line or file; the project's file; the facts file. Without any of them it is
    `pyproject.toml`, which need not exist.
    """
    own = next((use for use in finding.uses if use.own_code), None)
    if own is not None:
        return SourceLocation(own.file, own.line, Fact("", None, ""))
    place = place_of(report, finding)
    if place is not None:
        return place
    for evidence in _worth_changing_first(finding.evidence):
        for fact in _origins(facts_behind(report, finding), evidence.fact, _DEEPEST):
            file = _file_of(report, fact)
            if file is not None:
                return SourceLocation(file, 1, fact)
    lines = (place_of_fact(fact) for fact in facts_behind(report, finding).values())
    declared = next((place for place in lines if place is not None), None)
    if declared is not None:
        return declared
    named = [item.path for kind in _FALLBACKS for item in report.inputs if item.kind == kind]
    return SourceLocation(named[0] if named else PROJECT_FILE, 1, Fact("", None, ""))


def _file_of(report: Report, fact: Fact) -> str | None:
    """Return the file named by a source such as `facts file x.yaml` or `job.yaml: mask`."""
    for item in report.inputs:
        if item.kind == "facts" and fact.source.startswith(f"facts file {item.path}"):
            return item.path
        if item.kind in ("model", "workload") and fact.source.startswith(f"{PurePath(item.path).name}: "):
            return item.path
    return None


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
