"""Analyze several callers at once, each in a process that can be ended when it takes too long."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from tempfile import TemporaryFile
from threading import Lock, Timer
from typing import IO

from doctor.util.own_process import own_command
from doctor.util.redact import shortened

from .findings import CallerResult, Notice
from .serialize import result_from
from .sources import Environment, Package

#: A process is ended after this many times the seconds in which it should fall back by itself.
PATIENCE = 4


def analyze_in_processes(
    jobs: int,
    environment: Environment,
    callers: Sequence[Package],
    callees: Sequence[Package],
    seconds: float,
    on_step: Callable[[str], None],
) -> list[tuple[Package, CallerResult]]:
    """Return the result of each caller; the largest are started first, in at most `jobs` processes."""
    waiting = sorted(callers, key=lambda item: len(environment.files(item)))
    found: dict[str, CallerResult] = {}
    lock = Lock()

    def serve() -> None:
        worker = _Worker(environment, callees, seconds)
        try:
            while True:
                with lock:
                    if not waiting:
                        return
                    caller = waiting.pop()
                on_step(f"reading {caller.release}")
                found[caller.name] = worker.analyze(caller)
        finally:
            worker.close()

    count = max(1, min(jobs, len(callers)))
    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(serve) for _ in range(count)]:
            future.result()
    return [(item, found[item.name]) for item in callers]


class _Worker:
    """One process; it is started with the first caller, and again after it was ended."""

    def __init__(self, environment: Environment, callees: Sequence[Package], seconds: float) -> None:
        self._seconds = seconds
        self._request = {
            "paths": [str(item) for item in environment.installed],
            "code": [str(item) for item in environment.code],
            "models": [str(item) for item in environment.models],
            "overlay": [str(item) for item in environment.overlay],
            "callees": [item.name for item in callees],
            "seconds": seconds,
        }
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def analyze(self, caller: Package) -> CallerResult:
        """Return the result for one caller; one with a notice where the process ended without any."""
        limit = self._seconds * PATIENCE
        process = self._process = self._process or self._start()
        timer = Timer(limit, process.kill)
        timer.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(caller.name) + "\n")
            process.stdin.flush()
            return result_from(json.loads(process.stdout.readline()))
        except (OSError, ValueError, KeyError, TypeError):
            late = timer.finished.is_set()
            last = self.close()
            ended = f"the analysis ended without a result{f': {last}' if last else ''}"
            reason = f"took longer than {limit:.0f} s" if late else ended
            return CallerResult((), (), (Notice(caller.name, f"not analyzed: {reason}"),), (), True)
        finally:
            timer.cancel()

    def _start(self) -> subprocess.Popen[str]:
        self._errors = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed with the process
        process = subprocess.Popen(
            own_command(module="doctor.drift.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            errors="surrogateescape",
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._request) + "\n")
        return process

    def close(self) -> str:
        """End the process, and return the last line that it wrote to stderr; empty where it wrote none."""
        process, self._process = self._process, None
        errors, self._errors = self._errors, None
        if process is not None:
            process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            process.wait()
        if errors is None:
            return ""
        with errors:
            errors.seek(0)
            lines = [line.strip() for line in errors.read()[-4096:].splitlines() if line.strip()]
        return shortened(lines[-1], 160) if lines else ""
