"""Run the sweep's program for one device: results are passed on as they arrive, and a crash costs one case."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from doctor.runner.process import KernelProcess
from doctor.runner.result import KernelOutcome, KernelResult
from doctor.runner.run import is_shared_failure, make_run_folder

Request = Mapping[str, Any]
OnResult = Callable[[Request, KernelResult], None]

STARTS = 3  # processes in a row that end before their first case, before no more are started
PAUSE = 1.0  # seconds between two of them: the cause may pass


class TimeIsUp(Exception):
    """The budget is spent; raised while waiting for a process, which ends the process and its group."""


class _StreamingProcess(KernelProcess):
    """A process that passes on each result when it arrives."""

    def __init__(
        self, on_result: Callable[[KernelResult], None], until: float, stop: Callable[[], bool], *arguments: Any
    ) -> None:
        self.on_result, self.until, self.stop, self.passed = on_result, until, stop, 0
        super().__init__(*arguments)

    def check_interrupt(self) -> None:
        """End the wait also when the time is up or the sweep stops."""
        super().check_interrupt()
        if time.monotonic() > self.until or self.stop():
            raise TimeIsUp

    def _record(self, line: bytes) -> None:
        super()._record(line)
        while self.passed < len(self.results):
            self.passed += 1
            self.on_result(self.results[self.passed - 1])


class Worker:
    """Runs requests in one interpreter with one environment; it can be used repeatedly."""

    def __init__(self, python: str, *, timeout: float, env: Mapping[str, str | None] | None = None) -> None:
        self.python, self.timeout, self.env = python, timeout, dict(env or {})

    def run(
        self,
        requests: Sequence[Request],
        on_result: OnResult,
        until: float | None = None,
        skip: Callable[[Request], bool] = lambda request: False,
        stop: Callable[[], bool] = lambda: False,
        on_no_progress: Callable[[KernelResult], None] = lambda result: None,
        max_starts: int = STARTS,
    ) -> bool:
        """Run all requests in order and pass each result to `on_result`; return False if not all were run.

        `until` is a time of the monotonic clock. `skip` is evaluated whenever a process starts; `stop` ends the run.
        `on_no_progress` is called with the last result when `max_starts` processes in a row end before their first
        case: no case is to blame.
        """
        limit = float("inf") if until is None else until
        left = list(requests)
        fruitless = 0
        directory = make_run_folder()
        try:
            while left := [request for request in left if not skip(request)]:
                if time.monotonic() > limit or stop():
                    return False
                failure = self._run_process(directory, left, on_result, limit, stop)
                fruitless = 0 if failure is None else fruitless + 1
                if failure is not None and fruitless >= max_starts:
                    on_no_progress(failure)
                    return False
                if failure is not None:
                    time.sleep(PAUSE)
        except TimeIsUp:
            return False
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return True

    def _run_process(
        self, directory: Path, left: list[Request], on_result: OnResult, limit: float, stop: Callable[[], bool]
    ) -> KernelResult | None:
        """Start the program once and remove from `left` what it ran; return the failure if it ran no case."""
        done = 0

        def pass_on(result: KernelResult) -> None:
            nonlocal done
            request = left[done]
            done += 1
            on_result(request, result)

        process = _StreamingProcess(pass_on, limit, stop, self.python, "sweep", directory, left, self.env)
        results, started = process.collect(self.timeout)
        if len(results) > process.passed:  # the result of a dead process, which no line announced
            last = results[-1]
            if not process.passed and (not started or is_shared_failure(last)):
                return last
            pass_on(last)
        del left[:done]
        return None

    def run_one(self, request: Request, until: float | None = None) -> KernelResult:
        """Run one request; a timeout if `until` passes before its result."""
        results: list[KernelResult] = []
        self.run(
            [request], lambda _, result: results.append(result), until, on_no_progress=results.append, max_starts=1
        )
        if not results:
            return KernelResult(KernelOutcome.TIMEOUT, reason="the time for it was up")
        return results[0]
