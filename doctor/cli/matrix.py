"""`attn-doctor matrix`: backends x features of one environment."""

from __future__ import annotations

import typer

from doctor.diagnosis.examine import examine
from doctor.report.matrix import renderer
from doctor.rulebook.matrix import matrices
from doctor.rulebook.rulebook import load_rulebook

from .options import (
    Color,
    FactFiles,
    Formats,
    Gpu,
    Model,
    Output,
    Python,
    Requirements,
    Rules,
    Settings,
    SitePackages,
    WorkloadFile,
)
from .output import Screen, deliver, destinations
from .request import TargetOptions, request_of

app = typer.Typer(rich_markup_mode="rich")


@app.command("matrix")
def matrix(
    python: Python = None,
    site_packages: SitePackages = None,
    facts: FactFiles = None,
    requirements: Requirements = None,
    gpu: Gpu = None,
    settings: Settings = None,
    rules: Rules = None,
    model: Model = None,
    workload: WorkloadFile = None,
    formats: Formats = None,
    output: Output = None,
    color: Color = "auto",
) -> int:
    """Show which backends serve which features (head dims, dtypes, masks, layouts) in this environment."""
    outputs = [(renderer(item.format), item) for item in destinations(formats, output)]
    target = TargetOptions.of(python, site_packages, facts, requirements, gpu, settings, rules, model, workload)
    request = request_of(target)
    rulebook = load_rulebook((*request.defaults.rules, *request.rules))
    found = matrices(rulebook, examine(request, rulebook).facts)
    for render, item in outputs:
        deliver(render, found, item.file, Screen(color=color))
    return 0
