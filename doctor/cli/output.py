"""Where a command's answer goes: stdout or files, with color where a terminal reads it; and the exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from doctor.errors import DoctorError, NoDiagnosis, reason_of
from doctor.model import SEVERITIES, Report
from doctor.report.style import Style
from doctor.util.atomic_write import write_atomically

_MOST_UNREAD = 3  # files by name in the one line of the complaint; the report's notes have them all
MAX_WIDTH = 100  # columns of prose


@dataclass(frozen=True)
class Screen:
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

    def tell(self, text: str) -> None:
        """Write progress to stderr, where a person reads it."""
        if not self.quiet and sys.stderr.isatty():
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    @contextlib.contextmanager
    def working(self) -> Iterator[Callable[[str], None]]:
        """Show a spinner with elapsed time on a terminal while something takes long; yield how to name the step."""
        if self.quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            yield self.tell
            return
        with spinner() as update:
            yield update


@contextlib.contextmanager
def spinner() -> Iterator[Callable[[str], None]]:
    """Show a spinner, the current step and the elapsed time on stderr; it appears with the first step."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task("", total=None)
    started = False

    def update(text: str) -> None:
        nonlocal started
        progress.update(task, description=text)
        if not started:
            progress.start()
            started = True

    try:
        yield update
    finally:
        if started:
            progress.stop()


@dataclass(frozen=True)
class Destination:
    """One output of a command: the format, and the file it goes to (None: stdout)."""

    format: str
    file: str | None


def destinations(formats: Sequence[str] | None, output: str | None) -> tuple[Destination, ...]:
    """Return the outputs that `--format F[=FILE]` and `--output FILE` ask for; DoctorError where two share stdout."""
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


def deliver(render: Callable[[Any, Style], str], content: Any, file: str | None, screen: Screen) -> None:
    """Render an answer and write it to a file or stdout."""
    to_file = file is not None and file != "-"
    write(render(content, screen.style(to_file=to_file)), file)


def write(text: str, file: str | None) -> None:
    """Write to stdout, or to a file as a whole or not at all."""
    if file is not None and file != "-":
        write_atomically(Path(file), text)
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise NoDiagnosis(f"cannot write the answer: {reason_of(problem)}") from None


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


class Bar:
    """Progress: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, *, quiet: bool = False, noun: str = "cases", bad: str = "bad") -> None:
        self.quiet, self.noun, self.bad = quiet, noun, bad
        self.began = self.told = time.monotonic()
        self.terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.open = False

    def __call__(self, done: int, total: int, bad: int) -> None:
        """Show the counts, on a terminal ten times a second at most."""
        if self.quiet:
            return
        now = time.monotonic()
        if now - self.told < (0.1 if self.terminal else 15.0) and done < total:
            return
        self.told = now
        text = f"{done}/{total} {self.noun}, {bad} {self.bad}, {now - self.began:.0f} s"
        self._write(self._line(text, done / max(1, total)) if self.terminal else f"{text}\n")
        self.open = self.terminal

    @staticmethod
    def _line(text: str, share: float) -> str:
        """The bar with its figures, as wide as the terminal allows: what wraps cannot be written over."""

        room = get_terminal_size((80, 24)).columns - 1
        width = min(30, room - len(text) - 3)
        filled = int(width * share)
        bar = f"[{'#' * filled}{'.' * (width - filled)}] " if width >= 5 else ""
        return f"\r{(bar + text)[:room].ljust(min(room, len(bar + text) + 1))}"

    def end(self) -> None:
        """Leave the line."""
        if self.open:
            self._write("\n")
            self.open = False

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody may be listening
            sys.stderr.write(text)
            sys.stderr.flush()
