"""Analyze callers in a process of its own: read a request and names on stdin, write one JSON line for each name.

    python -m doctor.drift.worker

The first line is the request that `processes.py` writes. Foreign sources that exhaust time, memory or the stack of this
process cost one result and not the command that started it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from .analysis import analyze_caller
from .findings import CallerResult, Limits, Notice
from .serialize import as_data
from .sources import Environment, Package


def analyze_guarded(
    environment: Environment, caller: Package, callees: Sequence[Package], seconds: float
) -> CallerResult:
    """Analyze one caller; a fault of the analysis costs this caller only, with a notice."""
    try:
        return analyze_caller(environment, caller, callees, seconds)
    except (RecursionError, MemoryError) as error:
        return CallerResult((), (), (Notice(caller.name, f"not analyzed: {type(error).__name__}"),), (), True)


def analyze_here(
    environment: Environment,
    callers: Sequence[Package],
    callees: Sequence[Package],
    limits: Limits,
    on_step: Callable[[str], None] = lambda text: None,
) -> Generator[tuple[Package, CallerResult], None, None]:
    """Analyze callers one after the other in this process."""
    for caller in callers:
        on_step(f"reading {caller.release}")
        yield caller, analyze_guarded(environment, caller, callees, limits.seconds)


def main() -> None:
    """Serve until stdin ends."""
    gc.disable()  # syntax trees hold no cycles, and searching them for some takes a third of the time
    answers = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape")
    request = json.loads(sys.stdin.readline())
    folders = {name: [Path(item) for item in request[name]] for name in ("paths", "code", "models", "overlay")}
    environment = Environment(
        folders["paths"],
        frozenset(request["stack"]),
        code=folders["code"],
        models=folders["models"],
        overlay=folders["overlay"],
    )
    callees = [environment.packages[name] for name in request["callees"]]
    for line in sys.stdin:
        result = analyze_guarded(environment, environment.packages[json.loads(line)], callees, request["seconds"])
        answers.write(f"{json.dumps(as_data(result))}\n")
        answers.flush()
        gc.collect()


if __name__ == "__main__":
    main()
