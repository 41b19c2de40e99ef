"""Runs the sweep's program for one GPU: answers are heard as they come, a crash costs one case, time can run out."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from doctor.errors import NoDiagnosis, reason_of
from doctor.runner.process import KernelProcess
from doctor.runner.result import KernelResult
from doctor.runner.run import everyones
from doctor.util.resources import kernels_dir

Heard = Callable[[Mapping[str, Any], KernelResult], None]

STARTS = 3  # in a row that come to no case, before no more are made
PAUSE = 1.0  # seconds between two of them: what is in the way may pass


class TimeIsUp(Exception):
    """The budget is spent; raised out of the reading loop, which then kills the process and its group."""


class _Listening(KernelProcess):
    """A process whose answers are passed on one by one."""

    def __init__(
        self, heard: Callable[[KernelResult], None], until: float, stop: Callable[[], bool], *arguments: Any
    ) -> None:
        self.heard, self.until, self.stop, self.passed = heard, until, stop, 0
        super().__init__(*arguments)

    def look(self) -> None:
        """End the waiting when time is up, whatever the program is at."""
        super().look()
        if time.monotonic() > self.until or self.stop():
            raise TimeIsUp

    def _record(self, line: bytes) -> None:
        super()._record(line)
        while self.passed < len(self.answers):
            self.passed += 1
            self.heard(self.answers[self.passed - 1])


class Worker:
    """One interpreter, one environment; `run` may be called again and again."""

    def __init__(self, python: str, *, timeout: float, env: Mapping[str, str | None] | None = None) -> None:
        self.python, self.timeout, self.env = python, timeout, dict(env or {})

    def run(
        self,
        requests: Sequence[Mapping[str, Any]],
        heard: Heard,
        until: float | None = None,
        skip: Callable[[Mapping[str, Any]], bool] = lambda request: False,
        stop: Callable[[], bool] = lambda: False,
        barren: Callable[[KernelResult], None] = lambda answer: None,
        starts: int = STARTS,
    ) -> bool:
        """Ask all requests in order, `heard` getting each with its answer; False if it ended before they were through.

        Requests that `skip` names when a process is started are left out; where `stop` says so, the rest is given up.
        `barren` hears what ended the last of `starts` processes in a row that came to no case: none is to blame for it.
        """
        limit = float("inf") if until is None else until
        left = list(requests)
        in_vain = 0
        directory = _furnished()
        try:
            while left := [request for request in left if not skip(request)]:
                if time.monotonic() > limit or stop():
                    return False
                ended = self._once(directory, left, heard, limit, stop)
                in_vain = 0 if ended is None else in_vain + 1
                if ended is not None and in_vain >= starts:
                    barren(ended)
                    return False
                if ended is not None:
                    time.sleep(PAUSE)
        except TimeIsUp:
            return False
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return True

    def _once(
        self, directory: pathlib.Path, left: list[Mapping[str, Any]], heard: Heard, limit: float,
        stop: Callable[[], bool],
    ) -> KernelResult | None:  # fmt: skip
        """One start of the program; takes off `left` what was answered. What ended it where it came to no case."""
        done = 0

        def pass_on(answer: KernelResult) -> None:
            nonlocal done
            request = left[done]
            done += 1
            heard(request, answer)

        process = _Listening(pass_on, limit, stop, self.python, "sweep.py", directory, left, self.env)
        answers, started = process.collect(self.timeout)
        if len(answers) > process.passed:  # the obituary, which no line brought
            last = answers[-1]
            if not process.passed and (not started or everyones(last)):
                return last
            pass_on(last)
        del left[:done]
        return None

    def ask(self, request: Mapping[str, Any]) -> KernelResult:
        """One request on its own."""
        got: list[KernelResult] = []
        self.run([request], lambda _, answer: got.append(answer), barren=got.append, starts=1)
        return got[0]


def _furnished() -> pathlib.Path:
    """A folder with the program and what it imports; ours alone and otherwise empty."""
    directory = None
    try:
        directory = pathlib.Path(tempfile.mkdtemp(prefix="attn-doctor-"))
        for source in [kernels_dir() / "sweep.py", *kernels_dir().glob("_*.py")]:
            (directory / source.name).write_bytes(source.read_bytes())
    except OSError as problem:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
        raise NoDiagnosis(f"cannot write temporary files: {reason_of(problem)}") from None
    return directory
