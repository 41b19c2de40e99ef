"""The findings as GitLab's code quality report, which a merge request shows next to the changed lines."""

from __future__ import annotations

import json

from doctor.model import Finding, Report
from doctor.util.printable import printable

from .cases import message_of
from .fingerprint import fingerprint
from .locations import home_of
from .markdown import rule_help
from .style import Style

#: Ours → one of GitLab's five.
_SEVERITIES = {"error": "critical", "warning": "major", "note": "info"}


def diagnosis(report: Report, style: Style) -> str:
    """A list with an entry for each finding."""
    entries = [_entry(report, finding) for finding in report.findings]
    return json.dumps(entries, indent=2, ensure_ascii=False) + "\n"


def _entry(report: Report, finding: Finding) -> dict[str, object]:
    place = home_of(report, finding)
    return {
        "description": printable(
            f"{finding.summary}: {message_of(report, finding)}" if finding.message else finding.summary
        ),
        "check_name": finding.rule,
        "fingerprint": fingerprint(finding),
        "content": {"body": rule_help(finding)},
        "severity": _SEVERITIES[finding.severity],
        "location": {
            "path": place.file.removeprefix("./"),
            "lines": {"begin": place.line},
        },
    }
