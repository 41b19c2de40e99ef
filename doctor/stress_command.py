"""`attn-doctor stress`: options → sweep → text or JSON, with the progress on stderr."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .cli_options import parser, seconds
from .errors import DoctorError

if TYPE_CHECKING:
    from .commands import Streams
    from .stress.sweep import Outcome

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
    how.add_argument("--processes", type=_count, metavar="N", help="on each GPU (default: as the cores allow, up to 4)")
    how.add_argument("--seed", type=int, default=0, metavar="N", help="another sweep of the same kind")
    how.add_argument("--timeout", type=seconds, default=60.0, metavar="SECONDS", help="longest wait for one case")
    how.add_argument("--shrink", type=seconds, default=120.0, metavar="SECONDS", help="time for smallest forms")
    how.add_argument("--journal", metavar="FILE", help="go on from this file, and write to it")
    how.add_argument("--restart", action="store_true", help="begin anew, whatever the journal holds")
    shown = made.add_argument_group("how it is shown")
    shown.add_argument("--format", choices=("text", "json"), default="text", metavar="F", help="text or json")
    shown.add_argument("-o", "--output", metavar="FILE", help="write to a file")
    options = made.read(arguments)
    from .commands import write
    from .probes import find_target
    from .stress.here import Options
    from .stress.sweep import sweep

    python = find_target(options.python, None).python
    if python is None:
        raise DoctorError("there is no interpreter to run in", "name one with `--python PATH`")
    bar = _Bar()
    try:
        outcome = sweep(
            Options(
                python, options.budget, options.memory, options.seed, options.cases, tuple(options.backend),
                options.device, options.timeout, options.shrink,
                Path(options.journal) if options.journal else _journal(python), options.restart, options.processes,
            ),
            bar, streams.tell,
        )  # fmt: skip
    finally:
        bar.end()
    text = _rendered(outcome, options.format, python)
    write(text, options.output, streams)
    return int(outcome.bad)


def _rendered(outcome: Outcome, form: str, python: str) -> str:
    from .stress.compared import beside_the_rulebook
    from .stress.report import as_json, as_text

    beside = beside_the_rulebook(outcome, python)
    if form == "text":
        return as_text(outcome, beside)
    import json

    return json.dumps(as_json(outcome, beside), indent=2) + "\n"


def _journal(python: str) -> Path:
    """Where a sweep of this interpreter is remembered until it is through."""
    import os
    from zlib import crc32

    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "attn-doctor" / f"stress-{crc32(python.encode()):08x}.jsonl"


class _Bar:
    """Progress: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self.began = self.told = time.monotonic()
        self.terminal = sys.stderr.isatty()
        self.open = False

    def __call__(self, done: int, total: int, bad: int) -> None:
        now = time.monotonic()
        if now - self.told < (0.1 if self.terminal else 15.0) and done < total:
            return
        self.told = now
        filled = 30 * done // max(1, total)
        text = f"{done}/{total} cases, {bad} bad, {now - self.began:.0f} s"
        if self.terminal:
            sys.stderr.write(f"\r[{'#' * filled}{'.' * (30 - filled)}] {text} ")
            self.open = True
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if self.open:
            sys.stderr.write("\n")
            self.open = False


def _count(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 10**7:
        raise argparse.ArgumentTypeError(f"needs a positive number, found `{text}`")
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
