"""`attn-doctor explain`: a log or traceback → the known cause and its fix."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from doctor.diagnosis.diagnosis_input import DiagnosisInput
from doctor.diagnosis.examine import InputCache, examine, with_job
from doctor.diagnosis.logs.explain import LogExplainer
from doctor.diagnosis.logs.source import LogSource, open_log
from doctor.errors import DoctorError
from doctor.model import Facts
from doctor.report.explanation import as_json, as_text
from doctor.report.log_model import LogReport
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.signatures import load_log_rules

from .options import (
    OUTPUT,
    Color,
    FactFiles,
    Gpu,
    Model,
    Output,
    Python,
    Quiet,
    Requirements,
    Rules,
    Settings,
    SitePackages,
    Verbose,
    WorkloadFile,
)
from .output import Screen, write
from .request import TargetOptions, request_of

app = typer.Typer(rich_markup_mode="rich")

LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option(
        "--format", rich_help_panel=OUTPUT, metavar="FORMAT", show_default="text",
        help="text, or json: one line for each log.",
    ),
]  # fmt: skip


@app.command("explain")
def explain(
    logs: Annotated[list[str], typer.Argument(metavar="FILE", help="Logs, also .gz .zst .xz; `-` reads stdin.")],
    python: Python = None,
    site_packages: SitePackages = None,
    facts: FactFiles = None,
    requirements: Requirements = None,
    gpu: Gpu = None,
    settings: Settings = None,
    rules: Rules = None,
    model: Model = None,
    workload: WorkloadFile = None,
    formats: LogFormat = "text",
    output: Output = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    color: Color = "auto",
) -> int:
    """Name the known cause behind the error in a log, and its fix; exit with 1 if one was found."""
    target = TargetOptions.of(python, site_packages, facts, requirements, gpu, settings, rules, model, workload)
    screen = Screen(verbose, quiet, color)
    explainer = explainer_of(target)
    style = screen.style(to_file=output not in (None, "-"))
    answers: list[str] = []
    found = False
    unread: list[DoctorError] = []
    for name in logs:
        try:
            report = explain_one(explainer, name)
        except DoctorError as problem:
            unread.append(problem)
            continue
        found = found or bool(report.diagnosis)
        answers.append(as_json(report) if formats == "json" else as_text(report, style))
    write("".join(answers) if formats == "json" else "\n".join(answers), output)
    if unread:
        raise DoctorError("; ".join(problem.message for problem in unread[:3]), unread[0].hint)
    return int(found)


def explain_one(explainer: LogExplainer, name: str) -> LogReport:
    """Return what is known of one log."""
    source = open_log(name, sys.stdin.buffer)
    try:
        return explainer.explain(source)
    finally:
        source.close()


def explain_output(blocks: Iterator[bytes], notes: list[str], target: TargetOptions, screen: Screen) -> str | None:
    """Return what is known of the output of a command, as text; None where nothing is and quiet is wanted."""
    report = explainer_of(target).explain(LogSource("the output of the command", blocks, notes))
    if screen.quiet and not report.diagnosis:
        return None
    return as_text(report, screen.style(to_file=True))


def explainer_of(target: TargetOptions) -> LogExplainer:
    """Return the rules, with the facts of the target if one is named; a log alone needs no environment."""
    rulebook = load_rulebook(target.rules)
    examined: DiagnosisInput | None = None
    if target.python or target.site_packages or target.facts or target.requirements:
        examined = examine(request_of(target), rulebook)
    elif target.given():
        request = request_of(target)
        examined = with_job(DiagnosisInput(Facts()), request, InputCache(rulebook, request.held))
    return LogExplainer(rulebook, load_log_rules(target.rules), examined)
