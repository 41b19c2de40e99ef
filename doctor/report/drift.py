"""The report of the API drift analyzer, as text and as JSON data."""

from __future__ import annotations

from typing import Any

from doctor.drift.findings import DriftReport, Finding
from doctor.util.credentials import without_credentials

SCHEMA = 1
SHOWN = 40  # findings in the text report


def as_json(report: DriftReport) -> dict[str, Any]:
    """Return the report as JSON data."""
    return {
        "schema": SCHEMA,
        "pairs": [
            {
                "caller": {"name": pair.caller.name, "version": pair.caller.version},
                "callee": {"name": pair.callee.name, "version": pair.callee.version},
                "verdict": pair.verdict.value, "uses": pair.uses, "unknown_uses": pair.unknown_uses,
            }
            for pair in report.pairs
        ],
        "findings": [_finding(item) for item in report.findings],
        "notices": [{"subject": item.subject, "reason": item.reason} for item in report.notices],
    }  # fmt: skip


def _finding(item: Finding) -> dict[str, Any]:
    definition = item.definition
    return {
        "code": item.code, "kind": item.kind.name.lower(), "severity": item.severity.value,
        "certainty": item.certainty.value, "reach": item.reach.value,
        "caller": {"name": item.caller.name, "version": item.caller.version},
        "callee": {"name": item.callee.name, "version": item.callee.version},
        "symbol": item.symbol, "name": item.name, "message": item.message,
        "site": {"path": item.site.path, "line": item.site.line}, "scope": item.scope,
        "definition": {"path": definition.path, "line": definition.line} if definition is not None else None,
        "signature": item.signature, "conditions": list(item.conditions), "unknown": item.unknown,
        "broken_since": item.history.broken_since, "last_compatible": item.history.last_compatible,
        "works_again_in": item.history.works_again_in,
    }  # fmt: skip


def as_text(report: DriftReport, everything: bool) -> str:
    """Return the report as text: findings by severity, then what was examined."""
    lines: list[str] = []
    shown = [item for item in report.findings if everything or item.severity.value != "note"]
    for item in shown[: None if everything else SHOWN]:
        lines += _lines(item)
    if len(shown) > SHOWN and not everything:
        lines.append(f"... and {len(shown) - SHOWN} more (`--all` lists them)")
    hidden = len(report.findings) - len(shown)
    if lines:
        lines.append("")
    for pair in report.pairs:
        unknown = f", {pair.unknown_uses} could not be checked" if pair.unknown_uses else ""
        lines.append(f"{pair.verdict.value:8} {pair.caller} -> {pair.callee} ({pair.uses} uses{unknown})")
    if not report.pairs:
        lines.append("no package of the attention stack calls another here")
    if hidden:
        lines.append(
            f"{hidden} notes not shown: missing models, workload-dependent or uncertain uses (`--all` lists them)"
        )
    for notice in report.notices[: None if everything else 5]:
        lines.append(f"note: {notice.subject}: {notice.reason}")
    if len(report.notices) > 5 and not everything:
        lines.append(f"note: {len(report.notices) - 5} more files were not read in full (`--all` lists them)")
    return "\n".join(lines) + "\n"


def _lines(item: Finding) -> list[str]:
    scope = f" in `{item.scope}`" if item.scope else ""
    lines = [
        f"{item.severity.value}[{item.code}] {item.caller} -> {item.callee}: {item.message}",
        f"  at {item.site}{scope}",
    ]
    if item.definition is not None:
        signature = f": `{_short(item.signature)}`" if item.signature else ""
        lines.append(f"  defined at {item.definition}{signature}")
    if item.reach.value == "context_parallel":
        lines.append("  runs only with context parallelism")
    elif item.reach.value == "import":
        lines.append("  runs when the package is imported")
    elif item.reach.value == "on_demand":
        lines.append("  runs on demand only")
    if item.conditions:
        lines.append(f"  when {' and '.join(f'`{_short(text)}`' for text in item.conditions[:4])}")
    history = item.history
    if history.broken_since:
        works = f", {history.last_compatible} has what is called" if history.last_compatible else ""
        lines.append(f"  since {item.callee.name} {history.broken_since}{works}")
    if history.works_again_in:
        lines.append(f"  again from {item.callee.name} {history.works_again_in}")
    if item.unknown:
        lines.append(f"  not certain: {item.unknown}")
    return lines


def _short(text: str) -> str:
    text = without_credentials(text)
    return text if len(text) <= 160 else f"{text[:110]} ... {text[-40:]}"
