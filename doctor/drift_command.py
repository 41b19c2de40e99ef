"""`attn-doctor drift`: uses between installed packages that the installed callee does not answer."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cli_options import parser
from .errors import DoctorError, NoDiagnosis

if TYPE_CHECKING:
    from .commands import Streams
    from .drift.findings import DriftReport, Finding
    from .drift.pipeline import DriftRequest

SCHEMA = 1
SHOWN = 40
MOST_JOBS = 16


def run(arguments: Sequence[str], streams: Streams) -> int:
    """Analyze the environment; 1 where something surely breaks at or above `--fail-on`."""
    made = parser("drift", "Which calls between installed packages does the installed callee not answer?")
    target = made.add_argument_group("what is examined")
    target.add_argument("--python", metavar="PATH", help="interpreter of another environment")
    target.add_argument("--site-packages", metavar="DIR", help="an unpacked tree of packages")
    target.add_argument(
        "--code", action="append", default=[], metavar="DIR", help="a folder of your own code; repeatable"
    )
    target.add_argument(
        "--model", metavar="FILE", help="a model's config.json: the Python files next to it are examined"
    )
    target.add_argument("--against", action="append", default=[], metavar="NAME==VERSION",
                        help="examine this release instead of the installed one; repeatable")  # fmt: skip
    target.add_argument("--caller", action="append", default=[], metavar="NAME", help="only this caller; repeatable")
    target.add_argument("--callee", action="append", default=[], metavar="NAME", help="only this callee; repeatable")
    target.add_argument(
        "--context-parallel", choices=("yes", "no"), help="whether the workload uses context parallelism"
    )
    how = made.add_argument_group("how it runs")
    how.add_argument("--jobs", type=int, default=1, metavar="N", help="processes; each needs up to 600 MB (default: 1)")
    how.add_argument("--no-cache", action="store_true", help="read all sources again")
    shown = made.add_argument_group("how it is shown")
    shown.add_argument("--format", choices=("text", "json"), default="text", metavar="F", help="text or json")
    shown.add_argument("--all", action="store_true", help="list notes too: missing models, and what is uncertain")
    shown.add_argument("-o", "--output", metavar="FILE", help="write to a file")
    shown.add_argument("--fail-on", choices=("error", "warning", "note", "never"), default="error", metavar="LEVEL",
                       help="exit with 1 from this severity on (default: error)")  # fmt: skip
    options = made.read(arguments)
    from .commands import write
    from .drift.pipeline import analyze

    report = analyze(_request(options), streams.tell)
    if not report.pairs and not report.findings:
        streams.tell("no package of the attention stack calls another here")
    text = json.dumps(as_json(report), indent=2) + "\n" if options.format == "json" else as_text(report, options.all)
    write(text, options.output, streams)
    return _exit_code(report, options.fail_on)


def _request(options: argparse.Namespace) -> DriftRequest:
    from .drift.pipeline import DriftRequest
    from .probes import find_target

    if not 1 <= options.jobs <= MOST_JOBS:
        raise DoctorError(f"`--jobs {options.jobs}` is out of range", f"1 to {MOST_JOBS}")
    target = find_target(options.python, options.site_packages)
    if not target.site_dirs and not options.against:
        raise NoDiagnosis("the target has no folder of installed packages", "name one with `--site-packages DIR`")
    model = Path(options.model) if options.model else None
    if model is not None and not model.exists():
        raise DoctorError(f"`{options.model}` does not exist")
    return DriftRequest(
        tuple(Path(item) for item in target.site_dirs), tuple(Path(item) for item in options.code), model,
        tuple(options.against),
        None if options.context_parallel is None else options.context_parallel == "yes", tuple(options.caller),
        tuple(options.callee), None if options.no_cache else _cache_folder(), options.jobs,
    )  # fmt: skip


def _cache_folder() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "attn-doctor" / "drift"
    except RuntimeError:  # no home folder
        return None


def _exit_code(report: DriftReport, fail_on: str) -> int:
    levels = ["error", "warning", "note"]
    if fail_on == "never":
        return 0
    counted = levels[: levels.index(fail_on) + 1]
    return int(any(item.severity.value in counted for item in report.findings))


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
    elif item.reach.value in ("import", "on_demand"):
        lines.append("  runs when the module is imported")
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
    return text if len(text) <= 160 else f"{text[:110]} ... {text[-40:]}"
