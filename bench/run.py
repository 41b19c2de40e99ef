"""Time `attn-doctor run -- PROGRAM` next to the bare program, in turn: programs that print many lines, to each target.

    python bench/run.py [--rounds 7] [--lines 1000000]

Targets: /dev/null, a file, and a pipe that `cat >/dev/null` reads. `start` is a program that prints nothing: what `run`
costs each time. Of wall-clock and processor time (with `cat`), the least of all rounds counts: other programs only add.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from _harness import DOCTOR, arguments, import_ours, settings, write_json

import_ours()

_PRINT = "import sys\nfor n in range({lines}): print('step', n, 'loss', 2.25{flush})"
TARGETS = ("/dev/null", "file", "pipe")


class Took(NamedTuple):
    """Seconds of one run."""

    wall: float
    processor: float


def programs(lines: int) -> dict[str, list[str]]:
    """Return the programs to time: name -> command."""
    return {
        "start": ["true"],
        "seq": ["seq", str(lines)],
        "python": [sys.executable, "-c", _PRINT.format(lines=lines, flush="")],
        "python flush": [sys.executable, "-c", _PRINT.format(lines=lines, flush=", flush=True")],
    }


def timed(command: Sequence[str], target: str, work: Path) -> Took:
    """Return how long a command takes until its reader, if any, has seen the end of its output."""
    before, begin = _processor(), time.perf_counter()
    if target == "pipe":
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=settings(work)) as job:
            subprocess.run(["cat"], stdin=job.stdout, stdout=subprocess.DEVNULL, check=True)
    else:
        with Path(target if target != "file" else work / "out").open("wb") as stream:
            subprocess.run(command, stdout=stream, env=settings(work), check=True)
    return Took(time.perf_counter() - begin, _processor() - before)


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def least(command: list[str], target: str, rounds: int, work: Path) -> tuple[Took, Took]:
    """Return the least of the bare program and of `run`, which take turns."""
    wrapped = [*DOCTOR, "run", "--", *command]
    found = [(timed(command, target, work), timed(wrapped, target, work)) for _ in range(rounds)]
    bare, ours = zip(*found, strict=True)
    return Took(*map(min, zip(*bare, strict=True))), Took(*map(min, zip(*ours, strict=True)))


def main() -> int:
    """Measure and print what `run` adds."""
    parser = arguments(__doc__, rounds=7, lines=1_000_000)
    options = parser.parse_args()
    result: dict[str, dict[str, float]] = {}
    print(f"{'program':14}{'target':11}{'bare':>8}{'run':>8}{'more':>9}   {'bare cpu':>9}{'run cpu':>9}{'more':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name, command in programs(options.lines).items():
            for target in TARGETS:
                bare, ours = least(command, target, options.rounds, Path(folder))
                result[f"{name} {target}"] = {
                    "bare": bare.wall, "run": ours.wall, "bare_cpu": bare.processor, "run_cpu": ours.processor,
                }  # fmt: skip
                print(
                    f"{name:14}{target:11}{bare.wall:7.3f}s{ours.wall:7.3f}s{(ours.wall - bare.wall) * 1000:7.1f}ms   "
                    f"{bare.processor:8.3f}s{ours.processor:8.3f}s{(ours.processor - bare.processor) * 1000:7.1f}ms",
                    flush=True,
                )
    write_json(options.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
