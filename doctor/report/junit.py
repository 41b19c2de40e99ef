"""The findings as JUnit XML: an error is a failed test, a skipped check a skipped one."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from doctor.model import Finding, Report, Severity, Undetermined

from .cases import name_of
from .locations import place_of
from .style import Style
from .summary import alone, conclusion, job_line, machine_line, stack_line, target_line
from .text import finding_text
from .undetermined import relevant

_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def diagnosis(report: Report, style: Style) -> str:
    """A suite, or one for each of several cases: the verdict, each finding, each skipped check.

    Only what both common schemas allow, that of Ant and that of Jenkins: other findings go to `system-out`.
    """
    suites = _suite(report, 0, "attn-doctor")
    if report.cases:
        whole = tuple(finding for finding in report.findings if not finding.cases)  # of the project, not of a case
        reports = [alone(report, case) for case in report.cases]
        suites = [
            line
            for number, (case, one) in enumerate(zip(report.cases, reports, strict=True))
            for line in _suite(one._replace(findings=one.findings + whole), number, name_of(case))
        ]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>", *suites, "</testsuites>"]
    return "\n".join(lines) + "\n"


def _properties(report: Report) -> Iterator[str]:
    """Yield the name of this program, and what the analysis of API drift read."""
    values = {"tool": report.tool}
    if report.drift is not None:
        names = (item.package for item in report.drift.not_analyzed)
        values |= {"drift.analysed": ", ".join(report.drift.analyzed), "drift.not_analysed": ", ".join(names)}
        values["drift.limit"] = f"{report.drift.limit:g}"
    for name, value in values.items():
        yield f"<property name={_attribute(name)} value={_attribute(value)}/>"


def _suite(report: Report, number: int, name: str) -> list[str]:
    look, word, sentence = conclusion(report)
    failed = sum(finding.severity == Severity.ERROR for finding in report.findings)
    body = ""
    if look == "error" and not failed:  # no backend is available, although no rule says so
        body, failed = f'<failure type="error" message={_attribute(f"{word}: {sentence}")}/>', 1
    cases = [_case("verdict", f"{word}: {sentence}", body)]
    cases += [_finding(report, finding) for finding in report.findings]
    cases += [
        _case(rule, "skipped: missing information", f"<skipped>{_text(_missing(item))}</skipped>")
        for item in relevant(report)
        for rule in item.rules
    ]
    pairs = (
        ("Target", target_line(report)), ("Machine", machine_line(report)), ("Packages", stack_line(report)),
        ("Workload", job_line(report)),
    )  # fmt: skip
    subject = [f"{name}: {text}" for name, text in pairs if text]
    skipped = sum(len(item.rules) for item in relevant(report))
    output = [*subject, *(f"note: {note}" for note in report.notes)]
    output += [_told(report, finding) for finding in report.findings if finding.severity != Severity.ERROR]
    head = {
        "name": name, "package": "attn-doctor", "id": number, "timestamp": _now(), "hostname": "localhost",
        "tests": len(cases), "failures": failed, "errors": 0, "skipped": skipped,
        "time": f"{report.timing.get('total', 0.0):.3f}" if number == 0 else "0",
    }  # fmt: skip
    return [
        f"  <testsuite {' '.join(f'{key}={_attribute(str(value))}' for key, value in head.items())}>",
        f"    <properties>{''.join(_properties(report))}</properties>",
        *(f"    {case}" for case in cases),
        f"    <system-out>{_text(chr(10).join(output))}</system-out>",
        "    <system-err/>",
        "  </testsuite>",
    ]


def _missing(item: Undetermined) -> str:
    return item.problem or ", ".join(item.missing)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S")


def _told(report: Report, finding: Finding) -> str:
    place = place_of(report, finding)
    return (f"{place.file}:{place.line}: " if place else "") + finding_text(finding)


def _finding(report: Report, finding: Finding) -> str:
    body = ""
    if finding.severity == Severity.ERROR:
        place = place_of(report, finding)
        at = f"{place.file}:{place.line}: " if place else ""
        text = _text(_told(report, finding))
        body = f'<failure type="error" message={_attribute(at + finding.message)}>{text}</failure>'
    return _case(finding.rule, f"{finding.severity}: {finding.summary}", body)


def _case(rule: str, name: str, body: str) -> str:
    head = f'<testcase classname={_attribute(f"attn-doctor.{rule}")} name={_attribute(name)} time="0"'
    return f"{head}>{body}</testcase>" if body else f"{head}/>"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


def _text(text: str) -> str:
    return escape(_clean(text))


def _attribute(text: str) -> str:
    return quoteattr(_clean(" ".join(text.split())))
