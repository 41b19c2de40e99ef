"""What is known of a log, as text and as one JSON line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from doctor.model import Remedy
from doctor.report.log_model import Confidence, Explanation, LogReport
from doctor.util.redact import shortened

from .fix_text import alternative_lines, fix_lines
from .page import Page
from .style import Style

SCHEMA = 1
_LONGEST = 300  # characters of a log line that are shown
_FIXES = 3


def as_json(report: LogReport) -> str:
    """Return one line of JSON; an empty `diagnosis` means that no known incompatibility shows."""
    content = {
        "schema": SCHEMA,
        "input": report.input,
        "diagnosis": [_document(item) for item in report.diagnosis],
        "benign": [_short(item) for item in report.benign],
        "unrelated": [_short(item) for item in report.unrelated],
        "errors": [{"line": line.number, "text": shortened(line.text, _LONGEST, "")} for line in report.errors],
        "shown": list(report.shown),
        "versions": [{"rule": item.rule, "message": item.message} for item in report.versions],
        "facts": {key: {"value": _plain(fact.value), "source": fact.source} for key, fact in report.facts.items()},
        "lines": report.lines,
        "notes": list(report.notes),
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def _document(item: Explanation) -> dict[str, Any]:
    return {
        "cause": item.cause,
        "rule": item.rule,
        "category": item.category,
        "packages": list(item.packages),
        "confidence": item.confidence,
        "doubts": [doubt.name.lower() for doubt in item.doubts],
        "signature": item.signature,
        "line": item.line.number,
        "text": shortened(item.line.text, _LONGEST, ""),
        "rank": item.line.rank,
        "message": item.message,
        "why": item.why,
        "fixes": [*(_fix(fix) for fix in item.fixes), *(_remedy(remedy) for remedy in item.remedies)],
        "no_pin": item.no_pin,
        "reasons": list(item.reasons),
        "missing": list(item.missing),
        "conditions_hold": item.holds,
        "references": list(item.references),
    }


def _fix(item: Any) -> dict[str, Any]:
    return {
        "title": item.title, "commands": fix_lines(item), "verified": True, "safe": item.safe,
        "safety": str(item.safety), "risk": item.risk, "note": item.note,
    }  # fmt: skip


def _remedy(item: Remedy) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "require": dict(item.require),
        "set_env": dict(item.set_env),
        "unset_env": list(item.unset_env),
        "config": {key: _plain(value) for key, value in item.config.items()},
        "call": item.call,
        "note": item.note,
    }
    return {
        "commands": alternative_lines(item),
        **{key: value for key, value in parts.items() if value},
        "verified": False,
        "safe": item.safe,
        "safety": str(item.safety),
    }


def _short(item: Explanation) -> dict[str, Any]:
    return {
        "cause": item.cause,
        "rule": item.rule,
        "line": item.line.number,
        "text": shortened(item.line.text, _LONGEST, ""),
        "message": item.message,
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else str(value)


def as_text(report: LogReport, style: Style) -> str:
    """Return the cause, the line that shows it, why, fixes and how to confirm it."""
    page = Page(style)
    page.line(f"{report.input} ({report.lines} line{'' if report.lines == 1 else 's'})", "label")
    for note in report.notes:
        page.say(note, lead="note:", look="note", indent=2)
    page.gap()
    if report.diagnosis:
        _cause(page, report.diagnosis[0])
        _others(page, report.diagnosis[1:])
    else:
        _nothing(page, report)
    for item in report.benign:
        page.say(f"line {item.line.number}: {item.message}", lead="benign:", look="ok")
    for finding in report.versions:
        page.say(f"{finding.message} ({finding.rule})", lead="versions:", look="warning")
    return page.text()


def _cause(page: Page, item: Explanation) -> None:
    page.say(item.message, lead="cause:", look="error")
    because = f" ({'; '.join(item.doubts)})" if item.doubts else ""
    source = f"rule {item.rule}" if item.rule is not None else "read from the code"
    page.say(f"{item.category}; confidence {item.confidence}{because}; {source}", indent=2)
    rank = f" (rank {item.line.rank})" if item.line.rank is not None else ""
    page.line(f"  line {item.line.number}{rank}: {_cut(item.line.text)}")
    if item.why:
        page.say(item.why, lead="why:", look="label", indent=2)
    for reason in item.reasons:
        page.say(reason, lead="-", indent=4)
    page.gap()
    _fixes(page, item)
    page.gap()
    if item.missing:
        settings = " ".join(f"--set {key}=VALUE" for key in item.missing[:3])
        page.say(f"these facts decide: `attn-doctor explain LOG {settings}`", lead="hint:", look="note")
    page.say("`attn-doctor check --run` in the environment of the job", lead="confirm:", look="label")
    if page.style.verbose or item.confidence != Confidence.HIGH:
        for reference in item.references[:2]:
            page.say(reference, lead="see:", look="dim")
    page.gap()


def _fixes(page: Page, item: Explanation) -> None:
    blocks = [(fix_lines(fix), fix.note, True) for fix in item.fixes]
    blocks += [(alternative_lines(remedy), remedy.note, False) for remedy in item.remedies]
    for number, (lines, note, verified) in enumerate(blocks[:_FIXES]):
        lead = "fix:" if number == 0 else "or:"
        head = "verified by the rules on the known facts" if verified else note or ""
        if lines:
            page.say(head, lead=lead, look="ok", indent=2)
            for line in lines:
                page.line(f"      {line}", "command")
        elif note:
            page.say(note, lead=lead, look="ok", indent=2)
    if not blocks and item.no_pin:
        page.say(item.no_pin, lead="fix:", look="ok", indent=2)


def _others(page: Page, items: Iterable[Explanation]) -> None:
    for item in items:
        source = f"{item.rule}, {item.category}" if item.rule is not None else item.category
        page.say(f"line {item.line.number}: {item.message} ({source})", lead="also:", look="note")
        first = next((line for remedy in item.remedies for line in alternative_lines(remedy)), None)
        if first:
            page.line(f"      {first}", "command")


def _nothing(page: Page, report: LogReport) -> None:
    if report.versions:
        page.say(
            "no line shows a known incompatibility, but versions in this log do not fit", lead="result:", look="warning"
        )
    else:
        page.say("no known incompatibility of the attention stack shows in this log", lead="result:", look="ok")
    for item in report.unrelated:
        page.say(f"line {item.line.number}: {item.message}", lead="other cause:", look="note")
        page.line(f"      {_cut(item.line.text)}", "dim")
    for text in report.shown:
        page.say(text, lead="shows:", look="note")
    if not report.unrelated and report.errors:
        page.say("error lines that were looked at:", indent=2)
        for line in report.errors:
            page.line(f"    line {line.number}: {_cut(line.text)}", "dim")
    page.gap()


def _cut(text: str) -> str:
    return shortened(text, _LONGEST, " …")
