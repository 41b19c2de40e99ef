"""The findings as JUnit XML: an error is a failed test, a rule that could not be judged a skipped one."""

from __future__ import annotations

import re

from ..model import Finding, Report
from . import Style
from .places import place_of
from .subject import job_line, machine_line, verdict
from .text import finding_text

_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def diagnosis(report: Report, style: Style) -> str:
    """One suite: a case for the verdict, one for each finding and each rule that could not be judged."""
    cases = [_finding(report, finding) for finding in report.findings]
    cases += [
        _case(rule, "could not tell", f"<skipped message={_attribute(item.problem or ', '.join(item.missing))}/>")
        for item in report.undetermined
        for rule in item.rules
    ]
    look, word, sentence = verdict(report)
    failed = sum(finding.severity == "error" for finding in report.findings)
    body = ""
    if look == "error" and not failed:  # nothing is left to run on, although no rule says so
        body, failed = f'<failure type="error" message={_attribute(f"{word}: {sentence}")}/>', 1
    cases.insert(0, _case("verdict", f"{word}: {sentence}", body))
    skipped = sum(len(item.rules) for item in report.undetermined)
    told = [f"on: {machine_line(report)}", f"job: {job_line(report)}", *(f"note: {note}" for note in report.notes)]
    seconds = f"{report.timing.get('total', 0.0):.3f}"
    counts = f'tests="{len(cases)}" failures="{failed}" errors="0"'
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name={_attribute(report.tool)} {counts} time="{seconds}">',
        f'  <testsuite name="attn-doctor" {counts} skipped="{skipped}" time="{seconds}">',
        *(f"    {case}" for case in cases),
        f"    <system-out>{_text(chr(10).join(told))}</system-out>",
        "  </testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _finding(report: Report, finding: Finding) -> str:
    place = place_of(report, finding)
    at = f"{place.file}:{place.line}: " if place else ""
    told = _text(at + finding_text(finding))
    if finding.severity == "error":
        body = f'<failure type="error" message={_attribute(at + finding.message)}>{told}</failure>'
    else:
        body = f"<system-out>{told}</system-out>"
    return _case(finding.rule, f"{finding.severity}: {finding.summary}", body)


def _case(rule: str, name: str, body: str) -> str:
    head = f"<testcase classname={_attribute(f'attn-doctor.{rule}')} name={_attribute(name)}"
    return f"{head}>{body}</testcase>" if body else f"{head}/>"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


def _text(text: str) -> str:
    from xml.sax.saxutils import escape

    return escape(_clean(text))


def _attribute(text: str) -> str:
    from xml.sax.saxutils import quoteattr

    return quoteattr(_clean(" ".join(text.split())))
