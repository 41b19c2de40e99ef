"""The command `fix`: the smallest change that clears the findings, as pins, recipes or words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from doctor.errors import DoctorError
from doctor.util.atomic_write import write_atomically

from .commands import Streams, deliver, diagnosis_of, exit_code, renderer_of
from .options import add_output, parser
from .proof_command import add_proof, check_options, proven, refused, taken_back, tell_proof, wants_proof
from .request import request_of


def run(arguments: Sequence[str], streams: Streams) -> int:
    """Solve."""
    made = parser("fix", "The smallest change that clears the findings.", target=True, workload=True)
    made.add_argument(
        "--pin", nargs="?", const="-", metavar="FILE",
        help="the packages as a requirements file for pip and uv; without FILE on stdout",
    )  # fmt: skip
    made.add_argument("--force", action="store_true", help="overwrite FILE")
    made.add_argument(
        "--write", nargs="?", const="", action="append", metavar="FILE",
        help="edit a requirements.txt or pyproject.toml in place, the old one kept as FILE.bak; "
        "without FILE those of --requirements",
    )  # fmt: skip
    made.add_argument("--diff", action="store_true", help="show what --write would change, and write nothing")
    keep = made.add_argument_group("what stays as it is")
    keep.add_argument("--hold", action="append", default=[], metavar="PACKAGE", help="leave it alone; repeatable")
    keep.add_argument(
        "--allow", action="append", default=[], metavar="PACKAGE", help="change no package but this; repeatable"
    )
    keep.add_argument(
        "--constraint", action="append", default=[], metavar="FILE",
        help="keep to these ranges, as pip reads them: a constraints or requirements file; repeatable",
    )  # fmt: skip
    add_proof(made)
    add_output(made)
    options = made.read(arguments)
    check_options(options)
    _check_outputs(options)
    render = renderer_of(options.format, "fixes")
    request = request_of(options, run=False)
    if options.rollback:
        report, code = taken_back(options, request, streams)
        deliver(render, report, options, streams)
        return code
    report, decided = diagnosis_of(request, streams), None
    if wants_proof(options):
        report, decided = proven(report, options, request, streams)
    if options.write is not None and not options.diff and refused(report):
        streams.stdout.write("# no file is edited, as the proof says no\n")
    elif options.write is not None or options.diff:
        from .edit_command import edit

        edit(report, options, request, streams)
        if options.pin is None and options.format == "text" and options.output is None and report.proof is None:
            return exit_code(report, "error")
    if options.pin is not None:
        from doctor.report.requirements import render_pins

        if options.pin == "-":
            streams.stdout.write(render_pins(report))
            tell_proof(report)
            return exit_code(report, "error") if decided is None else decided
        write_atomically(Path(options.pin), render_pins(report), force=options.force)
        streams.tell(f"wrote `{options.pin}`")
        if options.format == "text" and options.output is None and report.proof is None:
            return exit_code(report, "error")  # the file says it all; another format or place was asked for besides
    deliver(render, report, options, streams)
    return exit_code(report, "error") if decided is None else decided


def _check_outputs(options: argparse.Namespace) -> None:
    """DoctorError where two texts would go to one place, or one of them nowhere."""
    edits = "--write" if options.write is not None and not options.diff else "--diff" if options.diff else None
    to_stdout = options.pin == "-"
    if options.rollback:
        given = [name for name in ("pin", "write", "diff", "hold", "allow", "constraint") if getattr(options, name)]
        if given or edits:
            raise DoctorError(f"`--rollback` and `--{given[0] if given else 'write'}` exclude each other")
    if options.force and (options.pin is None or to_stdout):
        raise DoctorError("`--force` overwrites the file of `--pin`, and none is named", "`--pin FILE --force`")
    if to_stdout and options.output is not None:
        raise DoctorError("`--pin` without a file goes to stdout, and `--output` elsewhere", "`--pin FILE` writes it")
    if to_stdout and options.format != "text":
        raise DoctorError(
            f"`--pin` and `--format {options.format}` both go to stdout", "`--pin FILE` writes the pins to a file"
        )
    if to_stdout and edits:
        raise DoctorError(f"`--pin` and `{edits}` both go to stdout", "`--pin FILE` writes the pins to a file")
    if edits and options.format != "text" and options.output is None:
        raise DoctorError(
            f"`{edits}` and `--format {options.format}` both go to stdout",
            "`--output FILE` writes the report to a file",
        )
