"""The report as one JSON object; its shape is an interface, `schema` is its version."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from doctor.model import (
    AttentionCost,
    Candidate,
    Case,
    ChangeKind,
    Confirmation,
    DriftCoverage,
    Fact,
    Facts,
    Finding,
    Fix,
    Prediction,
    Reason,
    Remedy,
    Report,
    Undetermined,
)

from .cases import messages, readings
from .fix_text import fix_lines
from .proof import proof_document
from .style import Style

_WORKLOAD = "workload."


def diagnosis(report: Report, style: Style) -> str:
    """Everything there is to say, for programs."""
    return _dump(document(report))


def backends(report: Report, style: Style) -> str:
    """The backend predictions alone."""
    content = _head(report)
    content["backends"] = [prediction(item) for item in report.predictions]
    content["costs"] = [_cost(item) for item in report.costs]
    content["undetermined"] = [_undetermined(item) for item in report.undetermined]
    content["notes"] = list(report.notes)
    return _dump(content)


def fixes(report: Report, style: Style) -> str:
    """The change sets alone."""
    content = _head(report)
    content["findings"] = [
        {
            "id": finding.rule,
            "severity": finding.severity,
            "message": finding.message,
            "no_pin": finding.no_pin,
            "no_fix": _no_fix(report, finding),
        }
        for finding in report.findings
    ]
    content["fixes"] = [_fix(item) for item in report.fixes]
    content["proof"] = proof_document(report.proof)
    content["notes"] = list(report.notes)
    return _dump(content)


def document(report: Report) -> dict[str, Any]:
    """The JSON object as Python data."""
    return {
        **_head(report),
        "facts": {key: _fact(fact) for key, fact in sorted(report.facts.items()) if not key.startswith(_WORKLOAD)},
        "workload": {
            key.removeprefix(_WORKLOAD): _fact(fact)
            for key, fact in sorted(report.facts.items())
            if key.startswith(_WORKLOAD)
        },
        "findings": [_finding(item, report) for item in report.findings],
        "backends": [prediction(item) for item in report.predictions],
        **({"costs": [_cost(item) for item in report.costs]} if report.costs else {}),
        "fixes": [_fix(item) for item in report.fixes],
        "undetermined": [_undetermined(item) for item in report.undetermined],
        "inputs": [{"path": item.path, "kind": item.kind, "gave": list(item.gave)} for item in report.read],
        **({"today": list(report.today)} if report.today else {}),
        "kernels_run": report.kernels_run,
        "runs": [_confirmation(item) for item in report.runs],
        "notes": list(report.notes),
        **({"drift": drift(report.drift)} if report.drift is not None else {}),
        "timing": dict(report.timing),
        **({"cases": [_case(item, report.facts) for item in report.cases]} if report.cases else {}),
        **({"known": [_finding(item, report) for item in report.known]} if report.known else {}),
        **({"unrecorded": [item._asdict() for item in report.unrecorded]} if report.unrecorded else {}),
        **({"unexamined": list(report.unexamined)} if report.unexamined else {}),
        **({"unconcerned": [_finding(item, report) for item in report.unconcerned]} if report.unconcerned else {}),
        **({"ignored": [_finding(item, report) for item in report.ignored]} if report.ignored else {}),
    }


def drift(item: DriftCoverage) -> dict[str, Any]:
    """What the analysis of API drift read, what not and why, and the command that analyzes it."""
    return {
        "analysed": list(item.analyzed),
        "not_analysed": [{"package": gap.package, "reason": gap.reason} for gap in item.not_analyzed],
        "limit": item.limit or None,
        "command": item.command,
    }


def prediction(item: Prediction) -> dict[str, Any]:
    """One library's backends; the candidates as `backends --batch` writes them, and their sources."""
    return {
        "library": item.library,
        "selected": item.selected,
        **({} if item.prefill is None else {"prefill": item.prefill}),
        "could_tell": item.could_tell,
        "candidates": [_candidate(candidate) for candidate in item.candidates],
        "fails_at_run": _reason(item.fails_at_run),
        "import_error": _reason(item.import_error),
    }


def _cost(item: AttentionCost) -> dict[str, Any]:
    """What each backend takes for one kind of layer: milliseconds, and bytes by part."""
    return {
        "layer": item.layer or None,
        "shape": item.shape,
        "basis": item.basis,
        "backends": [
            {
                "backend": cost.backend,
                "selected": cost.selected,
                "select": cost.select or None,
                "milliseconds": None if cost.milliseconds is None else float(f"{cost.milliseconds:.4g}"),
                "bytes_peak": cost.peak,
                "memory": dict(cost.memory),
            }
            for cost in item.backends
        ],
    }


