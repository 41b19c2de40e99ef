"""Runs the sweep's program for one GPU: answers are heard as they come, a crash costs one case, time can run out."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..assets import kernels_dir
from ..target import Answer, Process

Heard = Callable[[Mapping[str, Any], Answer], None]


class TimeIsUp(Exception):
    """The budget is spent; raised out of the reading loop, which then kills the process and its group."""


class _Listening(Process):
    """A process whose answers are passed on one by one."""

    def __init__(
        self, heard: Callable[[Answer], None], until: float, stop: Callable[[], bool], *arguments: Any
    ) -> None:
        self.heard, self.until, self.stop, self.passed = heard, until, stop, 0
        super().__init__(*arguments)

    def _record(self, line: bytes) -> None:
        super()._record(line)
        while self.passed < len(self.answers):
            self.passed += 1
            self.heard(self.answers[self.passed - 1])
        if time.monotonic() > self.until or self.stop():
            raise TimeIsUp


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
    ) -> bool:
        """Ask all requests in order, `heard` getting each with its answer; False if it ended before they were through.

        After a crash, requests that `skip` names by then are left out; where `stop` says so, the rest is given up.
        """
        limit = float("inf") if until is None else until
        left = list(requests)
        directory = pathlib.Path(tempfile.mkdtemp(prefix="attn-doctor-"))
        try:
            for source in [kernels_dir() / "sweep.py", *kernels_dir().glob("_*.py")]:
                (directory / source.name).write_bytes(source.read_bytes())
            while left:
                if time.monotonic() > limit or stop():
                    return False
                if not self._once(directory, left, heard, limit, stop):
                    return False
                left = [request for request in left if not skip(request)]
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return True

    def _once(
        self, directory: pathlib.Path, left: list[Mapping[str, Any]], heard: Heard, limit: float,
        stop: Callable[[], bool],
    ) -> bool:  # fmt: skip
        """One start of the program; takes off `left` what was answered. False if time ran out."""
        done = 0

        def pass_on(answer: Answer) -> None:
            nonlocal done
            request = left[done]
            done += 1
            heard(request, answer)

        process = _Listening(pass_on, limit, stop, self.python, "sweep.py", directory, left, self.env)
        try:
            # A hang must not outlive the budget by much, nor a slow start be taken for one.
            patience = min(self.timeout, max(5.0, limit - time.monotonic()))
            answers, started = process.collect(patience)
        except TimeIsUp:
            return False
        if len(answers) > process.passed:  # the obituary, which no line brought
            late = answers[-1].outcome == "timeout" and time.monotonic() > limit
            if late:
                return False
            pass_on(answers[-1])
            if not started:  # it ends so every time
                for request in left[done:]:
                    heard(request, answers[-1])
                done = len(left)
        del left[:done]
        return True

    def ask(self, request: Mapping[str, Any]) -> Answer:
        """One request on its own."""
        got: list[Answer] = []
        self.run([request], lambda _, answer: got.append(answer))
        return got[0]
