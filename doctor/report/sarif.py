"""The findings as SARIF 2.1.0, for code scanning: the pin that causes a finding is where it is shown."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from doctor.model import Case, Change, ChangeKind, Finding, Fix, Report
from doctor.util.credentials import without_credentials
from doctor.util.redact import shortened

from .cases import message_of
from .fingerprint import fingerprint
from .json import drift
from .locations import SourceLocation, home_of, place_of_fact, places_of
from .markdown import rule_help
from .style import Style
from .text import finding_text
from .undetermined import relevant

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
MOST_CHARACTERS = 1024  # of a description, by the documentation of GitHub code scanning
MOST_TAGS = 20
FINGERPRINT = "attnDoctor/v1"  # a new number when what goes into it changes


def diagnosis(report: Report, style: Style) -> str:
    """Write one run with a result for each finding; notes and skipped checks become notifications."""
    shown = (*report.findings, *report.ignored)
    rules = list({finding.rule: finding for finding in shown}.values())
    positions = {finding.rule: index for index, finding in enumerate(rules)}
    run = {
        "tool": {"driver": {**_driver(report.tool), "rules": [_rule(finding) for finding in rules]}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": _notifications(report)}],
        "automationDetails": {"id": f"{_name(report.tool)}/"},
        "results": [
            *(_result(report, finding, positions[finding.rule]) for finding in report.findings),
            *(
                {**_result(report, finding, positions[finding.rule]), "suppressions": [_suppression(report, finding)]}
                for finding in report.ignored
            ),
        ],
        **({"properties": {"drift": drift(report.drift)}} if report.drift is not None else {}),
    }
    return _log(run)


def no_diagnosis(tool: str, message: str, hint: str | None) -> str:
    """Write a valid file for a run that ended without a diagnosis (exit code 3)."""
    texts = [("error", message), *([("note", hint)] if hint else [])]
    run = {
        "tool": {"driver": {**_driver(tool), "rules": []}},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": False,
                "exitCode": 3,
                "toolExecutionNotifications": [{"level": level, "message": {"text": text}} for level, text in texts],
            }
        ],
        "results": [],
    }
    return _log(run)


def _suppression(report: Report, finding: Finding) -> dict[str, str]:
    """Return why a finding does not count: the project ignores its rule."""
    noted = f"{finding.rule} is ignored by this project: "
    reason = next(
        (note.removeprefix(noted) for note in report.notes if note.startswith(noted)), "ignored by the project"
    )
    return {"kind": "external", "justification": reason}


def _name(tool: str) -> str:
    return tool.partition(" ")[0]


def _driver(tool: str) -> dict[str, Any]:
    name, _, version = tool.partition(" ")
    driver = {"name": name, "semanticVersion": version, "version": version}
    home = _home_page(name)
    return {**driver, "informationUri": home} if home else driver


def _home_page(distribution: str) -> str | None:
    """Return the home page that the package metadata names: `[project.urls]` of pyproject.toml is its one place."""
    try:
        urls = metadata(distribution).get_all("Project-URL") or []
    except PackageNotFoundError:  # a copied source tree
        return None
    pages = {label.strip().lower(): url.strip() for label, _, url in (text.partition(",") for text in urls)}
    return pages.get("homepage") or pages.get("repository")


def _log(run: dict[str, Any]) -> str:
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _short(text: str) -> str:
    """Return a text within the length that code scanning takes."""
    return shortened(text, MOST_CHARACTERS, "…")


def _rule(finding: Finding) -> dict[str, Any]:
    content: dict[str, Any] = {
        "id": finding.rule,
        "name": finding.name,
        "shortDescription": {"text": _short(finding.summary)},
        "fullDescription": {"text": _short(finding.why or finding.summary)},
        "help": {"text": finding_text(finding), "markdown": rule_help(finding)},
        "defaultConfiguration": {"level": finding.severity},
        "properties": {"tags": ["attention", *finding.backends][:MOST_TAGS]},
    }
    link = next((source for source in finding.references if source.startswith("https://")), None)
    if link:
        content["helpUri"] = _uri(link)
    return content


def _result(report: Report, finding: Finding, index: int) -> dict[str, Any]:
    places = places_of(report, finding)
    content: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": message_of(report, finding)},
        "locations": [_location(finding, home_of(report, finding))],
        "partialFingerprints": {FINGERPRINT: fingerprint(finding)},
    }
    if finding.reproduction:
        content["properties"] = {"reproduction": finding.reproduction}
    if finding.cases:
        content["properties"] = {"cases": [_case(report.cases[number]) for number in finding.cases]}
    if places[1:]:
        content["relatedLocations"] = [
            {"id": number, **_physical(place), "message": {"text": f"{place.fact.key} comes from here"}}
            for number, place in enumerate(places[1:], 1)
        ]
    fixes = [made for fix in report.fixes if finding.rule in fix.resolves and (made := _fix(report, fix))]
    if fixes:
        content["fixes"] = fixes
    return content


def _case(case: Case) -> dict[str, str | None]:
    return {"environment": case.environment, "gpu": case.gpu, "workload": case.workload}


def _location(finding: Finding, place: SourceLocation) -> dict[str, Any]:
    logical = [{"name": item.key, "kind": "variable"} for item in finding.evidence[:1]]
    location: dict[str, Any] = {"logicalLocations": logical} if logical else {}
    return {**location, **_physical(place)}


def _physical(place: SourceLocation) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": _path_uri(place.file)},
            "region": {"startLine": place.line},
        }
    }


def _path_uri(path: str) -> str:
    path = without_credentials(_within_folder(path))
    whole = quote(path.replace("\\", "/").removeprefix("./").encode("utf-8", "surrogateescape"))
    return f"file://{whole}" if whole.startswith("/") else whole


def _within_folder(path: str) -> str:
    """Return a path below the current folder as relative: code scanning knows the repository's files by it."""
    given, folder = Path(path), Path.cwd()
    return given.relative_to(folder).as_posix() if given.is_absolute() and given.is_relative_to(folder) else path


