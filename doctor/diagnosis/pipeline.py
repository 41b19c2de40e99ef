"""The whole pipeline: facts → judgement → confirmation → fixes → report. Read this first."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from doctor._version import __version__
from doctor.errors import DoctorError, NoDiagnosis
from doctor.model import ABSENT, Confirmation, Fact, Finding, Fix, NoFix, Prediction, Report
from doctor.rulebook.evaluate import Assessment, evaluate
from doctor.rulebook.foretold import foretold
from doctor.rulebook.rulebook import Rulebook, load_rulebook

from .examine import Patient, Request, ask_ahead, examine
from .suppressions import settled

if TYPE_CHECKING:
    from doctor.rulebook.resolver import Known
    from doctor.rulebook.shared import Grounds
    from doctor.runner.run import HeadStart
    from doctor.solver.constraints import Limits

    from .version_ranges import Ranges

__all__ = ["TOOL", "Patient", "Request", "diagnose", "examine", "judged"]

TOOL = f"attn-doctor {__version__}"

#: Findings and predictions as they stand after the runs, with the job's own runs, notes and seconds by stage.
_AsRun = tuple[
    tuple[Finding, ...], tuple[Confirmation, ...], tuple[str, ...], tuple[Prediction, ...], Mapping[str, float]
]


@dataclass(frozen=True)
class Verdict:
    """What the rulebook says of one case."""

    assessment: Assessment
    found: tuple[Finding, ...]
    to_fix: Assessment  # of ranges: what an installer would take today
    notes: tuple[str, ...] = ()


def diagnose(
    request: Request, tell: Callable[[str], None] = lambda text: None, patient: Patient | None = None
) -> Report:
    """One request, answered. `tell` hears what is under way; a `patient` who was examined already is taken as he is."""
    clock = Clock()
    if request.several:
        from .cases import diagnose_all

        rulebook = load_rulebook((*request.defaults.rules, *request.rules))
        clock.lap("rules")
        return diagnose_all(request, rulebook, clock, tell)
    ahead = _head_start(request) if patient is None else None
    try:
        return _diagnose(request, tell, patient, clock, ahead)
    finally:
        if ahead is not None:
            ahead.close()


def _diagnose(
    request: Request, tell: Callable[[str], None], patient: Patient | None, clock: Clock, ahead: HeadStart | None
) -> Report:
    rulebook, patient = _read(request, patient, clock)
    verdict = judged(rulebook, patient)
    assessment, to_fix = verdict.assessment, verdict.to_fix
    answerable(rulebook, patient, assessment)
    clock.lap("evaluate")
    asked = _confirm(verdict.found, assessment, rulebook, patient, request, tell, ahead)
    findings, runs, notes, predictions, laps = asked
    clock.lap("kernels")
    told = settled(request, rulebook, findings, assessment.undetermined)
    fixes: tuple[Fix, ...] = ()
    hopeless: tuple[NoFix, ...] = ()
    limits = limits_of_request(request, assessment, patient)
    if request.fixes and to_fix.findings:
        from doctor.solver.solve import no_fix, solve

        given, requires = to_fix.known.given, patient.requirements
        fixes = solve(rulebook, given, to_fix, limits=limits, installed=requires, thorough=request.thorough)
        hopeless = no_fix(rulebook, given, to_fix, fixes, limits=limits, installed=requires)
        clock.lap("fixes")
    return Report(
        tool=TOOL,
        rulebook={"version": rulebook.version, "rules": len(rulebook.rules)},
        facts=patient.facts,
        findings=told.findings,
        predictions=predictions,
        fixes=tuple(fix for fix in fixes if not set(fix.resolves) <= told.silent),
        no_fix=tuple(item for item in hopeless if item.rule not in told.silent),
        undetermined=assessment.undetermined,
        timing={**clock.laps(), **laps},
        kernels_run=bool(runs) or any(finding.confirmation for finding in findings),
        runs=runs,
        notes=(*patient.notes, *verdict.notes, *notes, *told.notes),
        unread=patient.unread,
        known=told.known,
        ignored=told.ignored,
    )


def _read(request: Request, patient: Patient | None, clock: Clock) -> tuple[Rulebook, Patient]:
    """Rules and facts: while another interpreter starts and says who it is, the rules are read."""
    asked = ask_ahead(request) if patient is None else None
    try:
        rulebook = load_rulebook((*request.defaults.rules, *request.rules))
        clock.lap("rules")
        patient = patient or examine(request, rulebook, asked)
        clock.lap("facts")
    finally:
        if asked is not None:
            asked.close()
    return rulebook, patient


def judged(
    rulebook: Rulebook, patient: Patient, grounds: Grounds | None = None, ranges: Ranges | None = None
) -> Verdict:
    """The rules on these facts, and on every release that declared ranges admit.

    `grounds` and `ranges` are what the cases of one environment share.
    """
    facts = patient.facts
    assessment = evaluate(rulebook, facts) if grounds is None else grounds.evaluate(None, facts)
    found = foretold(rulebook, assessment)
    if patient.declaration is None or not patient.declaration.open:
        return Verdict(assessment, found, assessment)
    from .version_ranges import judge_open

    return Verdict(*judge_open(rulebook, facts, patient.declaration, assessment, ranges, grounds))


def answerable(rulebook: Rulebook, patient: Patient, *assessments: Assessment) -> None:
    """NoDiagnosis where there is nothing to judge."""
    watched = (f"{name}.version" for name in rulebook.watched_distributions)
    if not any(item.findings for item in assessments) and not any(key in patient.facts for key in watched):
        if patient.declaration is not None:
            raise NoDiagnosis("nothing of the attention stack is declared there", "name the files that pin torch")
        raise NoDiagnosis(
            "nothing of the attention stack is installed there",
            "name the training environment with `--python PATH`, `--site-packages DIR` or `--facts FILE`",
        )


def _confirm(
    found: tuple[Finding, ...],
    assessment: Assessment,
    rulebook: Rulebook,
    patient: Patient,
    request: Request,
    tell: Callable[[str], None],
    ahead: HeadStart | None,
) -> _AsRun:
    """What the GPU says, where there may be one and it may be asked."""
    known = assessment.known
    if not request.run or not patient.python or not _may_have_gpu(known):
        callers = any(finding.confirm for finding in found)
        gpu = patient.facts.get("gpu.sm")
        hidden = f": {gpu.problem}" if gpu is not None and gpu.problem else ""
        why = patient.why_not or f"no GPU was found{hidden}"
        notes = (f"no kernel was run: {why}",) if request.run and callers else ()
        return found, (), notes, assessment.predictions, {}
    from doctor.runner.batch import Bench
    from doctor.util.resources import kernels_dir

    from .confirm import Judged, confirm, job_of

    def reassess(changes: Mapping[str, Any]) -> Judged:
        facts = (Fact(f"workload.{key}", value, "as the kernel ran it") for key, value in changes.items())
        smaller = evaluate(rulebook, patient.facts.with_(*facts))
        fires = frozenset(finding.rule for finding in foretold(rulebook, smaller))
        return Judged(fires, smaller.predictions)

    job = job_of(known, [key for key in patient.facts if key.startswith("workload.")])
    ahead = ahead if ahead is not None and ahead.python == patient.python else None
    bench = Bench(patient.python, request.timeout, kernels_dir(), ahead)
    return confirm(found, known, assessment.predictions, job, bench, tell, reassess)


def _head_start(request: Request) -> HeadStart | None:
    """A process that imports torch while rules and facts are read: for a job on this machine, if it has a driver."""
    stated = (*(setting.partition("=")[0].strip() for setting in request.settings), *request.given)
    job = request.model or request.workload or stated or request.defaults.model or request.defaults.workload
    elsewhere = request.site_packages or request.facts or request.declared or request.gpu
    if not request.run or not job or elsewhere or any(not key.startswith("workload.") for key in stated):
        return None
    if not any(map(os.path.exists, _DRIVER)):
        return None
    from doctor.runner.batch import head_start
    from doctor.sources.probes.collect import named_interpreter

    return head_start(named_interpreter(request.python) or sys.executable)


#: What shows that a driver is there, without asking it: Linux, Linux under Windows.
_DRIVER = ("/dev/nvidiactl", "/dev/dxg")


def _may_have_gpu(known: Known) -> bool:
    """Whether a kernel is worth asking: also where there is a driver, but it tells nothing of its GPUs."""
    capability, count = known.value("gpu.sm"), known.value("gpu.count")
    if capability is not None:
        return bool(capability != ABSENT)
    if count is not None:
        return count not in (0, ABSENT)
    return known.value("driver.version") not in (None, ABSENT)


def limits_of_request(request: Request, assessment: Assessment, patient: Patient) -> Limits | None:
    """What the user wants to keep, and the project's own lines; a name that is neither installed nor on record is most
    likely misspelt.
    """
    declared = patient.declaration.asked if patient.declaration is not None else {}
    if not (request.hold or request.allow or request.constraints or declared):
        return None
    from doctor.solver.constraints import Limits, limits_of, unknown_names

    if not (request.hold or request.allow or request.constraints):
        return Limits(declared=declared)
    from doctor.packages.index import load_index
    from doctor.solver.solve import distributions, platform_of

    known = assessment.known
    limits = limits_of(request.hold, request.allow, request.constraints, platform_of(known))
    installed, packages = distributions(known.given), load_index().packages
    strangers = unknown_names((*request.hold, *request.allow), (*installed, *packages))
    if strangers:
        from doctor.facts.vocabulary import nearest

        hint = nearest(strangers[0], (*installed, *packages))
        raise DoctorError(f"`{strangers[0]}` is neither installed there nor on record", hint)
    return replace(limits, declared=declared)


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
