"""A report as the baseline of the next: its findings are suppressed, those that no longer occur are reported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.model import SEVERITIES, Case, Finding
from doctor.report.cases import label
from doctor.report.fingerprint import Seen, fingerprint, fingerprint_of, of_environment
from doctor.util.reading import read_text
from doctor.util.redact import shortened

Name = tuple[str, str | None, str | None]  # environment, GPU, job of a case


@dataclass(frozen=True)
class Entry:
    """One finding of the baseline."""

    rule: str
    severity: str
    fingerprints: frozenset[str]  # of the finding itself, and without what GPU and job add
    cases: frozenset[Name]  # empty where the baseline judged a single case


@dataclass(frozen=True)
class Baseline:
    """The findings of an earlier report."""

    name: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Compared:
    """The findings that are new, those that are known, and a note for what has changed."""

    new: tuple[Finding, ...]
    known: tuple[Finding, ...]
    notes: tuple[str, ...]


def read_baseline(path: Path) -> Baseline:
    """The findings of a report that `check --format json` wrote; DoctorError for any other file.

    One that was itself written with a baseline passes on what that one had.
    """

    text = read_text(path, "baseline", named=True)
    hint = "a baseline is a report that `attn-doctor check --format json --output FILE` wrote"
    try:
        content = json.loads(text)
    except json.JSONDecodeError as problem:
        raise DoctorError(f"{path}:{problem.lineno}: not JSON: {problem.msg}", hint) from None
    except (ValueError, RecursionError):
        raise DoctorError(f"{path}: not JSON that can be read", hint) from None
    if not isinstance(content, dict) or not isinstance(content.get("findings"), list):
        raise DoctorError(f"{path}: it has no `findings`", hint)
    if not isinstance(content.get("schema"), int) or content["schema"] > 1:
        raise DoctorError(f"{path}: `schema` needs to be 1, found `{shortened(str(content.get('schema')), 40)}`", hint)
    try:
        names = [(str(case["environment"]), case["gpu"], case["workload"]) for case in content.get("cases") or ()]
        return Baseline(
            str(path), tuple(_entry(item, names) for item in (*content["findings"], *content.get("known", ())))
        )
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        raise DoctorError(f"{path}: its findings are not those of a report", hint) from None


def _entry(item: Mapping[str, Any], names: Sequence[Name]) -> Entry:
    seen: list[Seen] = [(str(one["fact"]), _value(one["found"]), bool(one["wanted"])) for one in item["evidence"]]
    rule = str(item["id"])
    shared = fingerprint_of(rule, of_environment(seen))
    cases = frozenset(names[number] for number in item.get("cases") or ())
    if item["severity"] not in SEVERITIES:
        raise ValueError(item["severity"])
    return Entry(rule, item["severity"], frozenset((shared, fingerprint_of(rule, seen))), cases)


def _value(found: Any) -> Any:
    """JSON knows no tuples."""
    return tuple(map(_value, found)) if isinstance(found, list) else found


def compare(
    baseline: Baseline,
    findings: Sequence[Finding],
    cases: Sequence[Case],
    silent: frozenset[str],
    unsure: frozenset[str],
) -> Compared:
    """What of these findings is new; `silent` rules are ignored now, `unsure` ones can no longer be judged."""
    new: list[Finding] = []
    known: list[Finding] = []
    seen: dict[Entry, set[Name]] = {}
    names = [(case.environment, case.gpu, case.workload) for case in cases]
    for finding in findings:
        mark, left = fingerprint(finding), list(finding.cases)
        entries = [entry for entry in baseline.entries if mark in entry.fingerprints and entry.rule == finding.rule]
        for entry in entries:
            seen.setdefault(entry, set()).update(names[number] for number in finding.cases)
        as_bad = [
            entry for entry in entries
            if SEVERITIES.index(entry.severity) <= SEVERITIES.index(finding.severity)
        ]  # fmt: skip
        had = [
            number for number in left
            if any(not entry.cases or names[number] in entry.cases for entry in as_bad)
        ]  # fmt: skip
        if as_bad and (not left or len(had) == len(left)):
            known.append(finding)
        elif had:
            known.append(finding._replace(cases=tuple(had)))
            new.append(finding._replace(cases=tuple(number for number in left if number not in had)))
        else:
            new.append(finding)
    return Compared(tuple(new), tuple(known), tuple(_told(baseline, known, seen, cases, silent, unsure)))


def _told(
    baseline: Baseline, known: Sequence[Finding], seen: Mapping[Entry, set[Name]], cases: Sequence[Case],
    silent: frozenset[str], unsure: frozenset[str],
) -> list[str]:  # fmt: skip
    lines = []
    if known:
        rules = ", ".join(dict.fromkeys(finding.rule for finding in known))
        count = f"{len(known)} baseline finding{'s' if len(known) > 1 else ''}"
        lines.append(f"{count} suppressed (`{baseline.name}`): {rules}")
    names = {(case.environment, case.gpu, case.workload): case for case in cases}
    for entry in dict.fromkeys(baseline.entries):
        if entry.rule in silent:
            continue
        gone = [name for name in names if name in entry.cases and name not in seen.get(entry, set())]
        if (entry.cases and not gone) or (not entry.cases and entry in seen):
            continue
        where = (
            f" ({', '.join(label(names[name]) for name in gone[:4])}{' …' if len(gone) > 4 else ''})" if gone else ""
        )
        if entry.rule in unsure:
            lines.append(f"{entry.rule} of the baseline was skipped this time (missing information){where}")
        else:
            lines.append(f"fixed: {entry.rule} of the baseline no longer occurs{where}")
    return list(dict.fromkeys(lines))
