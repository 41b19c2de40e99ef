"""`attn-doctor check`: will this job's attention work here, and if not, why and what helps."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from doctor.diagnosis.judge import TOOL
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import DRIFT_LIMIT
from doctor.diagnosis.watch import rulebook_of
from doctor.errors import DoctorError, NoDiagnosis
from doctor.model import Report
from doctor.report.brief import added
from doctor.report.formats import Renderer, renderer
from doctor.util.printable import printable

from .answer import Answer, reports
from .options import KERNEL_TIMEOUT, Baseline, Code, Drift, DriftLimit, FailOn, RunKernels, Timeout
from .output import Destination, deliver, exit_code, write
from .request import TargetOptions, examines, project_request_of

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("check")
@examines(paths=True)
@reports()
def check(
    target: TargetOptions,
    answer: Answer,
    code: Code = None,
    drift: Drift = True,
    drift_limit: DriftLimit = DRIFT_LIMIT,
    run: RunKernels = True,
    timeout: Timeout = KERNEL_TIMEOUT,
    fail_on: FailOn = None,
    baseline: Baseline = None,
) -> int:
    """Check whether the attention of this job works here; explain what does not, and how to fix it."""
    outputs, screen = [(renderer(item.format, "diagnosis"), item) for item in answer.outputs], answer.screen
    request = project_request_of(
        target,
        whole=True,
        fixes=True,
        thorough=False,
        costs=screen.verbose or any(item.format != "text" for item in answer.outputs),
        run=run,
        timeout=timeout,
        baseline=baseline,
        drift=drift,
        drift_limit=drift_limit,
        code=tuple(code or ()),
    )
    text = next((item for item in outputs if item[1] == Destination("text", None)), None)
    before: list[Report] = []
    try:
        with screen.working("checking") as progress:

            def show(verdict: Report) -> None:
                before.append(verdict)
                with progress.paused():
                    deliver(renderer("text", "diagnosis"), verdict, None, screen)

            report = diagnose(request, progress.step, on_verdict=show if text is not None else None)
    except Exception as problem:
        _write_failure(outputs, problem)
        raise
    if any(item.format == "html" for _, item in outputs):  # the one format with room for heat maps
        from doctor.rulebook.matrix import with_matrices

        report = with_matrices(rulebook_of(request), report)
    for render, item in outputs:
        if before and item == Destination("text", None):
            deliver(lambda content, style: added(content, before[0], style), report, None, screen)
        else:
            deliver(render, report, item.file, screen, commands=item.format == "github")
    return exit_code(report, fail_on or request.defaults.fail_on or "error")


def _write_failure(outputs: Sequence[tuple[Renderer, Destination]], problem: Exception) -> None:
    """Write a valid SARIF file also where no diagnosis could be made, which an upload step expects."""
    if isinstance(problem, DoctorError) and problem.exit_code != NoDiagnosis.exit_code:
        return
    hint = problem.hint if isinstance(problem, DoctorError) else None
    message = problem.message if isinstance(problem, DoctorError) else f"{type(problem).__name__}: {problem}"
    for _, item in outputs:
        if item.format == "sarif":
            from doctor.report.sarif import no_diagnosis

            write(no_diagnosis(TOOL, printable(" ".join(message.split())), hint), item.file)
