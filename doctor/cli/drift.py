"""`attn-doctor drift`: uses between installed packages that the installed callee does not answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from doctor.drift.download import fetch_all, parse_pin
from doctor.drift.findings import DriftReport
from doctor.drift.pipeline import DriftRequest, analyze
from doctor.errors import DoctorError, NoDiagnosis
from doctor.report.drift import as_json, as_text
from doctor.sources.probes.locate import find_target
from doctor.util.cache_file import cache_folder

from .options import FailOn, Output, Quiet
from .output import Screen, write

JOBS, MOST_JOBS = 2, 16
TARGET = "Target"

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("drift")
def drift(
    python: Annotated[
        str | None, typer.Option(metavar="PATH", rich_help_panel=TARGET, help="Interpreter of another environment.")
    ] = None,
    site_packages: Annotated[
        str | None, typer.Option(metavar="DIR", rich_help_panel=TARGET, help="An unpacked tree of packages.")
    ] = None,
    code: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", rich_help_panel=TARGET, help="A folder of your own code. Repeatable."),
    ] = None,
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
    formats: Annotated[
        Literal["text", "json"], typer.Option("--format", metavar="FORMAT", help="text or json.")
    ] = "text",
    every: Annotated[bool, typer.Option("--all", help="Also list notes: missing models, uncertain uses.")] = False,
    output: Output = None,
    fail_on: FailOn = None,
    quiet: Quiet = False,
) -> int:
    """Find calls between installed packages that the installed callee does not answer, from the sources alone."""
    if not 1 <= jobs <= MOST_JOBS:
        raise DoctorError(f"`--jobs {jobs}` is out of range", f"1 to {MOST_JOBS}")
    target = find_target(python, site_packages)
    if not target.site_dirs and not against:
        raise NoDiagnosis("the target has no folder of installed packages", "name one with `--site-packages DIR`")
    configs = tuple(map(Path, model or ()))
    for config in configs:
        if not config.exists():
            raise DoctorError(f"`{config}` does not exist")
    pins = [parse_pin(item) for item in against or ()]
    with Screen(quiet=quiet).working("reading packages") as progress:
        request = DriftRequest(
            tuple(Path(item) for item in target.site_dirs),
            tuple(Path(item) for item in code or ()),
            configs,
            fetch_all(pins, progress.step),
            None if context_parallel is None else context_parallel == "yes",
            tuple(caller or ()),
            tuple(callee or ()),
            None if no_cache else cache_folder("drift"),
            jobs,
        )
        report = analyze(request, progress.step)
    write(json.dumps(as_json(report), indent=2) + "\n" if formats == "json" else as_text(report, every), output)
    return _exit_code(report, fail_on or "error")


def _exit_code(report: DriftReport, fail_on: str) -> int:
    levels = ["error", "warning", "note"]
    if fail_on == "never":
        return 0
    counted = levels[: levels.index(fail_on) + 1]
    return int(any(item.severity.value in counted for item in report.findings))
