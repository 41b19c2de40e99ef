"""`attn-doctor stress`: options → sweep → text or JSON, with the progress on stderr."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING
from zlib import crc32

from doctor.errors import DoctorError, Interrupted
from doctor.stress.sweep import SweepResult

from .options import add_rules, parser, seconds

if TYPE_CHECKING:
    from .commands import Streams

MOST_PROCESSES = 64
MOST_SEEDS = 10**9  # those of the cases are made of it, and torch takes 64 bits
UNITS = {"": 2**30, "m": 2**20, "mib": 2**20, "g": 2**30, "gib": 2**30, "gb": 10**9, "mb": 10**6}


def run(arguments: Sequence[str], streams: Streams) -> int:
    """Sweep over everything that is installed; 1 if anything is wrong."""
    made = parser("stress", "Is every attention here right? The whole sweep, minutes; most informative cases first.")
    target = made.add_argument_group("what is examined")
    target.add_argument("--python", metavar="PATH", help="interpreter of another environment")
    target.add_argument(
        "--backend", action="append", default=[], metavar="NAME",
        help="only this one; `file:PATH:FUNCTION` for a function of your own, called like torch's; repeatable",
    )  # fmt: skip
    target.add_argument("--device", choices=("cuda", "cpu"), help="default: the GPUs, where there are any")
    how = made.add_argument_group("how much")
    how.add_argument("--budget", type=seconds, metavar="SECONDS", help="stop asking after this time")
    how.add_argument("--cases", type=_count, metavar="N", help="cases over all backends")
    how.add_argument("--memory", type=_bytes, metavar="GIB", help="memory to use on each GPU: 8, 512M")
    how.add_argument(
        "--processes", type=_processes, metavar="N", help="on each GPU (default: as the cores allow, up to 4)"
    )
    how.add_argument("--seed", type=_seed, default=0, metavar="N", help="another sweep of the same kind")
    how.add_argument("--timeout", type=seconds, default=60.0, metavar="SECONDS", help="longest wait for one case")
    how.add_argument("--shrink", type=seconds, default=120.0, metavar="SECONDS", help="time for smallest forms")
    how.add_argument("--journal", metavar="FILE", help="go on from this file, and write to it")
    how.add_argument("--restart", action="store_true", help="begin anew, whatever the journal holds")
    shown = made.add_argument_group("how it is shown")
    shown.add_argument("--format", choices=("text", "json"), default="text", metavar="F", help="text or json")
    shown.add_argument("-o", "--output", metavar="FILE", help="write to a file")
    add_rules(made)
    options = made.read(arguments)
    from doctor.sources.probes.locate import find_target
    from doctor.sources.project.config import project_defaults
    from doctor.stress.discovery import Options
    from doctor.stress.sweep import sweep

    from .commands import write

    if options.output not in (None, "-"):
        _writable(Path(options.output))
    python = find_target(options.python, None).python
    if python is None:
        raise DoctorError("there is no interpreter to run in", "name one with `--python PATH`")
    journal = Path(options.journal) if options.journal else _journal(python, options)
    bar = _Bar()
    try:
        outcome = sweep(
            Options(
                python, options.budget, options.memory, options.seed, options.cases,
                tuple(map(_absolute, options.backend)), options.device, options.timeout, options.shrink, journal,
                options.restart, options.processes, bool(options.journal),
            ),
            bar, streams.tell,
        )  # fmt: skip
    except KeyboardInterrupt:
        kept = journal is not None and journal.is_file()
        hint = f"the answers so far are in `{journal}`: the same command goes on from there" if kept else None
        raise Interrupted("interrupted", hint) from None
    finally:
        bar.end()
    text = _rendered(outcome, options.format, python, (*project_defaults().rules, *options.rules))
    write(text, options.output, streams)
    return int(outcome.bad)


def _rendered(outcome: SweepResult, form: str, python: str, rules: Sequence[str]) -> str:
    from doctor.stress.compare_rules import beside_the_rulebook
    from doctor.stress.report import as_json, as_text

    beside = beside_the_rulebook(outcome, python, rules)
    if form == "text":
        return as_text(outcome, beside)

    return json.dumps(as_json(outcome, beside), indent=2) + "\n"


def _journal(python: str, options: argparse.Namespace) -> Path | None:
    """Where this sweep of this interpreter is remembered until it is through; another sweep has another file."""

    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home, as in a container
        return None
    asked = (python, options.device, sorted(map(_absolute, options.backend)), options.seed, options.cases)
    return cache / "attn-doctor" / f"stress-{crc32(repr(asked).encode()):08x}.jsonl"


def _absolute(backend: str) -> str:
    """`file:PATH:FUNCTION` with a path that means the same in every folder."""
    path, colon, function = backend[5:].rpartition(":")
    if not backend.startswith("file:") or not path:
        return backend
    return f"file:{Path(path).expanduser().absolute()}{colon}{function}"


def _writable(output: Path) -> None:
    """Complain now, and not after minutes."""

    folder = output.parent
    if output.is_dir():
        raise DoctorError(f"cannot write `{output}`: is a directory")
    if not folder.is_dir():
        raise DoctorError(f"cannot write `{output}`: there is no folder `{folder}`")
    if not os.access(output if output.exists() else folder, os.W_OK):
        raise DoctorError(f"cannot write `{output}`: permission denied")


class _Bar:
    """Progress: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self.began = self.told = time.monotonic()
        self.terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.open = False

    def __call__(self, done: int, total: int, bad: int) -> None:
        now = time.monotonic()
        if now - self.told < (0.1 if self.terminal else 15.0) and done < total:
            return
        self.told = now
        text = f"{done}/{total} cases, {bad} bad, {now - self.began:.0f} s"
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


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 10**7:
        raise argparse.ArgumentTypeError(f"needs a positive number, found `{text}`")
    return int(text)


def _processes(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"needs a number from 1 to {MOST_PROCESSES}, found `{text}`")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) > MOST_SEEDS:
        raise argparse.ArgumentTypeError(f"needs a number from 0 to {MOST_SEEDS}, found `{text}`")
    return int(text)


def _bytes(text: str) -> int:
    number = text.rstrip("MmGgIiBb")
    unit = text[len(number) :].lower()
    try:
        value = float(number) * UNITS[unit]
    except (ValueError, KeyError):
        value = 0.0
    if not 2**20 <= value < 2**50:
        raise argparse.ArgumentTypeError(f"needs an amount of memory like 8 or 512M, found `{text}`")
    return int(value)
