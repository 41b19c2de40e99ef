"""One function per command: options → session → rendered text. Output goes to the streams they are given."""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .asked import gate_of
from .asked import request_of as request_of
from .cli_options import add_baseline, add_fail_on, add_kernels, add_output, parser
from .errors import DoctorError, NoDiagnosis, reason_of
from .model import SEVERITIES, Report
from .records import dataclass

if TYPE_CHECKING:
    from .session import Request

_MOST_UNREAD = 3  # files by name in the one line of the complaint; the report's notes have them all


@dataclass(frozen=True)
class Streams:
    """Where a command reads, where its answer goes, and who hears what is under way."""

    stdin: TextIO
    stdout: TextIO
    tell: Callable[[str], None]


def check(arguments: Sequence[str], streams: Streams) -> int:
    """Diagnose."""
    made = parser(
        "check", "Will this job's attention work here, and if not, why and what helps?", target=True, workload=True
    )
    add_kernels(made)
    add_output(made)
    add_fail_on(made)
    add_baseline(made)
    options = made.read(arguments)
    render = renderer_of(options.format, "diagnosis")
    request = gate_of(options)
    report = diagnosis_of(request, streams)
    if options.format == "html":  # the one format with room for heat maps
        from .matrix import with_matrices
        from .rulebook import load_rulebook

        report = with_matrices(load_rulebook((*request.defaults.rules, *request.rules)), report)
    deliver(render, report, options, streams)
    return exit_code(report, options.fail_on or request.defaults.fail_on or "error")


def backends(arguments: Sequence[str], streams: Streams) -> int:
    """Predict."""
    made = parser("backends", "Which attention backend will run, and why not the others?", target=True, workload=True)
    made.add_argument(
        "--batch", metavar="FILE", help="many cases as JSON Lines, `-` for stdin; answers in the same order"
    )
    add_output(made)
    options = made.read(arguments)
    if options.batch is not None:
        return _batch(options, streams)
    render = renderer_of(options.format, "backends")
    request = request_of(options, run=False, fixes=False)
    report = diagnosis_of(request, streams)
    deliver(render, report, options, streams)
    _all_read(report.unread)
    return int(any(item.fails_at_run or (item.could_tell and not item.selected) for item in report.predictions))


def matrix(arguments: Sequence[str], streams: Streams) -> int:
    """Tabulate."""
    made = parser("matrix", "Which backends serve which features in this environment?", target=True, workload=True)
    add_output(made)
    options = made.read(arguments)
    from .matrix import matrices
    from .report.matrix import renderer
    from .rulebook import load_rulebook
    from .session import examine

    render = renderer(options.format)
    request = request_of(options, run=False, fixes=False)
    rulebook = load_rulebook((*request.defaults.rules, *request.rules))
    deliver(render, matrices(rulebook, examine(request, rulebook).facts), options, streams)
    return 0


def _batch(options: argparse.Namespace, streams: Streams) -> int:
    """JSON Lines in, JSON Lines out, each answered when it comes; 2 if any line was bad."""
    of_one_case = ("python", "site_packages", "facts", "requirements", "gpu", "settings", "model", "workload")
    own = [name for name in of_one_case if getattr(options, name)]
    if own:
        option = {"settings": "set"}.get(own[0], own[0]).replace("_", "-")
        raise DoctorError(f"`--{option}` does not go with `--batch`", "every line brings its own facts and workload")
    import gc
    import json

    from .batch import answer
    from .rulebook import load_rulebook

    rulebook = load_rulebook(options.rules)
    gc.freeze()
    gc.enable()  # this may run for long
    bad = False
    with _lines(options.batch, streams.stdin) as lines, _sink(options.output, streams.stdout) as sink:
        for line in lines:
            if not line.strip():
                continue
            result, good = answer(rulebook, line)
            bad = bad or not good
            sink.write(json.dumps(result) + "\n")
            sink.flush()  # the other side may wait for this line before it sends the next
    return 2 if bad else 0


