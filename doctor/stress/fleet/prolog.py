"""Whether a node may take jobs: no finding, no difference from a good node, and no GPU missing that is expected."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from doctor.diagnosis.comparison import compare_reports
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.diagnosis.watch import rulebook_of
from doctor.model import SEVERITIES, Facts, Report
from doctor.report.comparison import difference_line
from doctor.report.comparison_model import DiffArea
from doctor.sources.snapshot import read_facts

#: What must be the same on every node; variables differ from job to job.
_OF_MACHINE = ("gpu.all", "gpu.count")
COMPARED = (DiffArea.LIBRARY, DiffArea.DRIVER, DiffArea.GPU, DiffArea.FILE)


class Expectation(NamedTuple):
    """How many GPUs a node must have, and what says so."""

    number: int
    source: str


class NodeVerdict(NamedTuple):
    """Whether a node may take jobs, why not in one line, and what is to be said in any case."""

    good: bool
    reason: str
    warning: str = ""


def prolog_verdict(
    request: Request, like: str | None, fail_on: str, *, strict: bool = False, environ: Mapping[str, str] = os.environ
) -> NodeVerdict:
    """Judge this node; `like` is a snapshot of a good one. DoctorError where no diagnosis can be made.

    A missing GPU is a warning, and with `strict` the end.
    """
    report = diagnose(request)
    limit = len(SEVERITIES) if fail_on == "never" else SEVERITIES.index(fail_on)
    found = [item for item in report.findings if fail_on != "never" and item.severity.rank <= limit]
    good = read_facts(Path(like)) if like is not None else None
    missing = missing_gpus(report.facts, expected_gpus(request, good, environ))
    warning = f"warning: {missing}" if missing else ""
    if found:
        return NodeVerdict(False, f"{found[0].severity} {found[0].rule}: {found[0].message}", warning)
    if missing and strict:
        return NodeVerdict(False, f"error: {missing}")
    if good is None:
        return NodeVerdict(True, "no finding", warning)
    rulebook = rulebook_of(request)
    other = Report(report.tool, report.rulebook, _machine(good), (), (), (), (), {}, target=str(like))
    own = Report(report.tool, report.rulebook, _machine(report.facts), (), (), (), (), {})
    comparison = compare_reports(rulebook, (str(like), "this node"), other, own)
    differing = [item for item in comparison.differences if item.known and item.area in COMPARED]
    if differing:
        text = "; ".join(difference_line(item) for item in differing[:4])
        return NodeVerdict(False, f"differs from `{like}` (A): {text}", warning)
    return NodeVerdict(True, f"no finding, and like `{like}`", warning)


def expected_gpus(request: Request, good: Facts | None, environ: Mapping[str, str]) -> Expectation:
    """Return how many GPUs are expected: what a setting states, else the most that Slurm, a good node or `--gpu` name.

    Where nothing names one: one GPU, as a training job needs it.
    """
    stated = dict(item.partition("=")[::2] for item in request.settings)
    if (text := stated.get("gpu.count", "").strip()).isdigit():
        return Expectation(int(text), "--set gpu.count")
    found = [Expectation(1, "--gpu")] if request.gpu else []
    if count := _indices(environ.get("SLURM_JOB_GPUS", "")):
        found.append(Expectation(count, "SLURM_JOB_GPUS"))
    if (text := environ.get("SLURM_GPUS_ON_NODE", "")).isdigit() and int(text):
        found.append(Expectation(int(text), "SLURM_GPUS_ON_NODE"))
    if good is not None and (kept := _count(good)):
        found.append(Expectation(kept, "--like"))
    return max(found, key=lambda item: item.number, default=Expectation(1, "default; `--set gpu.count=0`: none"))


def missing_gpus(facts: Facts, expected: Expectation) -> str | None:
    """Return what is wrong where fewer GPUs are seen than expected; None where none is missing."""
    count = _count(facts)
    if (count or 0) >= expected.number:
        return None
    wanted = f"{expected.number} GPU{'s' if expected.number > 1 else ''} expected ({expected.source})"
    why = next((f": {facts[key].problem}" for key in _OF_MACHINE if key in facts and facts[key].problem), "")
    return f"{wanted}, {count or 'none'} found{why}"


def _count(facts: Facts) -> int | None:
    """Return the GPUs of the machine, visible to a job or not; None if unknown."""
    values = [facts[key].value if key in facts else None for key in _OF_MACHINE]
    if isinstance(values[0], (list, tuple)):
        return len(values[0])
    return int(values[1]) if isinstance(values[1], int) else None


def _indices(text: str) -> int:
    """Return how many GPUs a list of Slurm names: `0,1,4-7`."""
    count = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        count += max(0, int(last) - int(first) + 1) if first.isdigit() and last.isdigit() else 1
    return count


def _machine(facts: Facts) -> Facts:
    return Facts(fact for key, fact in facts.items() if not key.startswith("workload."))
