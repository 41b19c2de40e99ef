"""`attn-doctor snapshot`: the facts of this machine as a file that every command takes back."""

from __future__ import annotations

import json

import typer

from doctor.diagnosis.examine import examine
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.snapshot import document

from .options import (
    FactFiles,
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
from .output import require_all_read, write
from .request import TargetOptions, request_of

app = typer.Typer(rich_markup_mode="rich")


@app.command("snapshot")
def snapshot(
    python: Python = None,
    site_packages: SitePackages = None,
    facts: FactFiles = None,
    requirements: Requirements = None,
    gpu: Gpu = None,
    settings: Settings = None,
    rules: Rules = None,
    model: Model = None,
    workload: WorkloadFile = None,
    output: Output = None,
) -> int:
    """Save the facts of this machine as JSON; every command takes them back with --facts."""
    target = TargetOptions.of(python, site_packages, facts, requirements, gpu, settings, rules, model, workload)
    request = request_of(target)
    found = examine(request, load_rulebook((*request.defaults.rules, *request.rules)))
    write(json.dumps(document(found.facts), indent=2, ensure_ascii=False) + "\n", output)
    require_all_read(found.unread)
    return 0
