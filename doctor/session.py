"""The whole pipeline: facts → judgement → confirmation → fixes → report. Read this first."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from . import __version__
from .config import Defaults
from .errors import NoDiagnosis
from .evaluate import Assessment, evaluate
from .foretold import foretold
from .model import ABSENT, Confirmation, Facts, Finding, Fix, Report
from .records import dataclass, field
from .rulebook import Rulebook, load_rulebook

TOOL = f"attn-doctor {__version__}"


@dataclass(frozen=True)
class Request:
    """What the user wants to know: about which environment, which job, by which rules."""

    python: str | None = None
    site_packages: str | None = None
    facts: str | None = None
    gpu: str | None = None
    settings: tuple[str, ...] = ()
    model: str | None = None
    workload: str | None = None
    rules: tuple[str, ...] = ()
    defaults: Defaults = field(default_factory=Defaults)  # what the project says once for all
    fixes: bool = True
    run: bool = True
    timeout: float = 120.0


@dataclass(frozen=True)
class Patient:
    """What is known before any rule is asked, and the interpreter in which a kernel can be run."""

    facts: Facts
    python: str | None = None
    why_not: str = ""  # nothing can be run


def diagnose(request: Request, tell: Callable[[str], None] = lambda text: None) -> Report:
    """One request, answered. `tell` hears what is under way."""
    clock = Clock()
    rulebook = load_rulebook((*request.defaults.rules, *request.rules))
    clock.lap("rules")
    patient = examine(request, rulebook)
    clock.lap("facts")
    assessment = evaluate(rulebook, patient.facts)
    watched = (f"{name}.version" for name in rulebook.watched_distributions)
    if not assessment.findings and not any(key in patient.facts for key in watched):
        raise NoDiagnosis(
            "nothing of the attention stack is installed there",
            "name the training environment with `--python PATH`, `--site-packages DIR` or `--facts FILE`",
        )
    found = foretold(rulebook, assessment)
    clock.lap("evaluate")
    findings, runs, notes = _confirm(found, assessment, patient, request, tell)
    clock.lap("kernels")
    findings, silenced, ignored = _without_ignored(findings, request.defaults)
    fixes: tuple[Fix, ...] = ()
    if request.fixes and assessment.findings:
        from .solve import solve

        fixes = tuple(solve(rulebook, patient.facts, assessment))
        clock.lap("fixes")
    return Report(
        tool=TOOL,
        rulebook={"version": rulebook.version, "rules": len(rulebook.rules)},
        facts=patient.facts,
        findings=findings,
        predictions=assessment.predictions,
        fixes=tuple(fix for fix in fixes if not set(fix.resolves) <= silenced),
        undetermined=assessment.undetermined,
        timing=clock.laps(),
        kernels_run=bool(runs) or any(finding.confirmation for finding in findings),
        runs=runs,
        notes=(*notes, *ignored, *request.defaults.notes),
    )


def examine(request: Request, rulebook: Rulebook) -> Patient:
    """Gather the facts: the environment, then the job, then what the user says outright. Later ones win."""
    from .workload import complete_workload, lay_over, parse_settings, read_model_config, read_workload

    patient = _environment(request, rulebook)
    facts = patient.facts
    model, workload = request.model, request.workload
    if model is None and workload is None and not any(key.startswith("workload.") for key in facts):
        model, workload = request.defaults.model, request.defaults.workload
        facts = facts.with_(*request.defaults.workload_facts.values())
    if model is not None:
        facts = lay_over(facts, read_model_config(Path(model)))
    if workload is not None:
        facts = facts.with_(*read_workload(Path(workload)).values())
    said = parse_settings(request.settings)
    gpu = request.gpu or (request.defaults.gpu if facts.value("gpu.sm") in (None, ABSENT) else None)
    if gpu:
        from .probes.gpu import gpu_facts

        said = Facts(gpu_facts(gpu)).with_(*said.values())
    facts = complete_workload(facts.with_(*said.values()))
    other = next((fact for key, fact in said.items() if not key.startswith("workload.")), None)
    if patient.python and other:
        return Patient(facts, None, f"{other.source} describes another machine than this one")
    return Patient(facts, patient.python, patient.why_not)


def _environment(request: Request, rulebook: Rulebook) -> Patient:
    if request.facts is not None:
        from .facts_file import read_facts

        return Patient(read_facts(Path(request.facts)), None, "the facts come from a file")
    from .probes import Watch, collect, find_target

    target = find_target(request.python, request.site_packages)
    facts = collect(target, Watch(rulebook.watched_environment, rulebook.watched_distributions))
    return Patient(facts, target.python, "" if target.python else "a bare tree has no interpreter to run in")


def _confirm(
    found: tuple[Finding, ...], assessment: Assessment, patient: Patient, request: Request, tell: Callable[[str], None]
) -> tuple[tuple[Finding, ...], tuple[Confirmation, ...], tuple[str, ...]]:
    """What the GPU says, where there is one and it may be asked."""
    known = assessment.known
    if not request.run or not patient.python or known.value("gpu.sm") in (None, ABSENT):
        callers = any(finding.confirm for finding in found)
        why = patient.why_not or "no GPU was found"
        return found, (), (f"no kernel was run: {why}",) if request.run and callers else ()
    from .assets import kernels_dir
    from .confirm import Bench, confirm, job_of

    job = job_of(known, [key for key in patient.facts if key.startswith("workload.")])
    bench = Bench(patient.python, request.timeout, kernels_dir())
    return confirm(found, known, assessment.predictions, job, bench, tell)


def _without_ignored(
    findings: tuple[Finding, ...], defaults: Defaults
) -> tuple[tuple[Finding, ...], set[str], list[str]]:
    """The findings the project does not ignore, the ids of those it does, and a note for each."""
    silenced = {finding.rule for finding in findings} & set(defaults.ignored)
    notes = [f"{rule} is ignored by this project: {defaults.ignored[rule]}" for rule in sorted(silenced)]
    return tuple(finding for finding in findings if finding.rule not in silenced), silenced, notes


class Clock:
    """Seconds per stage."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """The stage `name` ends here."""
        now = time.perf_counter()
        self._laps[name], self._last = round(now - self._last, 4), now

    def laps(self) -> dict[str, float]:
        """Seconds of every stage and in total."""
        return {**self._laps, "total": round(time.perf_counter() - self._began, 4)}
