"""The findings as GitHub workflow commands: annotations at the line that declares the cause."""

from __future__ import annotations

from ..model import Finding, Report
from . import Style
from .cases import where
from .page import printable
from .places import place_of
from .subject import verdict
from .text import finding_text

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def diagnosis(report: Report, style: Style) -> str:
    """One annotation per finding, then the verdict; what could not be told is one notice."""
    lines = [_finding(report, finding) for finding in report.findings]
    lines += [_command("notice", {"title": "attn-doctor"}, note) for note in report.notes]
    if report.undetermined:
        count = len({rule for item in report.undetermined for rule in item.rules})
        problems = "\n".join(dict.fromkeys(item.problem or ", ".join(item.missing) for item in report.undetermined))
        title = f"attn-doctor could not tell {count} rule{'s' if count > 1 else ''}"
        lines.append(_command("notice", {"title": title}, problems))
    look, word, sentence = verdict(report)
    failed = look == "error" and not any(finding.severity == "error" for finding in report.findings)
    lines.append(_command("error" if failed else "notice", {"title": f"attn-doctor: {word}"}, sentence))
    return "".join(f"{line}\n" for line in lines)


def _finding(report: Report, finding: Finding) -> str:
    place = place_of(report, finding)
    properties = {"file": place.file, "line": str(place.line)} if place else {}
    properties["title"] = f"{finding.rule}: {finding.summary}"
    on = f"on {where(report, finding.cases)}: " if finding.cases else ""
    return _command(_COMMANDS[finding.severity], properties, f"{on}{finding.message}\n\n{finding_text(finding)}")


def _command(name: str, properties: dict[str, str], message: str) -> str:
    told = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {told}::{_data(message)}"


def _data(text: str) -> str:
    """The escapes of the runner: a line break would end the command, and start another that a fact dictates."""
    kept = "\n".join(printable(line) for line in text.replace("\r", "").split("\n"))
    return kept.replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(" ".join(text.split())).replace(":", "%3A").replace(",", "%2C")
