"""The report as one self-contained page: nothing is fetched, everything is searchable, any screen and any reader."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from doctor.errors import DoctorError
from doctor.model import (
    SEVERITIES,
    Candidate,
    Case,
    ChangeKind,
    Evidence,
    Fact,
    Finding,
    Fix,
    Matrix,
    MatrixRow,
    Prediction,
    Reason,
    Report,
)
from doctor.util.printable import printable

from .cases import backends_of, messages, readings, where
from .fix_text import alternative_lines, fix_lines, no_pin_lead, safety_text
from .locations import place_of
from .memory_chart import memory_chart
from .style import Style
from .summary import (
    alone,
    conclusion,
    job_line,
    library_title,
    machine_line,
    needed,
    shown,
    stack_line,
    target_line,
    verdict,
)
from .tables import headline, reason_text
from .undetermined import lines

TEMPLATE = "report.html.j2"
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"https://[^\s<>\"'`(){}]+[^\s<>\"'`(){}.,;:]")
_ANCHOR = Markup('<a href="{}" rel="noreferrer">{}</a>')
_WORDS = {True: "yes", False: "no", None: "?"}
_LONG_WORDS = {True: "usable", False: "unavailable", None: "unknown"}


def diagnosis(report: Report, style: Style) -> str:
    """The page; DoctorError where jinja2 is not installed."""
    return rendered(TEMPLATE, _view(report))


def rendered(name: str, view: dict[str, Any]) -> str:
    """Return a template of this folder filled in: everything is escaped; DoctorError where jinja2 is not installed."""
    try:
        import jinja2
    except ImportError:
        raise DoctorError("format `html` needs jinja2", "`pip install jinja2`") from None
    folder = Path(__file__).parent
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_plain
    )
    environment.filters.update(prose=_prose, linked=_linked, shown=shown)
    template = environment.from_string((folder / name).read_text("utf-8"))
    return template.render(view) + "\n"


def _view(report: Report) -> dict[str, Any]:
    look, word, sentence = conclusion(report)
    counts = {severity: sum(item.severity == severity for item in report.findings) for severity in SEVERITIES}
    return {
        "tool": report.tool,
        "rules": report.rulebook.get("rules"),
        "seconds": report.timing.get("total"),
        "verdict": {"look": look, "word": word, "sentence": sentence},
        "subject": [(name, text) for name, text in _subject(report) if text],
        "date": time.strftime("%Y-%m-%d"),
        "grid": _grid(report),
        "counts": {severity: number for severity, number in counts.items() if number},
        "anchors": _anchors(report),
        "findings": [_finding(report, number, finding) for number, finding in enumerate(report.findings, 1)],
        "cases": [_case(report, case) for case in report.cases],
        "environments": len({case.environment for case in report.cases}),
        "predictions": [_prediction(item) for item in report.predictions],
        "memory": None if report.cases else memory_chart(report.facts),
        "runs": report.runs,
        "fixes": [_fix(fix) for fix in report.fixes],
        "matrices": [_matrix(number, matrix) for number, matrix in enumerate(report.matrices, 1)],
        "undetermined": lines(report),
        "assumed": [fact for fact in report.facts.values() if fact.assumed],
        "facts": [fact for _, fact in sorted(report.facts.items())],
        "notes": report.notes,
    }


def _finding(report: Report, number: int, finding: Finding) -> dict[str, Any]:
    place = place_of(report, finding)
    said = messages(report, finding)
    many = len(said) > 1
    return {
        "number": number,
        "it": finding,
        "place": f"{place.file}:{place.line}" if place else "",
        "said": [(where(report, numbers) if many else "", text) for text, numbers in said],
        "evidence": [_evidence(item, readings(report, finding, item)) for item in finding.evidence],
        "no_pin_lead": no_pin_lead(finding),
        "remedies": [
            {"lines": alternative_lines(item), "safety": safety_text(item), "it": item} for item in finding.alternatives
        ],
        "fixes": [n for n, fix in enumerate(report.fixes, 1) if finding.rule in fix.resolves],
        "where": "" if many else where(report, finding.cases),
    }


def _anchors(report: Report) -> dict[str, int]:
    """Return the number of the first finding of each rule, for links to it."""
    numbers: dict[str, int] = {}
    for number, finding in enumerate(report.findings, 1):
        numbers.setdefault(finding.rule, number)
    return numbers


def _evidence(item: Evidence, found: list[tuple[Fact, tuple[int, ...]]]) -> dict[str, str]:
    return {
        "key": item.key,
        "found": ", ".join(shown(fact.value, fact.key) for fact, _ in found),
        "needs": needed(item),
        "source": item.fact.origin if len(found) < 2 else "different per case",
    }


def _case(report: Report, case: Case) -> dict[str, Any]:
    own = alone(report, case)
    look, word, sentence = verdict(own)
    rules = tuple(dict.fromkeys(item.rule for item in own.findings))
    return {"it": case, "look": look, "word": word, "sentence": sentence, "rules": rules, "runs": backends_of(case)}


def _subject(report: Report) -> tuple[tuple[str, str], ...]:
    return (
        ("Target", target_line(report)), ("Machine", machine_line(report)), ("Packages", stack_line(report)),
        ("Workload", job_line(report)),
    )  # fmt: skip


def _grid(report: Report) -> list[dict[str, Any]]:
    """Return a table of GPUs x jobs for each environment; a cell has look, verdict, rules and backend."""
    tables = []
    for environment in dict.fromkeys(case.environment for case in report.cases):
        own = [case for case in report.cases if case.environment == environment]
        jobs = tuple(dict.fromkeys(case.workload or "" for case in own))
        cells = {(case.gpu or "", case.workload or ""): _case(report, case) for case in own}
        rows = [
            {"gpu": gpu or "this machine", "cells": [cells.get((gpu, job)) for job in jobs]}
            for gpu in dict.fromkeys(case.gpu or "" for case in own)
        ]
        tables.append({"environment": environment, "jobs": [job or "no workload" for job in jobs], "rows": rows})
    return tables


def _fix(fix: Fix) -> dict[str, Any]:
    effects = [
        f"{word} {', '.join(rules)}" for word, rules in (("fixes", fix.resolves), ("leaves", fix.leaves)) if rules
    ]
    return {
        "fix": fix,
        "lines": fix_lines(fix),
        "safety": safety_text(fix),
        "effects": "; ".join(effects),
        "changes": [
            change for change in fix.changes if change.kind != ChangeKind.CALL
        ],  # a call is shown as a line to paste
    }


def _prediction(prediction: Prediction) -> dict[str, Any]:
    chosen = "fails" if prediction.fails_at_run else "selected"
    return {
        "library": library_title(prediction.library),
        "headline": headline(prediction),
        "candidates": [
            {
                "it": item,
                "word": chosen if item.backend == prediction.selected else _LONG_WORDS[item.available],
                "reasons": [(reason_text(reason), reason.source) for reason in item.reasons],
            }
            for item in prediction.candidates
        ],
    }


def _matrix(number: int, matrix: Matrix) -> dict[str, Any]:
    """The heat map: a word in every cell, and the number of the reason below."""
    reasons: dict[str, tuple[int, Reason]] = {}
    rows = [
        {
            "group": row.group if index == 0 or matrix.rows[index - 1].group != row.group else "",
            "feature": row.feature,
            "cells": [_heat(cell, row, reasons) for cell in row.cells],
        }
        for index, row in enumerate(matrix.rows)
    ]
    return {
        "id": f"m{number}",
        "title": matrix.title,
        "backends": matrix.backends,
        "rows": rows,
        "reasons": [(count, reason_text(reason)) for count, reason in reasons.values()],
    }


def _heat(cell: Candidate, row: MatrixRow, reasons: dict[str, tuple[int, Reason]]) -> tuple[str, int]:
    """(word, number of its reason or 0)."""
    word: str
    reason: Reason | None
    if row.import_error:
        word, reason = "no", row.import_error
    elif cell.backend == row.selected:
        word, reason = ("fails", row.fails_at_run) if row.fails_at_run else ("selected", None)
    else:
        word, reason = _WORDS[cell.available], (cell.reasons[0] if cell.reasons else None)
    if reason is None:
        return word, 0
    return word, reasons.setdefault(reason.rule, (len(reasons) + 1, reason))[0]


def _plain(value: Any) -> Any:
    """What goes into the page: without control characters."""
    return printable(value) if type(value) is str else value


def _prose(text: Any) -> Any:
    """Text as it is, with text in backticks as code: a fact from a file must not become markup."""

    return Markup("").join(_spans(printable(" ".join(str(text).split())), Markup, escape))


def _linked(text: Any) -> Any:
    """Return text in which each https address is a link; everything else stays text."""
    plain = printable(" ".join(str(text).split()))
    parts: list[Any] = []
    last = 0
    for match in _LINK.finditer(plain):
        parts += [escape(plain[last : match.start()]), _ANCHOR.format(match[0], match[0])]
        last = match.end()
    return Markup("").join([*parts, escape(plain[last:])])


def _spans(text: str, markup: Any, escape: Any) -> Iterator[Any]:
    last = 0
    for match in _CODE.finditer(text):
        yield escape(text[last : match.start()])
        yield markup("<code>{}</code>").format(match[1])
        last = match.end()
    yield escape(text[last:])