def _uri(link: str) -> str:
    return quote(without_credentials(link), safe=":/?#[]@!$&'()*+,;=%~-._")


def _fix(report: Report, fix: Fix) -> dict[str, Any] | None:
    """A fix that edits declared lines and needs nothing else; the rule's help describes any other."""
    changes = [_replacement(report, change) for change in fix.changes]
    known = [item for item in changes if item is not None]
    if not known or len(known) < len(changes):
        return None
    files: dict[str, list[dict[str, Any]]] = {}
    for file, replacement in known:
        files.setdefault(file, []).append(replacement)
    return {
        "description": {"text": fix.title + (f" ({fix.note})" if fix.note else "")},
        "artifactChanges": [
            {"artifactLocation": {"uri": _path_uri(file)}, "replacements": items} for file, items in files.items()
        ],
    }


def _replacement(report: Report, change: Change) -> tuple[str, dict[str, Any]] | None:
    """Version for version on the declaring line; a line with hashes would no longer fit them."""
    fact = report.facts.get(f"{change.name}.version")
    place = place_of_fact(fact) if fact else None
    if change.kind != ChangeKind.PACKAGE or place is None or not change.before or not change.after:
        return None
    line = place.fact.raw or ""
    if line.count(change.before) != 1 or "--hash" in line or line.endswith("\\") or place.fact.via is not None:
        return None
    start = line.index(change.before) + 1
    region = {"startLine": place.line, "startColumn": start, "endColumn": start + len(change.before)}
    return place.file, {"deletedRegion": region, "insertedContent": {"text": change.after}}


def _notifications(report: Report) -> list[dict[str, Any]]:
    texts = list(report.notes)
    texts += [
        f"skipped {', '.join(item.rules)}: {item.problem or ', '.join(item.missing)}" for item in relevant(report)
    ]
    return [{"level": "note", "message": {"text": text}} for text in texts]
