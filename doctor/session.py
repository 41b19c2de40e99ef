"""The whole pipeline: facts → judgement → confirmation → fixes → report. Read this first."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import __version__
from .config import Defaults
from .errors import DoctorError, NoDiagnosis
from .evaluate import Assessment, evaluate
from .foretold import foretold
from .model import ABSENT, Confirmation, Finding, Fix, Report
from .patient import Patient, Request, examine
from .rulebook import load_rulebook

if TYPE_CHECKING:
    from .solve.limits import Limits

__all__ = ["TOOL", "Patient", "Request", "diagnose", "examine"]

TOOL = f"attn-doctor {__version__}"


def diagnose(
    request: Request, tell: Callable[[str], None] = lambda text: None, patient: Patient | None = None
) -> Report:
    """One request, answered. `tell` hears what is under way; a `patient` who was examined already is taken as he is."""
    clock = Clock()
    rulebook = load_rulebook((*request.defaults.rules, *request.rules))
    clock.lap("rules")
    patient = patient or examine(request, rulebook)
    clock.lap("facts")
    assessment = evaluate(rulebook, patient.facts)
    watched = (f"{name}.version" for name in rulebook.watched_distributions)
    if not assessment.findings and not any(key in patient.facts for key in watched):
        raise NoDiagnosis(
            "nothing of the attention stack is installed there",
            "name the training environment with `--python PATH`, `--site-packages DIR` or `--facts FILE`",
        )
    found, to_fix, told = foretold(rulebook, assessment), assessment, patient.notes
    if patient.declaration is not None and patient.declaration.open:
        from .declared.admitted import judge_open

        assessment, found, to_fix, more = judge_open(rulebook, patient.facts, patient.declaration, assessment)
        told = (*told, *more)
    clock.lap("evaluate")
    findings, runs, notes = _confirm(found, assessment, patient, request, tell)
    clock.lap("kernels")
    findings, silenced, ignored = _without_ignored(findings, request.defaults)
    fixes: tuple[Fix, ...] = ()
    limits = _limits(request, assessment)
    if request.fixes and to_fix.findings:
        from .solve import solve

        fixes = tuple(solve(rulebook, to_fix.known.given, to_fix, limits=limits, installed=patient.requirements))
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
        notes=(*told, *notes, *ignored, *request.defaults.notes),
        unread=patient.unread,
    )


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


def _limits(request: Request, assessment: Assessment) -> Limits | None:
    """What the user wants to keep; a name that is neither installed nor on record is most likely misspelt."""
    if not (request.hold or request.allow or request.constraints):
        return None
    from .release_index import load_index
    from .solve import distributions, platform_of
    from .solve.limits import limits_of, unknown_names

    known = assessment.known
    limits = limits_of(request.hold, request.allow, request.constraints, platform_of(known))
    installed, packages = distributions(known.given), load_index().packages
    strangers = unknown_names((*request.hold, *request.allow), (*installed, *packages))
    if strangers:
        from .vocabulary import nearest

        hint = nearest(strangers[0], (*installed, *packages))
        raise DoctorError(f"`{strangers[0]}` is neither installed there nor on record", hint)
    return limits


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
