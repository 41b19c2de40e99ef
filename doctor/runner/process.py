"""One start of a program in the interpreter under examination: its pipes, its group of processes, and what it says.

The program may print, fork, hang, die of a signal or never start: what happened is the answer to the case under way.
"""

from __future__ import annotations

import json
import os
import pathlib
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .process_group import ParentDeathPipe, asked_to_end, bury, kill, status_of
from .result import OUTCOMES, KernelResult, signal_name, stage_of

Request = Mapping[str, Any]
Overlay = Mapping[str, "str | None"]

CONTRACT = 1
AHEAD = "--ahead"
PIPE_HOLDS = 32 << 10  # bytes that a pipe takes in at once, whether or not somebody reads
MAX_LINE = 8 << 20  # a line longer than this is no answer of ours
STDERR_TAIL = 8 << 10


class KernelProcess:
    """One start of the program: its pipes, its process group and what it has said so far.

    Without `cases` it is started ahead of them: it imports what every case needs, and waits until it is handed them.
    """

    def __init__(
        self, python: str, name: str, directory: pathlib.Path, cases: Sequence[Request] | None, env: Overlay | None
    ) -> None:
        bury()
        self.cases = len(cases or ())
        self.answers: list[KernelResult] = []
        self.case: int | None = None  # the case under way; None before the first
        self.where: str | None = None
        self.general: str | None = None  # trouble that belongs to no case
        self.line = b""
        self.oversize = False
        self.tail = b""
        self.problem: str | None = None
        self.stage, self.since = "start", time.monotonic()
        self.stages = {self.stage}  # those that were reached so far
        self.spent: dict[str, float] = {}  # since the last answer
        if os.sep in python:
            python = os.path.abspath(python)  # noqa: PTH100 - a venv's python is a link that must not be resolved
        self.process: subprocess.Popen[bytes] | None = None
        self.lifeline = ParentDeathPipe()
        try:
            # A file and not a pipe: a program that never reads its request must not block us.
            with tempfile.TemporaryFile(dir=directory) as request:
                request.write(_request(cases or ()))
                request.seek(0)
                self.process = subprocess.Popen(
                    [python, "-B", str(directory / name)] + ([] if cases is not None else [AHEAD]),
                    stdin=subprocess.PIPE if cases is None else request,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=directory,
                    env=_environment(env),
                    start_new_session=True,
                    pass_fds=self.lifeline.theirs,
                )
                self.lifeline.tie(self.process.pid)
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.problem = f"cannot start `{python}`: {text}"
            self.lifeline.cut()

    def hand(self, cases: Sequence[Request]) -> bool:
        """Hand over the cases to a process that was started ahead of them; False where it is gone, and of no use."""
        data, process = _request(cases), self.process
        if process is None or process.stdin is None or process.poll() is not None or len(data) > PIPE_HOLDS:
            return False
        try:
            process.stdin.write(data)
            process.stdin.close()
        except OSError:
            return False
        self.cases = len(cases)
        return True

    def end(self) -> None:
        """End it, whatever it is at."""
        if self.process is not None:
            kill(self.process)
            self.lifeline.cut()

    def collect(self, timeout: float) -> tuple[list[KernelResult], bool]:
        """Wait for answers until the process is gone or late; also whether any case was begun.

        `timeout` is what the interpreter has to start, each stage before the first case, and each case.
        """
        if self.process is None:
            return [KernelResult("unavailable", reason=self.problem or "cannot start")], False
        timed_out = True
        try:
            timed_out = self._read(self.process, timeout)
        finally:  # also when we are interrupted: nothing of it may outlive us
            self.end()
        if len(self.answers) < self.cases:
            status = status_of(self.process)
            fresh = self.case is not None and self.case >= len(self.answers)
            # Gone after an answer, before the next case: on purpose (a lost device). The host starts anew behind it.
            if fresh or not self.answers or timed_out:
                self.answers.append(self._obituary(status, timed_out, timeout))
        return self.answers, self.case is not None

    def _read(self, process: subprocess.Popen[bytes], timeout: float) -> bool:
        """Read both pipes until the process ends; True if it was late."""

        assert process.stdout is not None and process.stderr is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for pipe, sink in ((process.stdout, self._stdout), (process.stderr, self._stderr)):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, sink)
            ended = False
            while selector.get_map():
                # A grandchild may hold the pipes open after the program itself is gone: look for its end as well.
                ready = selector.select(0.0 if ended else max(0.0, min(0.05, deadline - time.monotonic())))
                reached = len(self.answers), len(self.stages)
                for key, _ in ready:
                    chunk = os.read(key.fd, 1 << 16)
                    if chunk:
                        key.data(chunk)
                    else:
                        selector.unregister(key.fileobj)
                self.look()  # now, and not before what was said is heard
                if (len(self.answers), len(self.stages)) != reached:
                    deadline = time.monotonic() + timeout
                if len(self.answers) >= self.cases or self.general:
                    return False
                if ended and (not ready or time.monotonic() > deadline):
                    return False
                if not ended and process.poll() is not None:
                    ended, deadline = True, time.monotonic() + 1.0  # what is in the pipes, not what may still come
                elif not ended and time.monotonic() >= deadline:
                    return True
        while process.poll() is None:  # it closed both pipes and lives on
            self.look()
            if time.monotonic() >= deadline:
                return True
            time.sleep(0.005)
        return False

    def look(self) -> None:
        """Called again and again while we wait, to raise what is to end the waiting."""
        if asked_to_end():
            raise KeyboardInterrupt

    def _stdout(self, chunk: bytes) -> None:
        *lines, rest = (self.line + chunk).split(b"\n")
        for line in lines:
            if not self.oversize:
                self._record(line)
            self.oversize = False
        if len(rest) > MAX_LINE:
            rest, self.oversize = b"", True
        self.line = rest

    def _stderr(self, chunk: bytes) -> None:
        self.tail = (self.tail + chunk)[-STDERR_TAIL:]

    def _record(self, line: bytes) -> None:
        """Take in one line if it is of the contract; all others are somebody's noise."""
        if b'"contract"' not in line:
            return
        try:
            record = json.loads(line)
        except ValueError:
            return
        if not isinstance(record, dict) or record.get("contract") != CONTRACT:
            return
        progress = record.get("progress")
        if isinstance(progress, dict):
            self.case, self.where = progress.get("case"), str(progress.get("step"))
            self._lap(stage_of(self.where), record.get("at"))
        elif record.get("outcome") in OUTCOMES:
            if record.get("case") is None:
                self.general = str(record.get("reason"))
            elif record["case"] == len(self.answers):
                observed = record.get("observed")
                self._lap("case", record.get("at"))
                self.answers.append(
                    KernelResult(
                        outcome=record["outcome"],
                        observed=observed if isinstance(observed, dict) else {"value": observed},
                        reason=str(record.get("reason") or ""),
                        seconds=_number(record.get("seconds")),
                        where=self.where,
                        stderr_tail=self._tail_text() if record["outcome"] == "failed" else "",
                        spent=self._taken(),
                    )
                )

    def _lap(self, following: str, at: Any = None) -> None:
        """The stage under way ends here, or `at` the moment that the program names, and `following` begins."""
        now = time.monotonic()
        if isinstance(at, float):  # one clock for all processes; but we may be busy when the line comes
            now = min(now, max(at, self.since))
        if self.stage != "wait":
            self.spent[self.stage] = self.spent.get(self.stage, 0.0) + now - self.since
        self.stage, self.since = following, now
        self.stages.add(following)

    def _taken(self) -> dict[str, float]:
        """What was spent since the last answer; counted anew from here."""
        spent, self.spent = {name: round(seconds, 4) for name, seconds in self.spent.items()}, {}
        return spent

    def _obituary(self, status: int | None, timed_out: bool, timeout: float) -> KernelResult:
        """The answer that the program could not give any more."""
        tail = self._tail_text()
        at = f" at step `{self.where}`" if self.where else " before it took the request"
        last = tail.strip().rsplit("\n", 1)[-1][:500]
        died_of = signal_name(-status) if status is not None and status < 0 else None
        self._lap(self.stage)
        if timed_out:
            outcome, died_of, reason = "timeout", None, f"no answer within {timeout:g} s{at}"
            if status is None:
                reason += ", and it cannot be killed: it hangs in the system, as in a driver"
        elif self.general:
            outcome, reason = "failed", self.general
        elif died_of:
            outcome, reason = "crashed", f"killed by {died_of}{at}"
        else:
            outcome, reason = "crashed", f"exited with status {status} without an answer{at}"
            reason += f": {last}" if last else ""
        spent = self._taken()
        seconds = round(sum(spent.values()), 4)
        return KernelResult(outcome, {"exit_status": status}, reason, seconds, died_of, self.where, tail, spent)

    def _tail_text(self) -> str:
        return self.tail.decode("utf-8", "replace")


def _request(cases: Sequence[Request]) -> bytes:
    return json.dumps({"contract": CONTRACT, "cases": list(cases)}, default=str).encode()


def _number(value: Any) -> float:
    """What the program says of itself may be anything."""
    return float(value) if isinstance(value, (int, float)) and value == value else 0.0


def _environment(overlay: Overlay | None) -> dict[str, str]:
    """The user's environment, which is part of what we examine, less what would keep the program from starting."""
    environment = dict(os.environ)
    for name, value in (overlay or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    environment.pop("PYTHONSAFEPATH", None)  # hides the program's own directory, where _probe.py is
    environment.pop("PYTHONINSPECT", None)
    if environment.get("PYTHONPATH"):  # the program's directory is another one than ours
        entries = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(str(pathlib.Path(entry).absolute()) for entry in entries if entry)
    return environment
