"""`attn-doctor matrix`: backends x features of one environment."""

from __future__ import annotations

import typer

from doctor.diagnosis.examine import examine
from doctor.diagnosis.watch import rulebook_of
from doctor.report.matrix import renderer
from doctor.rulebook.matrix import matrices

from .answer import Answer, reports
from .output import deliver
from .request import TargetOptions, examines, project_request_of

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("matrix")
@examines()
@reports()
def matrix(
    target: TargetOptions,
    answer: Answer,
) -> int:
    """Show which backends serve which features (head dims, dtypes, masks, layouts) in this environment.

    Formats: text, json.
    """
    outputs = [(renderer(item.format), item) for item in answer.outputs]
    request = project_request_of(target)
    rulebook = rulebook_of(request)
    found = matrices(rulebook, examine(request, rulebook).facts)
    for render, item in outputs:
        deliver(render, found, item.file, answer.screen)
    return 0
