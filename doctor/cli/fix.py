"""`attn-doctor fix`: the smallest change that clears the findings; write it, verify it, install it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import DRIFT_LIMIT
from doctor.errors import DoctorError
from doctor.report.formats import renderer
from doctor.report.requirements import render_pins

from .answer import Answer, reports
from .options import Code, Command, Drift, DriftLimit, seconds
from .output import Destination, deliver, exit_code
from .output import write as write_out
from .request import TargetOptions, examines, project_request_of

WRITE = "Write the fix"
KEEP = "Keep as it is"
INSTALL = "Verify and apply"


class _Fix(Command):
    optional_values = {"--pin": "-", "--write": ""}  # noqa: RUF012 - never changed


app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("fix", cls=_Fix)
@examines()
@reports()
def fix(
    target: TargetOptions,
    answer: Answer,
    code: Code = None,
    drift: Drift = True,
    drift_limit: DriftLimit = DRIFT_LIMIT,
    pin: Annotated[
        str | None,
        typer.Option(
            metavar="[FILE]",
            rich_help_panel=WRITE,
            help="Write the packages as a requirements file for pip and uv; without FILE to stdout.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", rich_help_panel=WRITE, help="Overwrite FILE.")] = False,
    write: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[FILE]",
            rich_help_panel=WRITE,
            help="Edit a requirements.txt or pyproject.toml in place and keep the old one as FILE.bak; "
            "without FILE those of --requirements.",
        ),
    ] = None,
    diff: Annotated[
        bool, typer.Option("--diff", rich_help_panel=WRITE, help="Show what --write would change; write nothing.")
    ] = False,
    hold: Annotated[
        list[str] | None,
        typer.Option(metavar="PACKAGE", rich_help_panel=KEEP, help="Do not change PACKAGE. Repeatable."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="PACKAGE", rich_help_panel=KEEP, help="Change only PACKAGE. Repeatable."),
    ] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", rich_help_panel=KEEP, help="Keep to the ranges of a pip constraints file. Repeatable."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", rich_help_panel=INSTALL, help="Check with uv or pip whether the fix resolves.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", rich_help_panel=INSTALL, help="Install it into a temporary environment and check that."
        ),
    ] = False,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", rich_help_panel=INSTALL, help="Install it into the target after confirmation, and check again."
        ),
    ] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", rich_help_panel=INSTALL, help="Undo the last --apply, after confirmation.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", rich_help_panel=INSTALL, help="Continue without confirmation.")] = False,
    installer: Annotated[
        Literal["uv", "pip"] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=INSTALL,
            help="The program to use: uv or pip (default: uv, else pip).",
        ),
    ] = None,
    proof_timeout: Annotated[
        float,
        typer.Option(
            parser=seconds,
            metavar="SECONDS",
            rich_help_panel=INSTALL,
            show_default="1800",
            help="Time limit of one program of the installer.",
        ),
    ] = 1800.0,
    break_system_packages: Annotated[
        bool,
        typer.Option("--break-system-packages", rich_help_panel=INSTALL, help="Apply even to a system-managed Python."),
    ] = False,
    allow_builds: Annotated[
        bool,
        typer.Option(
            "--allow-builds",
            rich_help_panel=INSTALL,
            help="Let the resolver build sources to read what they require: runs their code.",
        ),
    ] = False,
) -> int:
    """Find the smallest change that clears the findings. Formats: text, json, shell, docker, uv, conda."""
    outputs, screen = answer
    _check(pin, force, write, diff, rollback, (*(hold or ()), *(allow or ()), *(constraint or ())), outputs)
    renders = [(renderer(item.format, "fixes"), item) for item in outputs]
    installs = dry_run or verify or apply or rollback or yes or installer or break_system_packages or allow_builds
    kept = {"hold": tuple(hold or ()), "allow": tuple(allow or ()), "constraints": tuple(constraint or ())}
    request = project_request_of(
        target, whole=not installs, fixes=True, drift=drift, drift_limit=drift_limit, code=tuple(code or ()), **kept
    )  # fmt: skip
    if not installs:
        with screen.working("checking") as progress:
            report = diagnose(request, progress.step)
        decided = None
        refused = False
    else:
        from . import fix_install as install

        options = install.InstallOptions(
            dry_run, verify, apply, rollback, yes, installer, proof_timeout, break_system_packages, allow_builds
        )
        install.check_options(options, request)
        if rollback:
            with screen.working() as progress:
                report, ended = install.taken_back(options, request, progress)
            for render, item in renders:
                deliver(render, report, item.file, screen)
            return ended
        with screen.working("checking") as progress:
            report = diagnose(request, progress.step)
            report, decided = install.proven(report, options, request, progress)
        refused = install.refused(report)
    plain = len(outputs) == 1 and outputs[0] == Destination("text", None) and report.proof is None
    if write is not None and not diff and refused:
        write_out("# no file is edited: the fix did not pass verification\n", None)
    elif write is not None or diff:
        from .fix_edit import edit

        edit(report, write or (), request.declared, (*request.defaults.rules, *request.rules), diff_only=diff)
        if pin is None and plain:
            return exit_code(report, "error")
    if pin is not None:
        if pin == "-":
            write_out(render_pins(report), None)
            if report.proof is not None:
                install.tell_proof(report)  # a proof is made by this module alone
            return exit_code(report, "error") if decided is None else decided
        write_out(render_pins(report), pin, force=force)
        screen.inform(f"wrote `{pin}`")
        if plain:
            return exit_code(report, "error")  # no other output was requested
    for render, item in renders:
        deliver(render, report, item.file, screen)
    return exit_code(report, "error") if decided is None else decided


def _check(
    pin: str | None,
    force: bool,
    write: list[str] | None,
    diff: bool,
    rollback: bool,
    kept: tuple[str, ...],
    outputs: tuple[Destination, ...],
) -> None:
    """DoctorError where two texts would go to one place, or one of them nowhere."""
    edits = "--diff" if diff else "--write" if write is not None else None
    to_stdout = pin == "-"
    named = next((item for item in outputs if item.file is not None), None)
    other = next((item for item in outputs if item.file is None and item.format != "text"), None)
    if rollback and (pin is not None or edits or kept):
        first = "--pin" if pin is not None else edits or "--hold, --allow, --constraint"
        raise DoctorError(f"`--rollback` and `{first}` exclude each other")
    if force and (pin is None or to_stdout):
        raise DoctorError("`--force` overwrites the file of `--pin`, and none is named", "`--pin FILE --force`")
    if to_stdout and named is not None:
        raise DoctorError("`--pin` without a file goes to stdout, and `--output` elsewhere", "`--pin FILE` writes it")
    if to_stdout and other is not None:
        raise DoctorError(
            f"`--pin` and `--format {other.format}` both go to stdout", "`--pin FILE` writes the pins to a file"
        )
    if to_stdout and edits:
        raise DoctorError(f"`--pin` and `{edits}` both go to stdout", "`--pin FILE` writes the pins to a file")
    if edits and other is not None:
        raise DoctorError(
            f"`{edits}` and `--format {other.format}` both go to stdout",
            "`--output FILE` writes the report to a file",
        )
