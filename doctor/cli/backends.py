"""`attn-doctor backends`: which attention backend will be selected, and why not the others."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, TextIO

import typer

from doctor.diagnosis.batch import answer as answer_line
from doctor.diagnosis.pipeline import diagnose
from doctor.errors import DoctorError, reason_of
from doctor.report.formats import renderer
from doctor.rulebook.rulebook import load_rulebook
from doctor.util.outgoing import outgoing
from doctor.util.printable import without_commands
from doctor.util.reading import MAX_LINE, bounded_lines, open_stream

from .answer import Answer, reports
from .output import deliver, require_all_read
from .request import TargetOptions, examines, project_request_of

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("backends")
@examines()
@reports()
def backends(
    target: TargetOptions,
    answer: Answer,
    batch: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Many cases as JSON Lines, `-` for stdin; answers in the same order."),
    ] = None,
) -> int:
    """Show which attention backend will be selected for this workload, and why not the others."""
    screen = answer.screen
    if batch is not None:
        given = target.given()
        if given:
            raise DoctorError(
                f"`{given[0]}` does not go with `--batch`", "every line brings its own facts and workload"
            )
        return _answer_lines(batch, _file_of_lines(answer), target.rules)
    outputs = [(renderer(item.format, "backends"), item) for item in answer.outputs]
    with screen.working("predicting backends") as progress:
        report = diagnose(project_request_of(target), progress.step)
    for render, item in outputs:
        deliver(render, report, item.file, screen)
    require_all_read(report.unread)
    failing = (item.fails_at_run or (item.could_tell and not item.selected) for item in report.predictions)
    return int(any(failing))


def _file_of_lines(answer: Answer) -> str | None:
    """Return the file of the answers, which are JSON Lines; DoctorError where another format is requested."""
    first, *more = answer.outputs
    if more or first.format not in ("text", "json"):
        raise DoctorError("`--batch` writes JSON Lines only", "`--output FILE` names their file")
    return first.file


def _answer_lines(batch: str, output: str | None, rules: tuple[str, ...]) -> int:
    """Answer each JSON line when it comes; return 2 if any line was bad."""
    rulebook = load_rulebook(rules)
    bad = False
    with _lines(batch) as lines, _sink(output) as sink:
        for line in _bounded(lines):
            if line is not None and not line.strip():
                continue
            result, good = ({"id": None, "error": _TOO_LONG}, False) if line is None else answer_line(rulebook, line)
            bad = bad or not good
            sink.write(without_commands(outgoing(json.dumps(result))) + "\n")
            sink.flush()  # the other side may wait for this line before it sends the next
    return 2 if bad else 0


_TOO_LONG = f"the line is longer than {MAX_LINE >> 20} MiB"


def _bounded(lines: TextIO) -> Iterator[str | None]:
    try:
        yield from bounded_lines(lines, MAX_LINE)
    except OSError as problem:
        raise DoctorError(f"cannot read the batch: {reason_of(problem)}") from None


def _lines(name: str) -> AbstractContextManager[TextIO]:
    """Return the text of a file or of stdin; a byte that is not UTF-8 spoils its line and no other."""
    if name == "-":
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="replace")
        return nullcontext(sys.stdin)
    try:
        stream = open_stream(Path(name))
        return contextlib.closing(io.TextIOWrapper(stream, encoding="utf-8", errors="replace"))
    except (OSError, ValueError) as problem:
        raise DoctorError(f"cannot read batch file `{name}`: {reason_of(problem)}") from None


def _sink(name: str | None) -> AbstractContextManager[TextIO]:
    if name is None or name == "-":
        return nullcontext(sys.stdout)
    try:
        return contextlib.closing(Path(name).open("w", encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise DoctorError(f"cannot write `{name}`: {reason_of(problem)}") from None
