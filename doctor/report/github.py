"""The findings as GitHub workflow commands: annotations at the line that declares the cause."""

from __future__ import annotations

from doctor.model import Finding, Report, Severity
from doctor.util.outgoing import outgoing_part

from .cases import message_of
from .locations import place_of
from .style import Style
from .summary import conclusion
from .text import details_text
from .undetermined import count, lines, relevant

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
_MOST_GAPS = 12  # combinations of facts that rules lack


def diagnosis(report: Report, style: Style) -> str:
    """Write one annotation per finding, one for the skipped checks, and the verdict."""
    out = [_finding(report, finding) for finding in report.findings]
    out += [_command("notice", {"title": "attn-doctor"}, note) for note in report.notes]
    skipped = relevant(report)
    if skipped:
        title = f"attn-doctor skipped {count(skipped)} (missing information)"
        out.append(_command("notice", {"title": title}, "\n".join(lines(report, most=_MOST_GAPS))))
    look, word, sentence = conclusion(report)
    failed = look == "error" and not any(finding.severity == Severity.ERROR for finding in report.findings)
    out.append(_command("error" if failed else "notice", {"title": f"attn-doctor: {word}"}, sentence))
    return "".join(f"{line}\n" for line in out)


def _finding(report: Report, finding: Finding) -> str:
    place = place_of(report, finding)
    properties = {"file": place.file, "line": str(place.line)} if place else {}
    properties["title"] = f"{finding.rule}: {finding.summary}"
    message = f"{message_of(report, finding)}\n\n{details_text(report, finding)}"
    return _command(_COMMANDS[finding.severity], properties, message.rstrip("\n"))


def _command(name: str, properties: dict[str, str], message: str) -> str:
    head = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {head}::{_data(message)}"


def _data(text: str) -> str:
    """The escapes of the runner: a line break would end the command, and start another that a fact dictates."""
    kept = "\n".join(outgoing_part(line) for line in text.replace("\r", "").split("\n"))
    return kept.replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(" ".join(text.split())).replace(":", "%3A").replace(",", "%2C")
