"""Analyze several callers at once, each in a process that can be ended at any time."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO

from doctor.runner.process_group import ParentDeathPipe, end_requested, kill, status_of
from doctor.util.own_process import own_command
from doctor.util.redact import shortened

from .findings import CallerResult, Limits, Notice
from .serialize import result_from
from .sources import Environment, Package

#: A process is ended after this many times the seconds in which it should fall back by itself.
PATIENCE = 4
PAUSE = 0.1  # seconds between two looks at the clock, and at whether a signal ends this program


def analyze_in_processes(
    jobs: int,
    environment: Environment,
    callers: Sequence[Package],
    callees: Sequence[Package],
    limits: Limits,
    on_step: Callable[[str], None],
) -> Generator[tuple[Package, CallerResult], None, None]:
    """Yield the result of each caller when it is there, started in this order, in at most `jobs` processes.

    Closing the iterator, or an exception such as Ctrl-C, ends all processes at once.
    """
    waiting = list(callers)
    workers = [_Worker(environment, callees, limits.seconds) for _ in range(max(1, min(jobs, len(callers))))]
    done = 0
    with selectors.DefaultSelector() as selector:
        try:
            while time.monotonic() < limits.until:
                for worker in workers:
                    if worker.caller is None and waiting:
                        worker.begin(waiting.pop(0), selector)
                busy = [str(worker.caller.release) for worker in workers if worker.caller is not None]
                if not busy:
                    return
                on_step(f"reading {', '.join(busy)} ({done} of {len(callers)} packages done)")
                ended = _ended(workers, selector, limits.until)
                done += len(ended)
                yield from ended
        finally:
            for worker in workers:
                worker.close(selector)


def _ended(
    workers: Sequence[_Worker], selector: selectors.BaseSelector, until: float
) -> list[tuple[Package, CallerResult]]:
    """Return what the workers found, as soon as one of them has; nothing when the time is up."""
    found: list[tuple[Package, CallerResult]] = []
    while not found and time.monotonic() < until:
        if end_requested():
            raise KeyboardInterrupt
        for key, _ in selector.select(PAUSE):
            worker: _Worker = key.data
            found += worker.read(selector)
        for worker in workers:
            found += worker.check_time(selector)
    return found


class _Worker:
    """One process; it is started with the first caller, and again after it was ended."""

    def __init__(self, environment: Environment, callees: Sequence[Package], seconds: float) -> None:
        self._limit = seconds * PATIENCE
        self._request = {
            "paths": [str(item) for item in environment.installed],
            "code": [str(item) for item in environment.code],
            "models": [str(item) for item in environment.models],
            "overlay": [str(item) for item in environment.overlay],
            "stack": sorted(environment.stack),
            "callees": [item.name for item in callees],
            "seconds": seconds,
        }
        self.caller: Package | None = None
        """What is being analyzed."""
        self._since = 0.0
        self._line = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._death_pipe: ParentDeathPipe | None = None
        self._errors: IO[bytes] | None = None

    def begin(self, caller: Package, selector: selectors.BaseSelector) -> None:
        """Have the process analyze a caller."""
        self.caller, self._since, self._line = caller, time.monotonic(), b""
        with suppress(OSError):  # it ended before it read this: its output ends too
            process = self._process or self._start(selector)
            assert process.stdin is not None
            process.stdin.write(json.dumps(caller.name).encode() + b"\n")
            process.stdin.flush()

    def _start(self, selector: selectors.BaseSelector) -> subprocess.Popen[bytes]:
        self._errors = TemporaryFile()  # noqa: SIM115 - closed with the process
        self._death_pipe = ParentDeathPipe()
        self._process = self._death_pipe.start(
            own_command(module="doctor.drift.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        selector.register(self._process.stdout, selectors.EVENT_READ, self)
        self._process.stdin.write(json.dumps(self._request).encode() + b"\n")
        return self._process

    def read(self, selector: selectors.BaseSelector) -> list[tuple[Package, CallerResult]]:
        """Return the result that the process has written, once it is whole; one with a notice where it ended."""
        process, caller = self._process, self.caller
        if process is None or process.stdout is None:
            return []
        try:
            chunk = os.read(process.stdout.fileno(), 1 << 20)
        except BlockingIOError:
            return []
        line, whole, _ = (self._line + chunk).partition(b"\n")
        self._line = line
        if caller is None or (chunk and not whole):
            return []
        self.caller = None
        try:
            return [(caller, result_from(json.loads(line.decode("utf-8", "surrogateescape"))))]
        except (ValueError, KeyError, TypeError):
            last = self.close(selector)
            return [(caller, _failed(caller, f"the analysis ended without a result{f': {last}' if last else ''}"))]

    def check_time(self, selector: selectors.BaseSelector) -> list[tuple[Package, CallerResult]]:
        """End a process that takes too long, or that could not be started; return its result with a notice."""
        caller = self.caller
        if caller is None or (self._process is not None and time.monotonic() - self._since <= self._limit):
            return []
        reason = f"took longer than {self._limit:.0f} s" if self._process is not None else "cannot start a process"
        self.close(selector)
        return [(caller, _failed(caller, reason))]

    def close(self, selector: selectors.BaseSelector) -> str:
        """End the process, and return the last line that it wrote to stderr; empty where it wrote none."""
        process, self._process = self._process, None
        errors, self._errors = self._errors, None
        self.caller = None
        if process is not None:
            if process.stdout is not None:
                with suppress(KeyError, ValueError):
                    selector.unregister(process.stdout)
            kill(process)
            status_of(process)
        if self._death_pipe is not None:
            self._death_pipe.close()
            self._death_pipe = None
        if errors is None:
            return ""
        with errors:
            errors.seek(0)
            text = errors.read()[-4096:].decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return shortened(lines[-1], 160) if lines else ""


def _failed(caller: Package, reason: str) -> CallerResult:
    return CallerResult((), (), (Notice(caller.name, f"not analyzed: {reason}"),), (), True)
