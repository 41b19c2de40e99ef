"""Where a command's answer goes: stdout or files, with color where a terminal reads it; and the exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, NamedTuple

from doctor.errors import DoctorError, NoDiagnosis, reason_of
from doctor.model import SEVERITIES, Report
from doctor.report.style import Style
from doctor.util.atomic_write import write_atomically
from doctor.util.outgoing import outgoing

from .progress import Progress
from .streams import to_stderr, to_stdout

_MOST_UNREAD = 3  # files by name in the one line of the complaint; the report's notes have them all
MAX_WIDTH = 100  # columns of prose


class Screen(NamedTuple):
    """How much a command shows, and in which colors."""

    verbose: bool = False
    quiet: bool = False
    color: str = "auto"  # auto | always | never

    def style(self, *, to_file: bool) -> Style:
        """Return the style of an answer that goes to a file or to stdout."""
        terminal = not to_file and sys.stdout.isatty()
        width = min(get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH) if terminal else MAX_WIDTH
        return Style(self._colored(terminal=terminal), width, self.verbose, self.quiet)

    def _colored(self, *, terminal: bool) -> bool:
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE"):
            return True
        return terminal and os.environ.get("TERM") != "dumb"

    def inform(self, text: str) -> None:
        """Write progress to stderr, where a person reads it."""
        if not self.quiet and sys.stderr.isatty():
            remark(f"{text}\n")

    @contextlib.contextmanager
    def working(self, first: str = "") -> Iterator[Progress]:
        """Show progress on a terminal while something takes long, starting with the step `first`."""
        progress = Progress(quiet=self.quiet)
        try:
            if first:
                progress.step(first)
            yield progress
        finally:
            progress.close()


class Destination(NamedTuple):
    """One output of a command: the format, and the file it goes to (None: stdout)."""

    format: str
    file: str | None


def destinations(formats: Sequence[str] | None, output: str | None) -> tuple[Destination, ...]:
    """Return the outputs that `--format F[=FILE]` and `--output FILE` name; DoctorError where two share stdout."""
    found = []
    for given in formats or ["text"]:
        name, has_file, file = given.partition("=")
        if has_file and not file:
            raise DoctorError(f"`--format {given}` names no file", f"write `--format {name}=FILE`")
        found.append(Destination(name, file or None))
    plain = [item for item in found if item.file is None]
    if len(plain) > 1:
        names = " and ".join(f"`--format {item.format}`" for item in plain[:2])
        raise DoctorError(f"{names} both go to stdout", f"give one a file: `--format {plain[0].format}=FILE`")
    if output is not None and not plain:
        raise DoctorError("`--output` has nothing to write", "every `--format` names its own file")
    return tuple(Destination(item.format, output if item.file is None else item.file) for item in found)


def deliver(
    render: Callable[[Any, Style], str], content: Any, file: str | None, screen: Screen, *, commands: bool = False
) -> None:
    """Render an answer and write it to a file or stdout; `commands`: its workflow commands are meant."""
    style = screen.style(to_file=file is not None and file != "-")
    write(render(content, style), file, colored=style.color, commands=commands)


def write(text: str, file: str | None, *, colored: bool = False, commands: bool = False, force: bool = True) -> None:
    """Write an answer to stdout, or to a file atomically.

    Every answer of every command goes through here: control characters are spelled out, credentials become `…`, and in
    the log of GitHub Actions no line is a workflow command unless `commands` says that they are ours.
    """
    if file is not None and file != "-":
        write_atomically(Path(file), outgoing(text, colored=colored), force=force)
        return
    try:
        to_stdout(text, colored=colored, commands=commands)
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise unwritable(problem) from None


def unwritable(problem: OSError) -> NoDiagnosis:
    """Return the error for a stdout that takes nothing: a full disk, a device that is gone."""
    return NoDiagnosis(f"cannot write the answer: {reason_of(problem)}")


def remark(text: str) -> None:
    """Write to stderr, as safe as an answer; a stderr that takes nothing is no error."""
    to_stderr(text)


def require_all_read(unread: Sequence[str]) -> None:
    """DoctorError for declared files that could not be read; called when the rest has been reported."""
    if unread:
        more = [f"and {len(unread) - _MOST_UNREAD} more"] if len(unread) > _MOST_UNREAD else []
        raise DoctorError("; ".join([*unread[:_MOST_UNREAD], *more]), "everything else that is declared was checked")


def exit_code(report: Report, fail_on: str) -> int:
    """Return 1 when a finding is at or above `fail_on`, else 0."""
    require_all_read(report.unread)
    if fail_on == "never":
        return 0
    limit = SEVERITIES.index(fail_on)
    return int(any(finding.severity.rank <= limit for finding in report.findings))
