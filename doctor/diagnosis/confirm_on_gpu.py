"""Run the kernels of the findings and of the job itself on the GPU of this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from doctor.errors import NoDiagnosis
from doctor.model import Confirmation, Fact, Finding, Prediction
from doctor.rulebook.evaluate import Assessment, evaluate, with_backend_findings
from doctor.rulebook.rulebook import Rulebook
from doctor.runner.batch import KernelRunner
from doctor.runner.run import PrewarmedProcess
from doctor.util.resources import programs_dir

from .confirm import Judged, confirm, job_of, words_of
from .diagnosis_input import DiagnosisInput
from .request import Request

#: Findings and predictions after the runs, with the job's own runs, notes and seconds by stage.
AfterRuns = tuple[
    tuple[Finding, ...], tuple[Confirmation, ...], tuple[str, ...], tuple[Prediction, ...], Mapping[str, float]
]


def confirm_on_gpu(
    found: tuple[Finding, ...],
    assessment: Assessment,
    rulebook: Rulebook,
    python: str,
    examined: DiagnosisInput,
    request: Request,
    on_step: Callable[[str], None],
    ahead: PrewarmedProcess | None,
) -> AfterRuns:
    """Return what kernels in the interpreter `python` say; the findings as they are where no kernel can be stored."""
    known = assessment.known

    def reassess(changes: Mapping[str, Any]) -> Judged:
        facts = (Fact(f"workload.{key}", value, "as the kernel ran it") for key, value in changes.items())
        smaller = evaluate(rulebook, examined.facts.with_(*facts))
        fires = frozenset(finding.rule for finding in with_backend_findings(rulebook, smaller))
        return Judged(fires, smaller.predictions)

    job = job_of(known, words_of(known))
    ahead = ahead if ahead is not None and ahead.python == python else None
    bench = KernelRunner(python, request.timeout, programs_dir(), ahead, examined.variables)
    try:
        return confirm(found, known, assessment.predictions, job, bench, on_step, reassess)
    except NoDiagnosis as problem:  # a file system without room for the kernels hides no finding
        return found, (), (f"no kernel was run: {problem.message}",), assessment.predictions, {}
