"""Time `attn-doctor run -- PROGRAM` next to the bare program, in pairs: programs that print many lines, to each target.

    python bench/run.py [--pairs 7] [--lines 1000000]

Targets: /dev/null, a file, and a pipe that `cat >/dev/null` reads. `start` is a program that prints nothing: what `run`
costs each time. `rest` is what it costs further, for the lines.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from _harness import DOCTOR, arguments, import_ours, settings, write_json

import_ours()

_PRINT = "import sys\nfor n in range({lines}): print('step', n, 'loss', 2.25{flush})"
TARGETS = ("/dev/null", "file", "pipe")


def programs(lines: int) -> dict[str, list[str]]:
    """Return the programs to time: name -> command."""
    return {
        "start": ["true"],
        "seq": ["seq", str(lines)],
        "python": [sys.executable, "-c", _PRINT.format(lines=lines, flush="")],
        "python flush": [sys.executable, "-c", _PRINT.format(lines=lines, flush=", flush=True")],
    }


def seconds(command: Sequence[str], target: str, work: Path) -> float:
    """Return how long a command takes until its reader, if any, has seen the end of its output."""
    begin = time.perf_counter()
    if target == "pipe":
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=settings(work)) as job:
            subprocess.run(["cat"], stdin=job.stdout, stdout=subprocess.DEVNULL, check=True)
    else:
        with Path(target if target != "file" else work / "out").open("wb") as stream:
            subprocess.run(command, stdout=stream, env=settings(work), check=True)
    return time.perf_counter() - begin


def pairs(command: list[str], target: str, count: int, work: Path) -> list[tuple[float, float]]:
    """Return the seconds of the bare program and of `run`, one after the other, in turn first."""
    wrapped = [*DOCTOR, "run", "--", *command]
    found = []
    for number in range(count + 1):
        first, second = (command, wrapped) if number % 2 else (wrapped, command)
        one, other = seconds(first, target, work), seconds(second, target, work)
        found.append((one, other) if number % 2 else (other, one))
    return found[1:]  # the first pair fills caches


def main() -> int:
    """Measure and print the median of each pair's difference."""
    parser = arguments(__doc__, pairs=7, lines=1_000_000)
    options = parser.parse_args()
    result: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        print(f"{'program':14}{'target':11}{'bare':>9}{'run':>9}{'more':>9}{'share':>8}{'rest':>9}{'share':>8}")
        start = 0.0
        for name, command in programs(options.lines).items():
            for target in TARGETS:
                timed = pairs(command, target, options.pairs, work)
                bare = statistics.median(one for one, _ in timed)
                more = statistics.median(other - one for one, other in timed)
                start = more if name == "start" and target == TARGETS[0] else start
                rest = more - start
                result[f"{name} {target}"] = {"bare": bare, "more": more, "rest": rest}
                print(
                    f"{name:14}{target:11}{bare:8.3f}s{bare + more:8.3f}s{more * 1000:7.1f}ms{more / bare:8.1%}"
                    f"{rest * 1000:7.1f}ms{rest / bare:8.1%}",
                    flush=True,
                )
    write_json(options.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
