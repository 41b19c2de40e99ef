"""`attn-doctor drift`: uses between installed packages that the installed callee does not answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from doctor.diagnosis.api_drift import context_parallel_in
from doctor.diagnosis.watch import watch_of
from doctor.drift.download import fetch_all, parse_pin
from doctor.drift.findings import DriftReport, Notice
from doctor.drift.pipeline import DriftRequest, analyze
from doctor.errors import DoctorError, NoDiagnosis
from doctor.report.drift import as_json, as_text
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.probes.locate import find_target
from doctor.sources.project.config import Defaults
from doctor.sources.watch import Watch
from doctor.sources.workload.files import split_part
from doctor.sources.workload.recipes import read_job
from doctor.util.cache_file import cache_folder

from .answer import Answer, reports
from .options import TARGET, Code, FailOn, Python, SitePackages
from .request import TargetOptions, project_request_of

JOBS, MOST_JOBS = 2, 16

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("drift")
@reports("drift", "text", "json")
def drift(
    answer: Answer,
    python: Python = None,
    site_packages: SitePackages = None,
    code: Code = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONFIG",
            rich_help_panel=TARGET,
            help="A config.json: check the Python files next to it. Repeatable.",
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME==VERSION",
            rich_help_panel=TARGET,
            help="Check this release instead of the installed one; fetches its sources with pip. Repeatable.",
        ),
    ] = None,
    caller: Annotated[
        list[str] | None, typer.Option(metavar="NAME", rich_help_panel=TARGET, help="Only this caller. Repeatable.")
    ] = None,
    callee: Annotated[
        list[str] | None, typer.Option(metavar="NAME", rich_help_panel=TARGET, help="Only this callee. Repeatable.")
    ] = None,
    context_parallel: Annotated[
        Literal["yes", "no"] | None,
        typer.Option(
            metavar="YES|NO",
            rich_help_panel=TARGET,
            help="Whether the workload uses context parallelism (default: unknown).",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Processes; each needs up to 600 MB.")] = JOBS,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Read all sources again.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Also list notes: missing models, uncertain uses.")] = False,
    fail_on: FailOn = None,
) -> int:
    """Find calls between installed packages that the installed callee does not answer, from the sources alone."""
    if not 1 <= jobs <= MOST_JOBS:
        raise DoctorError(f"`--jobs {jobs}` is out of range", f"1 to {MOST_JOBS}")
    request = project_request_of(TargetOptions(python=python, site_packages=site_packages))
    defaults = request.defaults
    if request.declared and not against:
        raise NoDiagnosis(
            f"the project is declared in {', '.join(request.declared)}, and no sources are installed there",
            "name the installed environment: `attn-doctor drift --python PATH`",
        )
    target = find_target(python, site_packages)
    if not target.site_dirs and not against:
        raise NoDiagnosis("the target has no folder of installed packages", "name one with `--site-packages DIR`")
    named = model or defaults.models
    configs = tuple(Path(split_part(name)[0]) for name in named)
    for config in configs:
        if not config.exists():
            raise DoctorError(f"`{config}` does not exist")
    pins = [parse_pin(item) for item in against or ()]
    rulebook = load_rulebook((*defaults.rules, *request.rules))
    with answer.screen.working("reading packages") as progress:
        work = DriftRequest(
            tuple(Path(item) for item in target.site_dirs),
            rulebook.stack,
            tuple(Path(item) for item in code or ()),
            configs,
            fetch_all(pins, progress.step),
            _context_parallel(defaults, watch_of(rulebook)) if context_parallel is None else context_parallel == "yes",
            tuple(caller or ()),
            tuple(callee or ()),
            None if no_cache else cache_folder("drift"),
            jobs,
        )
        report = analyze(work, progress.step)
    report = _without_ignored(report, defaults.ignored)
    answer.give(
        {
            "text": lambda style: as_text(report, every),
            "json": lambda style: json.dumps(as_json(report), indent=2) + "\n",
        }
    )
    return _exit_code(report, fail_on or defaults.fail_on or "error")


def _without_ignored(report: DriftReport, ignored: Mapping[str, str]) -> DriftReport:
    """Return the report without the codes that the project ignores, and a notice for each that was found."""
    silent = sorted({item.code for item in report.findings if item.code in ignored})
    notices = [Notice(code, f"is ignored by this project: {ignored[code]}") for code in silent]
    findings = tuple(item for item in report.findings if item.code not in silent)
    return report._replace(findings=findings, notices=(*notices, *report.notices))


def _context_parallel(defaults: Defaults, watch: Watch) -> bool | None:
    """Return whether the project's job uses context parallelism, None where it has none."""
    job = read_job(Path(defaults.workload), watch) if defaults.workload else defaults.workload_facts
    return context_parallel_in(job)


def _exit_code(report: DriftReport, fail_on: str) -> int:
    levels = ["error", "warning", "note"]
    if fail_on == "never":
        return 0
    counted = levels[: levels.index(fail_on) + 1]
    return int(any(item.severity.value in counted for item in report.findings))
