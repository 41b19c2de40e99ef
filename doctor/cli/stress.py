"""`attn-doctor stress`: options → sweep → text, JSON or HTML, with the progress on stderr."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated
from zlib import crc32

import typer

from doctor.cli.options import Device
from doctor.errors import DoctorError, Interrupted
from doctor.sources.probes.locate import find_target
from doctor.sources.project.config import project_defaults
from doctor.stress.compare_rules import compare_with_rules
from doctor.stress.discovery import SweepOptions
from doctor.stress.page import as_html
from doctor.stress.report import as_json, as_text
from doctor.stress.sweep import sweep

from .answer import Answer, reports
from .options import Python, Rules, seconds, seconds_or_none
from .progress import Progress

MOST_PROCESSES = 64
MOST_SEEDS = 10**9  # those of the cases are made of it, and torch takes 64 bits
UNITS = {"": 2**30, "m": 2**20, "mib": 2**20, "g": 2**30, "gib": 2**30, "gb": 10**9, "mb": 10**6}


HOW_MUCH = "How much"

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 10**7:
        raise typer.BadParameter(f"needs a positive number, found `{text}`")
    return int(text)


def _processes(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MOST_PROCESSES:
        raise typer.BadParameter(f"needs a number from 1 to {MOST_PROCESSES}, found `{text}`")
    return int(text)


def _seed(text: str) -> int:
    text = str(text)  # typer passes the default through here too
    if not text.isdecimal() or int(text) > MOST_SEEDS:
        raise typer.BadParameter(f"needs a number from 0 to {MOST_SEEDS}, found `{text}`")
    return int(text)


def _bytes(text: str) -> int:
    number = text.rstrip("MmGgIiBb")
    unit = text[len(number) :].lower()
    try:
        value = float(number) * UNITS[unit]
    except (ValueError, KeyError):
        value = 0.0
    if not 2**20 <= value < 2**50:
        raise typer.BadParameter(f"needs an amount of memory like 8 or 512M, found `{text}`")
    return int(value)


@app.command("stress")
@reports("a sweep", "text", "json", "html")
def stress(
    answer: Answer,
    python: Python = None,
    rules: Rules = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this backend; `file:PATH:FUNCTION` for your own function, called like torch's. Repeatable.",
        ),
    ] = None,
    device: Annotated[
        Device | None,
        typer.Option(metavar="DEVICE", help="cuda or cpu (default: the GPUs, if any)."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="SECONDS", rich_help_panel=HOW_MUCH, help="Seconds for the whole sweep."),
    ] = None,
    cases: Annotated[
        int | None,
        typer.Option(parser=_count, metavar="N", rich_help_panel=HOW_MUCH, help="Cases over all backends."),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(parser=_bytes, metavar="GIB", rich_help_panel=HOW_MUCH, help="Memory to use per GPU: 8, 512M."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            parser=_processes,
            metavar="N",
            rich_help_panel=HOW_MUCH,
            help="Processes per GPU (default: as cores and memory allow, up to 16).",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(parser=_seed, metavar="N", rich_help_panel=HOW_MUCH, help="Another sample of cases.")
    ] = 0,
    timeout: Annotated[
        float,
        typer.Option(parser=seconds, metavar="SECONDS", rich_help_panel=HOW_MUCH, help="Time limit of one case."),
    ] = 60.0,
    shrink: Annotated[
        float,
        typer.Option(
            parser=seconds_or_none,
            metavar="SECONDS",
            rich_help_panel=HOW_MUCH,
            help="Time limit for minimizing failing cases; 0 leaves them as they are.",
        ),
    ] = 120.0,
    journal: Annotated[
        str | None,
        typer.Option(metavar="FILE", rich_help_panel=HOW_MUCH, help="Continue from this file, and write to it."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", rich_help_panel=HOW_MUCH, help="Discard the journal and start over.")
    ] = False,
) -> int:
    """Test every installed attention on the GPUs, forward and backward, against a float64 reference."""
    answer.require_writable()
    interpreter = find_target(python, None).python
    if interpreter is None:
        raise DoctorError("there is no interpreter to run in", "name one with `--python PATH`")
    backends = list(backend or ())
    kept = Path(journal) if journal else _journal(interpreter, device, backends, seed, cases)
    progress = Progress(quiet=answer.screen.quiet)
    try:
        outcome = sweep(
            SweepOptions(
                interpreter, budget, memory, seed, cases, tuple(map(_absolute, backends)), device, timeout, shrink,
                kept, restart, processes, bool(journal),
            ),
            lambda done, total, bad: progress.count(f"cases, {bad} bad", done, total),
            progress.step,
            lambda done, total: progress.count("failing cases minimized", done, total),
        )  # fmt: skip
    except KeyboardInterrupt:
        saved = kept is not None and kept.is_file()
        hint = f"the results so far are in `{kept}`: the same command continues from there" if saved else None
        raise Interrupted("interrupted", hint) from None
    finally:
        progress.close()
    comparison = compare_with_rules(outcome, interpreter, (*project_defaults().rules, *(rules or ())))
    answer.give(
        {
            "text": lambda style: as_text(outcome, comparison),
            "json": lambda style: json.dumps(as_json(outcome, comparison), indent=2) + "\n",
            "html": lambda style: as_html(outcome, comparison),
        }
    )
    return int(outcome.bad)


def _journal(python: str, device: str | None, backends: list[str], seed: int, cases: int | None) -> Path | None:
    """Where this sweep of this interpreter is remembered until it is through; another sweep has another file."""

    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home, as in a container
        return None
    options = (python, device, sorted(map(_absolute, backends)), seed, cases)
    return cache / "attn-doctor" / f"stress-{crc32(repr(options).encode()):08x}.jsonl"


def _absolute(backend: str) -> str:
    """`file:PATH:FUNCTION` with a path that means the same in every folder."""
    path, colon, function = backend[5:].rpartition(":")
    if not backend.startswith("file:") or not path:
        return backend
    return f"file:{Path(path).expanduser().absolute()}{colon}{function}"
