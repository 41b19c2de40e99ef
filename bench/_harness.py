"""What the benchmarks share: the command line, clean runs of the program, clocks, and the JSON report."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCTOR = (sys.executable, "-m", "doctor")


class Took(NamedTuple):
    """Seconds of one run: of processor time (children included) and of wall-clock time."""

    processor: float
    wall: float


def import_ours(*folders: str) -> None:
    """Make the package, and these folders of the repository, importable: a benchmark runs from anywhere."""
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in folders)]


def arguments(about: str | None, **defaults: int) -> argparse.ArgumentParser:
    """Return a parser with `--json FILE` and one integer option for each default."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    parser.add_argument("--json", metavar="FILE", help="also write the result as JSON")
    return parser


def write_json(path: str | None, result: object) -> None:
    """Write the result where `--json` says, if it does."""
    if path:
        Path(path).write_text(json.dumps(result, indent=2) + "\n", "utf-8")


def print_result(result: Mapping[str, Any]) -> None:
    """Print one line for each value."""
    for key, value in result.items():
        print(f"{key:16} {value}")


def settings(work: Path) -> dict[str, str]:
    """Return the environment of a run: this checkout, its own bytecode and caches, no variable that changes Python."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {
        **environment,
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(work / "bytecode"),
        "XDG_CACHE_HOME": str(work / "cache"),
        "NO_COLOR": "1",
    }


def run(
    command: Sequence[str], work: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> tuple[subprocess.CompletedProcess[str], Took]:
    """Run a program to its end, in `settings(work)` or in `env`; return it with the time it took."""
    before, began = _children(), time.perf_counter()
    done = subprocess.run(
        command,
        env=env or settings(work),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, Took(_children() - before, time.perf_counter() - began)


def _children() -> float:
    """Return the processor seconds of all children so far, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