def _lines(name: str, stdin: TextIO) -> AbstractContextManager[TextIO]:
    """The text of a file or of stdin; a byte that is not UTF-8 spoils its line and no other."""
    if name == "-":
        if isinstance(stdin, io.TextIOWrapper):
            stdin.reconfigure(encoding="utf-8", errors="replace")
        return nullcontext(stdin)
    try:
        return Path(name).open(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as problem:
        raise DoctorError(f"cannot read batch file `{name}`: {reason_of(problem)}") from None


def _sink(name: str | None, stdout: TextIO) -> AbstractContextManager[TextIO]:
    if name is None or name == "-":
        return nullcontext(stdout)
    try:
        return Path(name).open("w", encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise DoctorError(f"cannot write `{name}`: {reason_of(problem)}") from None


def fix(arguments: Sequence[str], streams: Streams) -> int:
    """Solve."""
    from .fix_command import run

    return run(arguments, streams)


def snapshot(arguments: Sequence[str], streams: Streams) -> int:
    """Capture."""
    made = parser(
        "snapshot", "The facts of this machine as a file that every command takes back.", target=True, workload=True
    )
    add_output(made, formats=False)
    options = made.read(arguments)
    import json

    from .facts_file import document
    from .rulebook import load_rulebook
    from .session import examine

    request = request_of(options, run=False, fixes=False)
    patient = examine(request, load_rulebook(request.rules))
    write(json.dumps(document(patient.facts), indent=2, ensure_ascii=False) + "\n", options.output, streams)
    _all_read(patient.unread)
    return 0


def stress(arguments: Sequence[str], streams: Streams) -> int:
    """Sweep."""
    from .stress_command import run

    return run(arguments, streams)


def drift(arguments: Sequence[str], streams: Streams) -> int:
    """Compare calls with their targets."""
    from .drift_command import run

    return run(arguments, streams)


def wheels(arguments: Sequence[str], streams: Streams) -> int:
    """Look up."""
    from .wheel_commands import run

    return run(arguments, streams)


def rules(arguments: Sequence[str], streams: Streams) -> int:
    """List, show, test, start."""
    from .rule_commands import run

    return run(arguments, streams)


def init(arguments: Sequence[str], streams: Streams) -> int:
    """Set up."""
    from .init_command import run

    return run(arguments, streams)


def diagnosis_of(request: Request, streams: Streams) -> Report:
    """The report of one request."""
    from .session import diagnose

    return diagnose(request, streams.tell)


def renderer_of(name: str, view: str) -> Any:
    """How `--format NAME` shows this view."""
    from .report import renderer

    return renderer(name, view)


def deliver(render: Any, report: Any, options: argparse.Namespace, streams: Streams) -> None:
    """The answer as text, with colour where a terminal reads it, to stdout or the file asked for."""
    from .report import Style

    to_terminal = options.output is None and streams.stdout.isatty()
    color = to_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = 100
    if to_terminal:
        from shutil import get_terminal_size

        width = min(get_terminal_size((100, 24)).columns, 120)
    write(render(report, Style(color, width)), options.output, streams)


def write(text: str, output: str | None, streams: Streams) -> None:
    """The answer to stdout, or to a file that is written whole or not at all."""
    if output is None or output == "-":
        try:
            streams.stdout.write(text)
            streams.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as problem:
            raise NoDiagnosis(f"cannot write the answer: {reason_of(problem)}") from None
        return
    from .wholefile import write_atomically

    write_atomically(Path(output), text)


def _all_read(unread: Sequence[str]) -> None:
    """Bad input is told when the rest has been answered."""
    if unread:
        more = [f"and {len(unread) - _MOST_UNREAD} more"] if len(unread) > _MOST_UNREAD else []
        raise DoctorError("; ".join([*unread[:_MOST_UNREAD], *more]), "everything else that is declared was judged")


def exit_code(report: Report, fail_on: str) -> int:
    """1 when a finding is at or above `fail_on`."""
    _all_read(report.unread)
    if fail_on == "never":
        return 0
    limit = SEVERITIES.index(fail_on)
    return int(any(SEVERITIES.index(finding.severity) <= limit for finding in report.findings))
