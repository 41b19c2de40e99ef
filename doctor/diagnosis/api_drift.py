"""Analyze the installed sources of an environment, and state each break as a rule that a fix can clear."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from doctor.drift.cache import cache_folder
from doctor.drift.findings import DriftReport, Finding, Kind, Reach, Severity
from doctor.drift.history import ApiHistory
from doctor.drift.pipeline import DriftRequest, analyze
from doctor.model import ABSENT, ApiUse, Facts
from doctor.rulebook.rule import Rule

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
_WHY = "The sources of both packages are installed; no import or run is needed to see that the call fails."


def rules_from_sources(
    request: Request, examined: DiagnosisInput, on_step: Callable[[str], None]
) -> tuple[dict[str, Rule], dict[str, tuple[ApiUse, ...]], tuple[str, ...]]:
    """Return a rule for each pair and kind of break, the uses behind each, and notes.

    Raises DoctorError for a bad `--code` folder.
    """
    models = request.models or ((request.model,) if request.model is not None else ())
    report = analyze(
        DriftRequest(
            tuple(map(Path, examined.site_dirs)),
            code=tuple(map(Path, request.code)),
            models=tuple(map(Path, models)),
            context_parallel=_context_parallel(examined.facts),
            cache=cache_folder("drift"),
            jobs=min(MOST_PROCESSES, os.cpu_count() or 1),
        ),
        on_step,
    )
    groups: dict[str, list[Finding]] = {}
    for item in report.findings:
        if item.severity is not Severity.NOTE:
            groups.setdefault(f"{item.code}/{item.caller.name}/{item.callee.name}", []).append(item)
    rules = {name: _rule(name, items, examined.facts) for name, items in groups.items()}
    uses = {name: tuple(map(_use, items)) for name, items in groups.items()}
    return rules, uses, tuple(_notes(report))


def _context_parallel(facts: Facts) -> bool | None:
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


def _notes(report: DriftReport) -> list[str]:
    """Say what was left out, briefly; `attn-doctor drift --all` lists it."""
    names = {pair.caller.name for pair in report.pairs} | {pair.callee.name for pair in report.pairs}
    notes = [
        f"API drift: {item.subject}: {item.reason}" for item in report.notices
        if item.subject.replace("_", "-") in names and _MINOR not in item.reason
    ]  # fmt: skip
    unlisted = sum(item.severity is Severity.NOTE for item in report.findings)
    if unlisted:
        notes.append(
            f"API drift: {unlisted} uncertain or rarely reached use{'s' * (unlisted > 1)} not listed "
            "(`attn-doctor drift --all` does)"
        )
    return notes
