"""Where a finding of several cases is found, and what differs there: said once, for every format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from doctor.model import Case, Evidence, Fact, Facts, Finding, Report

from .summary import alone, library_title, title_of, verdict

MOST_MESSAGES = 3  # of one finding, where cases differ and room is short


class Row(NamedTuple):
    """Cases of one environment and job that end alike, in the words of a table."""

    environment: str
    gpus: str
    workload: str
    look: str
    verdict: str
    findings: tuple[str, ...]
    backends: str


def label(case: Case) -> str:
    """One case by its name: `h100 · llama-3-8b`."""
    return " · ".join(filter(None, (case.gpu, case.workload))) or case.environment


def name_of(case: Case) -> str:
    """One case with its environment, as no other of the report is called."""
    return " · ".join(filter(None, (case.environment, case.gpu, case.workload)))


def where(report: Report, numbers: Sequence[int]) -> str:
    """The cases with these numbers, as short as they can be said: `a100, h100 · llama-3-8b, deepseek-v3`."""
    if not numbers:
        return ""
    if len(numbers) == len(report.cases):
        return f"all {len(numbers)} cases" if len(numbers) > 1 else label(report.cases[numbers[0]])
    environments = list(dict.fromkeys(case.environment for case in report.cases))
    parts = []
    for environment in environments:
        cases = [report.cases[number] for number in numbers if report.cases[number].environment == environment]
        if not cases:
            continue
        blocks = "; ".join(_block(report, cases, environment))
        parts.append(f"{environment}: {blocks or 'every case'}" if len(environments) > 1 else blocks)
    return "; ".join(parts)


def _block(report: Report, cases: Sequence[Case], environment: str) -> list[str]:
    """GPUs with the same jobs are named together; an axis of which nothing is missing is not spelled out."""
    every = [case for case in report.cases if case.environment == environment]
    all_gpus, all_jobs = _names(case.gpu for case in every), _names(case.workload for case in every)
    jobs_of: dict[str | None, tuple[str, ...]] = {}
    for gpu in dict.fromkeys(case.gpu for case in cases):
        jobs_of[gpu] = _names(case.workload for case in cases if case.gpu == gpu)
    parts = []
    for jobs in dict.fromkeys(jobs_of.values()):
        gpus = _names(gpu for gpu, own in jobs_of.items() if own == jobs)
        named_gpus = "every GPU" if gpus == all_gpus and len(gpus) > 2 else ", ".join(gpus)
        named_jobs = "every job" if jobs == all_jobs and len(jobs) > 2 else ", ".join(jobs)
        parts.append(" · ".join(filter(None, (named_gpus, named_jobs))))
    return [text for text in parts if text]


def _names(given: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in given if name))


def messages(report: Report, finding: Finding) -> list[tuple[str, tuple[int, ...]]]:
    """What the finding says, and in which cases where it does not say the same in all."""
    parts: dict[str, list[int]] = {}
    for number in finding.cases:
        for same in _same(report, number, finding):
            parts.setdefault(same.message, []).append(number)
    if len(parts) < 2:
        return [(finding.message, finding.cases)]
    return [(message, tuple(numbers)) for message, numbers in parts.items()]


def message_of(report: Report, finding: Finding) -> str:
    """Where it is found and what it says there, in one paragraph."""
    if not finding.cases:
        return finding.message
    said = messages(report, finding)
    parts = [f"on {where(report, numbers)}: {text}" for text, numbers in said[:MOST_MESSAGES]]
    more = [f"and {len(said) - MOST_MESSAGES} similar messages"] if len(said) > MOST_MESSAGES else []
    return "; ".join(parts + more)


def readings(report: Report, finding: Finding, evidence: Evidence) -> list[tuple[Fact, tuple[int, ...]]]:
    """The facts behind one piece of evidence: one, or what each case found where they differ."""
    parts: dict[str, tuple[Fact, list[int]]] = {}
    for number in finding.cases:
        for same in _same(report, number, finding):
            for item in same.evidence:
                if item.key == evidence.key:
                    found = parts.setdefault(repr(item.fact.value), (item.fact, []))
                    if number not in found[1]:
                        found[1].append(number)
    if len(parts) < 2:
        return [(evidence.fact, finding.cases)]
    return [(fact, tuple(numbers)) for fact, numbers in parts.values()]


def _same(report: Report, number: int, finding: Finding) -> list[Finding]:
    own = report.cases[number].findings
    return [item for item in own if (item.rule, item.severity) == (finding.rule, finding.severity)]


def rows(report: Report) -> list[Row]:
    """The table of cases: a row for each environment, job and ending, the GPUs that share it in one cell."""
    grouped: dict[tuple[str, ...], list[str]] = {}
    made: dict[tuple[str, ...], Row] = {}
    for case in report.cases:
        own = alone(report, case)
        look, word, _ = verdict(own)
        row = Row(
            case.environment, "", case.workload or "", look, word,
            tuple(dict.fromkeys(item.rule for item in own.findings)), backends_of(case),
        )  # fmt: skip
        key = (row.environment, row.workload, row.verdict, " ".join(row.findings), row.backends)
        made.setdefault(key, row)
        grouped.setdefault(key, []).append(case.gpu or "")
    parts = [row._replace(gpus=", ".join(filter(None, grouped[key]))) for key, row in made.items()]
    order = {
        name: number for number, name in enumerate(dict.fromkeys((row.environment, row.workload) for row in parts))
    }
    return sorted(parts, key=lambda row: order[row.environment, row.workload])


def backends_of(case: Case) -> str:
    """Which backend of each library runs in a case, or why none does."""
    parts = []
    for item in case.predictions:
        library = library_title(item.library)
        if item.import_error is not None and item.import_error.holds:
            parts.append(f"{library} does not import")
        elif not item.could_tell:
            parts.append(f"{library}: unknown")
        elif item.selected is None:
            parts.append(f"{library}: none")
        elif item.fails_at_run is not None:
            parts.append(f"{title_of(item, item.selected)} fails")
        else:
            parts.append(title_of(item, item.selected))
    return ", ".join(parts)


def facts_behind(report: Report, finding: Finding) -> Facts:
    """The facts of a finding: of several cases, those of the first in which it was found."""
    return report.cases[finding.cases[0]].facts if finding.cases else report.facts
