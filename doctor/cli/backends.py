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

from doctor.cli.options import Device
from doctor.diagnosis.batch import answer as answer_line
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.speed import measure_speed
from doctor.errors import DoctorError, reason_of
from doctor.report.formats import renderer
from doctor.rulebook.rulebook import load_rulebook
from doctor.util.outgoing import outgoing
from doctor.util.printable import without_commands
from doctor.util.reading import MAX_LINE, bounded_lines, open_stream

from .answer import Answer, reports
from .output import deliver, require_all_read
from .request import TargetOptions, examines, project_request_of

MOST_TOKENS = 1 << 24
MOST_LENGTHS = 12

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
    run: Annotated[
        bool,
        typer.Option(
            "--run", help="Measure every backend on this GPU: time, memory and error on the job's own shapes."
        ),
    ] = False,
    lengths: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="With `--run`: these sequence lengths instead of the job's: `1k,2k,4k`."),
    ] = None,
    device: Annotated[
        Device, typer.Option(help="With `--run`: the CPU shows what runs, not how fast a GPU is.")
    ] = "cuda",
) -> int:
    """Show which attention backend will be selected for this workload, and why not the others."""
    screen = answer.screen
    if run:
        return _measure(target, answer, batch, _lengths(lengths), device)
    if lengths is not None:
        raise DoctorError("`--lengths` goes with `--run`")
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


def _measure(target: TargetOptions, answer: Answer, batch: str | None, lengths: tuple[int, ...], device: str) -> int:
    """Measure the backends of one job; return 1 where none ran."""
    if batch is not None:
        raise DoctorError("`--batch` does not go with `--run`")
    if target.gpu:
        raise DoctorError("`--gpu` does not go with `--run`", "what is measured is the GPU of this machine")
    answer.require_writable()
    outputs = [(renderer(item.format, "speed"), item) for item in answer.outputs]
    with answer.screen.working("reading the job") as progress:
        speed = measure_speed(project_request_of(target), lengths, device, progress.step)
    for render, item in outputs:
        deliver(render, speed, item.file, answer.screen)
    return int(speed.fastest is None)


def _lengths(text: str | None) -> tuple[int, ...]:
    """Return `1k,2048` as (1024, 2048), in rising order; DoctorError for anything else."""
    found = set()
    for part in (text or "").replace(" ", "").lower().split(",") if text is not None else ():
        number, unit = (part[:-1], 1024) if part.endswith("k") else (part, 1)
        if not number.isdecimal() or not 0 < int(number) * unit <= MOST_TOKENS:
            raise DoctorError(f"`--lengths` takes numbers of tokens like 512 or 4k, found `{part}`")
        found.add(int(number) * unit)
    if len(found) > MOST_LENGTHS:
        raise DoctorError(f"`--lengths` takes {MOST_LENGTHS} lengths at most, found {len(found)}")
    return tuple(sorted(found))


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
