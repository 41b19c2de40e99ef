"""`attn-doctor diff`: what differs between two environments, and what that changes."""

from __future__ import annotations

from typing import Annotated

import typer

from doctor.diagnosis.comparison import compare_environments
from doctor.model import SEVERITIES
from doctor.report.comparison_model import Comparison, DiffSide
from doctor.report.formats import renderer

from .answer import Answer, reports
from .options import FailOn, Gpu, Model, Rules, Settings, WorkloadFile
from .output import deliver, require_all_read
from .request import TargetOptions, request_of

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

_SIDE = (
    "A snapshot, interpreter, environment folder, unpacked tree, project folder or lock file; "
    "`python:`, `facts:`, `requirements:` or `site-packages:` in front decides what it is."
)


@app.command("diff")
@reports()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    answer: Answer,
    gpu: Gpu = None,
    settings: Settings = None,
    rules: Rules = None,
    model: Model = None,
    workload: WorkloadFile = None,
    fail_on: FailOn = None,
) -> int:
    """Compare two environments: what differs, which findings and backends change, and what causes it.

    Formats: text, json, markdown, html. Exit code 1 if B has a finding at or above --fail-on
    that A does not have.
    """
    outputs, screen = [(renderer(item.format, "comparison"), item) for item in answer.outputs], answer.screen
    request = request_of(TargetOptions.of(None, None, None, None, gpu, settings, rules, model, workload))
    with screen.working("comparing") as progress:
        comparison = compare_environments(request, (a, b), progress.step)
    for render, item in outputs:
        deliver(render, comparison, item.file, screen)
    require_all_read((*comparison.a.unread, *comparison.b.unread))
    return _exit_code(comparison, fail_on or request.defaults.fail_on or "error")


def _exit_code(comparison: Comparison, fail_on: str) -> int:
    """Return 1 when B has a finding at or above `fail_on` that A does not have."""
    if fail_on == "never":
        return 0
    limit = SEVERITIES.index(fail_on)
    new = (change.finding for change in comparison.findings if change.side == DiffSide.B)
    return int(any(finding.severity.rank <= limit for finding in new))