def _dump(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _head(report: Report) -> dict[str, Any]:
    name, _, version = report.tool.partition(" ")
    return {
        "schema": report.schema,
        "tool": {"name": name, "version": version},
        "rulebook": {**report.rulebook, **({"records": report.records} if report.records else {})},
    }


def _fact(fact: Fact) -> dict[str, Any]:
    content = {"value": _plain(fact.value), "source": fact.source}
    if fact.raw is not None:
        content["raw"] = fact.raw
    if fact.problem is not None:
        content["problem"] = fact.problem
    if fact.via is not None:
        content["via"] = fact.via
    return content


def _case(item: Case, shared: Facts) -> dict[str, Any]:
    """One of several cases: what it adds to the facts of all, and what is said of it."""
    own = {key: fact for key, fact in item.facts.items() if (found := shared.get(key)) is not fact and found != fact}
    return {
        "environment": item.environment,
        "gpu": item.gpu,
        "workload": item.workload,
        "findings": list(dict.fromkeys(finding.rule for finding in item.findings)),
        "backends": [prediction(one) for one in item.predictions],
        "undetermined": [_undetermined(one) for one in item.undetermined],
        "facts": {key: _fact(fact) for key, fact in sorted(own.items())},
    }


def _finding(item: Finding, report: Report) -> dict[str, Any]:
    content = {**_told(item), "no_fix": _no_fix(report, item)}
    if not report.cases:
        return content
    content["cases"] = list(item.cases)
    said = messages(report, item)
    if len(said) > 1:
        content["messages"] = [{"message": text, "cases": list(numbers)} for text, numbers in said]
    for shown, evidence in zip(content["evidence"], item.evidence, strict=True):
        found = readings(report, item, evidence)
        if len(found) > 1:
            shown["readings"] = [{"found": _plain(fact.value), "cases": list(numbers)} for fact, numbers in found]
    return content


def _told(item: Finding) -> dict[str, Any]:
    return {
        "id": item.rule,
        "name": item.name,
        "severity": item.severity,
        "verdict": item.verdict,
        "summary": item.summary,
        "message": item.message,
        "why": item.why,
        "evidence": [
            {
                "fact": evidence.key,
                "found": _plain(evidence.fact.value),
                "wanted": evidence.needs or None,
                "source": evidence.fact.origin,
                "condition": evidence.condition,
            }
            for evidence in item.evidence
        ],
        "confirmation": _confirmation(item.confirmation),
        "reproduction": item.reproduction,
        "fixes": [_alternative(alternative) for alternative in item.alternatives],
        "no_pin": item.no_pin,
        "myth": item.myth,
        "references": list(item.references),
        "backends": list(item.backends),
        **({"reached_by": list(item.way)} if item.way else {}),
        **({"uses": [use._asdict() for use in item.uses]} if item.uses else {}),
    }


def _no_fix(report: Report, finding: Finding) -> dict[str, Any] | None:
    found = next((item for item in report.no_fix if item.rule == finding.rule), None)
    if found is None:
        return None
    return {"because": list(found.because), "instead": found.instead, "proved": found.proved}


def _confirmation(item: Confirmation | None) -> dict[str, Any] | None:
    if item is None:
        return None
    return {
        "verdict": item.verdict,
        "kernel": item.kernel,
        "request": _plain(item.request),
        "outcome": item.outcome,
        "observed": _plain(item.observed),
        "reason": item.reason,
        "seconds": item.seconds,
    }


def _alternative(item: Remedy) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "require": dict(item.require),
        "set_env": dict(item.set_env),
        "unset_env": list(item.unset_env),
        "config": _plain(item.config),
        "call": item.call,
        "note": item.note,
        "index_url": item.index_url,
        "risk": item.risk,
    }
    kept = {key: value for key, value in parts.items() if value}
    return {**kept, "safe": item.safe, "safety": str(item.safety)}


def _fix(item: Fix) -> dict[str, Any]:
    return {
        "title": item.title,
        "changes": [
            {
                "kind": change.kind,
                "name": change.name,
                # design: the change set names packages as `package, from, to, why, resolves`
                **({"package": change.name} if change.kind == ChangeKind.PACKAGE else {}),
                "from": change.before,
                "to": change.after,
                "why": change.why,
                "resolves": list(change.resolves),
            }
            for change in item.changes
        ],
        "resolves": list(item.resolves),
        "leaves": list(item.leaves),
        "kind": str(item.kind),
        "time": item.time,
        "safe": item.safe,
        "safety": str(item.safety),
        "risk": item.risk,
        "note": item.note,
        "index_url": item.plan.index_url,
        "commands": fix_lines(item),
        "costs": list(item.costs),
        "loses": None if item.regressions is None else list(item.regressions),
    }


def _candidate(item: Candidate) -> dict[str, Any]:
    return {
        "backend": item.backend,
        "title": item.title,
        "available": item.available,
        "reasons": [_reason(reason) for reason in item.reasons],
    }


def _reason(item: Reason | None) -> dict[str, Any] | None:
    if item is None:
        return None
    content: dict[str, Any] = {"rule": item.rule, "message": item.message, "source": item.source}
    if item.missing:
        content["missing"] = list(item.missing)
    return content


def _undetermined(item: Undetermined) -> dict[str, Any]:
    return {"missing": list(item.missing), "rules": list(item.rules), "problem": item.problem}


def _plain(value: Any) -> Any:
    """The value as JSON knows it: tuples as lists, mappings as objects, anything strange as its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return str(value)
