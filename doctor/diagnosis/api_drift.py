"""Analyze the installed sources of an environment, and state each break as a rule that a fix can clear."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from doctor.drift.findings import DriftReport, Finding, Kind, Reach, Severity
from doctor.drift.history import ApiHistory
from doctor.drift.pipeline import Analysis, DriftRequest
from doctor.model import ABSENT, ApiUse, DriftCoverage, Facts
from doctor.model import Severity as RuleSeverity
from doctor.packages.records import ATTENTION, names_with
from doctor.rulebook.categories import API_DRIFT
from doctor.rulebook.evaluate import know
from doctor.rulebook.rule import Rule
from doctor.rulebook.rulebook import Rulebook
from doctor.sources.workload.files import split_part
from doctor.util.cache_file import cache_folder

from .api_coverage import coverage_of, packages_of_job
from .diagnosis_input import DiagnosisInput
from .request import Request

MOST_PROCESSES = 4
#: Said of large packages; what such methods do is found where they are called.
_MINOR = "methods that name no other package"
#: What the caller does; the callee's name follows.
_HEADLINES = {
    Kind.MISSING_MODULE: "imports modules that are not in",
    Kind.MISSING_NAME: "imports names that are not in",
    Kind.MISSING_ATTRIBUTE: "reads attributes that are not in",
    Kind.MISSING_ARGUMENT: "omits arguments that are required by",
    Kind.UNEXPECTED_KEYWORD: "passes keyword arguments that are not accepted by",
    Kind.TOO_MANY_POSITIONALS: "passes more arguments than are accepted by",
    Kind.DUPLICATE_ARGUMENT: "passes an argument twice to",
    Kind.UNPACK_LENGTH: "unpacks another number of values than is returned by",
    Kind.INDEX_RANGE: "reads values that are not returned by",
    Kind.INCOMPATIBLE_OVERRIDE: "overrides methods with signatures that do not fit the calls of",
    Kind.VERSION_REFUSED: "refuses the version of",
}
_IMPORTS = (Kind.MISSING_MODULE, Kind.MISSING_NAME)
_WHY = "The sources of both packages are installed; no import or run is needed to see that the call fails."


class SourceRules(NamedTuple):
    """What the installed sources say of each other."""

    rules: dict[str, Rule]  # by `API004/caller/callee`
    uses: dict[str, tuple[ApiUse, ...]]  # of each such rule, and of rules of the rulebook for the same imports
    repeated: dict[str, tuple[str, ...]]  # rules of the rulebook that say less of the same imports than these rules
    notes: tuple[str, ...]
    coverage: DriftCoverage


class InstalledSources:
    """The sources that a job uses: what earlier analyses know of them is read when this is made."""

    def __init__(self, rulebook: Rulebook, request: Request, examined: DiagnosisInput) -> None:
        """DoctorError for a bad `--code` folder."""
        self._rulebook, self._request, self._examined = rulebook, request, examined
        models = request.models or ((request.model,) if request.model is not None else ())
        self._models = tuple(Path(split_part(name)[0]) for name in models)
        self._analysis = Analysis(
            DriftRequest(
                tuple(map(Path, examined.site_dirs)),
                rulebook.stack,
                code=tuple(map(Path, request.code)),
                models=self._models,
                context_parallel=context_parallel_in(examined.facts),
                cache=cache_folder("drift"),
                jobs=min(MOST_PROCESSES, os.cpu_count() or 1),
                limit=request.drift_limit,
                roots=packages_of_job(rulebook, examined.facts),
            )
        )

    @property
    def takes_time(self) -> bool:
        """Whether some package is to be analyzed: the cache does not know it."""
        return bool(self._analysis.missing)

    def rules(self, on_step: Callable[[str], None]) -> SourceRules:
        """Return a rule for each pair and kind of break, after analyzing what the cache does not know.

        A rule of the rulebook that fires for the same imports knows the releases, and the sources know the lines: its
        finding gets the uses, unless it is milder.
        """
        facts = self._examined.facts
        report = self._analysis.finish(on_step)
        groups: dict[str, list[Finding]] = {}
        kernels = names_with(self._rulebook.packages, ATTENTION)
        found_here = (_of_some_job(item, kernels) for item in report.findings)
        judged = sorted(found_here, key=lambda item: item.severity is not Severity.ERROR)
        for item in judged:
            if item.severity is not Severity.NOTE:
                groups.setdefault(f"{item.code}/{item.caller.name}/{item.callee.name}", []).append(item)
        imports = {name: items for name, items in groups.items() if items[0].kind in _IMPORTS}
        stated = _stated(self._rulebook, facts, imports) if imports else {}
        coverage = coverage_of(report, self._request, self._models)
        notes = [coverage.note] if coverage.note else []
        found = SourceRules({}, {}, {}, (*notes, *_notes(report, judged)), coverage)
        for name, items in groups.items():
            uses = tuple(map(_use, items))
            severity = RuleSeverity(items[0].severity.value)
            as_bad = [rule.id for rule in stated.get(name, ()) if rule.severity and rule.severity.rank <= severity.rank]
            for rule in as_bad:
                found.uses[rule] = (*found.uses.get(rule, ()), *uses)
            if not as_bad:
                found.rules[name], found.uses[name] = _rule(name, items, facts), uses
                found.repeated[name] = tuple(rule.id for rule in stated.get(name, ()))
        return found


def _of_some_job(item: Finding, kernels: Set[str]) -> Finding:
    """Return a finding as a warning where another part of the caller may be all that a job uses, or as a note.

    `drift` judges a pair of packages, `check` a job. The job imports its packages and computes attention; whether it
    also runs this trainer, exporter or cache of them, the sources do not say. What few jobs run is only counted.
    """
    if item.reach is Reach.IMPORT or item.callee.name in kernels or not item.caller.version:
        return item
    if item.reach is Reach.ON_DEMAND or item.kind is Kind.INCOMPATIBLE_OVERRIDE:
        return item._replace(severity=Severity.NOTE)
    return item if item.severity is not Severity.ERROR else item._replace(severity=Severity.WARNING)


def _stated(rulebook: Rulebook, facts: Facts, imports: Mapping[str, Sequence[Finding]]) -> dict[str, list[Rule]]:
    """Return the rules that fire for the releases of the same two packages, and are about nothing else."""
    known, _ = know(rulebook, facts)
    pairs: dict[frozenset[str], list[str]] = {}
    for name, items in imports.items():
        keys = frozenset(f"{release.name}.version" for release in (items[0].caller, items[0].callee))
        pairs.setdefault(keys, []).append(name)
    found: dict[str, list[Rule]] = {}
    for rule in rulebook.concerned(known.value):
        if rule.category == API_DRIFT and rule.severity is not None:
            names = pairs.get(frozenset(leaf.key for leaf in rule.when.leaves()), ())
            if names and rule.when.holds(known):
                for name in names:
                    found.setdefault(name, []).append(rule)
    return found


def context_parallel_in(facts: Facts) -> bool | None:
    """Return whether the job uses context parallelism, None where it does not say."""
    size = facts.value("workload.cp_size")
    return size > 1 if isinstance(size, int) else None


def _rule(name: str, items: Sequence[Finding], facts: Facts) -> Rule:
    """Return the rule that fires on these releases, with the releases that the history says are free of the break."""
    first = items[0]  # findings are sorted, worst first
    severity = first.severity
    decisive = [item for item in items if item.severity is severity]
    ranges = ApiHistory.load().ranges(decisive)
    caller, callee = f"{first.caller.name}.version", f"{first.callee.name}.version"
    when: dict[str, Any] = {}
    needs: dict[str, str] = {}
    fixes: list[dict[str, Any]] = []
    if caller in facts and facts.value(caller) not in (None, ABSENT):
        when[caller] = f"<{ranges.fixed_in}" if ranges.fixed_in else "present"
        if ranges.fixed_in:
            needs[caller] = f">={ranges.fixed_in}"
            fixes.append({"require": {first.caller.name: f">={ranges.fixed_in}"}})
    if len(ranges.broken) > 1:
        when["any"] = [{callee: text} for text in ranges.broken]
    else:
        when[callee] = ranges.broken[0] if ranges.broken else "present"
    if ranges.working:
        needs[callee] = " or ".join(ranges.working)
        fixes += [{"require": {first.callee.name: text}} for text in ranges.working]
    body: dict[str, Any] = {
        "id": name,
        "name": first.kind.label.replace(" ", "-"),
        "severity": severity.value,
        "summary": f"{first.caller} {_HEADLINES[first.kind]} {first.callee}",
        "message": _message(items),
        "why": _WHY,
        "when": when,
        "needs": needs or {callee: "another release"},
    }
    if fixes:
        body["fix"] = fixes
    else:
        body["releases_unknown"] = True  # it fires for all releases, but is read from those that are installed
        body["no_pin"] = (
            f"No release is known in which this use works: `attn-doctor drift --against {first.callee.name}==VERSION` "
            "checks another one."
        )
    return Rule(name, first.caller.name, body, "")


def _message(items: Sequence[Finding]) -> str:
    first = items[0]
    parts = [f"{first.message}, at {first.site}"]
    if first.definition is not None:
        parts.append(f"defined at {first.definition}")
    history = first.history
    if history.broken_since:
        parts.append(f"so since {first.callee.name} {history.broken_since}")
    if first.reach is Reach.CONTEXT_PARALLEL:
        parts.append("runs only with context parallelism")
    elif first.reach is Reach.ON_DEMAND:
        parts.append("runs on demand only")
    elif first.severity is Severity.WARNING:
        parts.append(f"fails in `{first.scope}` only")
    more = len({(item.site, item.name) for item in items}) - 1
    if more:
        parts.append(f"and {more} more use{'s' * (more > 1)}")
    return "; ".join(parts).replace("{", "(").replace("}", ")")


def _use(item: Finding) -> ApiUse:
    history = item.history
    return ApiUse(
        file=item.site.path,
        line=item.site.line,
        scope=item.scope,
        message=item.message,
        severity=item.severity.value,
        reach=item.reach.value,
        own_code=not item.caller.version,
        symbol=item.symbol,
        definition=str(item.definition) if item.definition is not None else None,
        signature=item.signature or None,
        conditions=item.conditions,
        broken_since=history.broken_since or None,
        last_compatible=history.last_compatible or None,
        works_again_in=history.works_again_in or None,
        fixed_in=history.fixed_in or None,
    )


def _notes(report: DriftReport, judged: Sequence[Finding]) -> list[str]:
    """Say what was left out, briefly; `attn-doctor drift --all` lists it."""
    by_reason: dict[str, list[str]] = {}
    for item in report.failed:
        by_reason.setdefault(item.reason, []).append(item.subject)
    notes = [f"API drift: {reason}: {', '.join(subjects)}" for reason, subjects in by_reason.items()]
    names = {pair.caller.name for pair in report.pairs} | {pair.callee.name for pair in report.pairs}
    notes += [
        f"API drift: {item.subject}: {item.reason}" for item in report.notices
        if item not in report.failed and item.subject.replace("_", "-") in names and _MINOR not in item.reason
    ]  # fmt: skip
    unlisted = sum(item.severity is Severity.NOTE for item in judged)
    if unlisted:
        notes.append(
            f"API drift: {unlisted} uncertain or rarely reached use{'s' * (unlisted > 1)} not listed "
            "(`attn-doctor drift --all` does)"
        )
    return notes
