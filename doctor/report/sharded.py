"""A sweep over many nodes, in every format."""

from __future__ import annotations

import json
from dataclasses import asdict

from doctor.util.redact import shortened

from . import sections
from .sections import Answer, Section, Table
from .sharded_model import ShardedReport
from .style import Style

MOST_CASES = 20


def as_text(report: ShardedReport, style: Style) -> str:
    """Return the report as text."""
    return sections.text(answer_of(report, every=style.verbose), style)


def as_markdown(report: ShardedReport, style: Style) -> str:
    """Return the report as Markdown."""
    return sections.markdown(answer_of(report, every=True), style)


def as_html(report: ShardedReport, style: Style) -> str:
    """Return the report as one page."""
    return sections.html(answer_of(report, every=True), style)


def as_json(report: ShardedReport, style: Style) -> str:
    """Return the report as one JSON object."""
    return json.dumps(asdict(report), indent=2, ensure_ascii=False) + "\n"


def answer_of(report: ShardedReport, *, every: bool) -> Answer:
    """Return the report in sections."""
    counts = ", ".join(f"{count} {name}" for name, count in sorted(report.counts.items(), key=lambda item: -item[1]))
    missing = report.counts.get("not reached", 0)
    if report.bad_cases:
        look, word, sentence = "error", "FAIL", f"{len(report.bad_cases)} of {report.planned} cases are bad"
    elif missing:
        look, word, sentence = "unclear", "INCOMPLETE", f"{missing} of {report.planned} cases have no result"
    else:
        look, word, sentence = "ok", "OK", f"{report.planned} cases, none is bad"
    lines = [("Cases", counts), ("Time", f"{report.seconds:.0f} s, {report.resumed} results from the journal")]
    parts = []
    if report.bad_cases:
        limit = None if every else MOST_CASES
        rows = tuple(
            (item.backend, item.verdict, item.node, shortened(item.reason, 200), item.case) for item in report.bad_cases
        )
        parts.append(Section("Bad cases", (), Table(("backend", "verdict", "node", "reason", "case"), rows[:limit])))
    backends = tuple(
        (name, ", ".join(f"{count} {word}" for word, count in sorted(own.items())))
        for name, own in sorted(report.by_backend.items())
    )
    parts.append(Section("Backends", (), Table(("backend", "cases"), backends)))
    named = {name: count for name, count in report.nodes.items() if name}
    if named:
        nodes = tuple((name, str(count)) for name, count in sorted(named.items()))
        parts.append(Section("Nodes", (), Table(("node", "cases"), nodes)))
    if report.notes:
        parts.append(Section("Notes", tuple(("note", note) for note in report.notes)))
    return Answer(look, word, sentence, tuple(lines), tuple(parts), report.tool)
