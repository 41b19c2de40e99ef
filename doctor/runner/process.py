"""One process of a kernel program in the target interpreter: start it, read its results, end its process group.

The program may print, fork, hang, be killed by a signal or never start: what happens is the result of the current case.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .process_group import ParentDeathPipe, end_requested, kill, reap_killed, status_of
from .result import KernelOutcome, KernelResult, signal_name, stage_of

LOGGER = logging.getLogger(__name__)

Request = Mapping[str, Any]
Overlay = Mapping[str, "str | None"]

CONTRACT = 1
AHEAD = "--ahead"
#: Folder with the kernel package inside the run folder, named so that it shadows no library.
PACKAGE = "attn_doctor_kernels"
PIPE_HOLDS = 32 << 10  # bytes that a pipe takes at once, even without a reader
MAX_LINE = 8 << 20  # a longer line is no result
STDERR_TAIL = 8 << 10


#: Outcomes that a program may report.
_REPORTED = tuple(outcome.value for outcome in KernelOutcome)


class KernelProcess:
    """One process of a program: its pipes, its process group and its results so far.

    Without `cases` it starts ahead of them: it imports what every case needs, and waits until `send` passes them on.
    """

    def __init__(
        self, python: str, program: str, directory: pathlib.Path, cases: Sequence[Request] | None, env: Overlay | None
    ) -> None:
        reap_killed()
        self.cases = len(cases or ())
        self.results: list[KernelResult] = []
        self.case: int | None = None  # the current case; None before the first
        self.where: str | None = None
        self.general: str | None = None  # an error that belongs to no case
        self.line = b""
        self.oversize = False
        self.tail = b""
        self.problem: str | None = None
        self.stage, self.since = "start", time.monotonic()
        self.stages = {self.stage}  # reached so far
        self.spent: dict[str, float] = {}  # since the last result
        if os.sep in python:
            python = os.path.abspath(python)  # noqa: PTH100 - the link of a venv must not be resolved
        self.process: subprocess.Popen[bytes] | None = None
        self.death_pipe = ParentDeathPipe()
        try:
            # A file and not a pipe: a program that never reads its request must not block us.
            with tempfile.TemporaryFile(dir=directory) as request:
                request.write(_request(cases or ()))
                request.seek(0)
                self.process = self.death_pipe.start(
                    [python, "-B", str(directory / PACKAGE), program] + ([] if cases is not None else [AHEAD]),
                    stdin=subprocess.PIPE if cases is None else request,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=directory,
                    env=_environment(env),
                )
                LOGGER.debug("%s started for %s in process %d", python, program, self.process.pid)
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.problem = f"cannot start `{python}`: {text}"
            self.death_pipe.close()

    def send(self, cases: Sequence[Request]) -> bool:
        """Send the cases to a process that was started ahead of them; return False if it cannot take them."""
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
        """Kill the process and its group."""
        if self.process is not None:
            kill(self.process)
            self.death_pipe.close()

    def collect(self, timeout: float) -> tuple[list[KernelResult], bool]:
        """Return the results, and whether any case started; wait until the process ends or is late.

        `timeout` in seconds holds for the start of the interpreter, each stage before the first case, and each case.
        """
        if self.process is None:
            return [KernelResult(KernelOutcome.UNAVAILABLE, reason=self.problem or "cannot start")], False
        timed_out = True
        try:
            timed_out = self._read(self.process, timeout)
        finally:  # also on an interrupt: no process may outlive us
            self.end()
        if len(self.results) < self.cases:
            status = status_of(self.process)
            fresh = self.case is not None and self.case >= len(self.results)
            # A process that ends between two cases does so on purpose (a lost device): the host starts another one.
            if fresh or not self.results or timed_out:
                self.results.append(self._result_of_dead_process(status, timed_out, timeout))
        return self.results, self.case is not None

    def _read(self, process: subprocess.Popen[bytes], timeout: float) -> bool:
        """Read both pipes until the process ends; return True if it was late."""
        assert process.stdout is not None and process.stderr is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for pipe, sink in ((process.stdout, self._stdout), (process.stderr, self._stderr)):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, sink)
            ended = False
            while selector.get_map():
                # A grandchild may hold the pipes open after the program has ended: check for its end as well.
                ready = selector.select(0.0 if ended else max(0.0, min(0.05, deadline - time.monotonic())))
                reached = len(self.results), len(self.stages)
                for key, _ in ready:
                    chunk = os.read(key.fd, 1 << 16)
                    if chunk:
                        key.data(chunk)
                    else:
                        selector.unregister(key.fileobj)
                self.check_interrupt()  # after the output was read
                if (len(self.results), len(self.stages)) != reached:
                    deadline = time.monotonic() + timeout
                if len(self.results) >= self.cases or self.general:
                    return False
                if ended and (not ready or time.monotonic() > deadline):
                    return False
                if not ended and process.poll() is not None:
                    ended, deadline = True, time.monotonic() + 1.0  # to read what the pipes still hold
                elif not ended and time.monotonic() >= deadline:
                    return True
        while process.poll() is None:  # it closed both pipes but has not ended
            self.check_interrupt()
            if time.monotonic() >= deadline:
                return True
            time.sleep(0.005)
        return False

    def check_interrupt(self) -> None:
        """Raise KeyboardInterrupt if a signal ends the doctor; called repeatedly while waiting."""
        if end_requested():
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
        """Record one line of the protocol; ignore all other output."""
        if b'"contract"' not in line:
            return
        try:
            record = json.loads(line)
        except ValueError:
            return
        except RecursionError:
            self.general = "its answer is nested too deeply"
            return
        if not isinstance(record, dict) or record.get("contract") != CONTRACT:
            return
        progress = record.get("progress")
        if not _is_case(record.get("case")) or (isinstance(progress, dict) and not _is_case(progress.get("case"))):
            self.general = "its answer names a case that is no number"
            return
        if isinstance(progress, dict):
            self.case, self.where = progress.get("case"), str(progress.get("step"))
            self._lap(stage_of(self.where), record.get("at"))
        elif record.get("outcome") in _REPORTED:
            if record.get("case") is None:
                self.general = str(record.get("reason"))
            elif record["case"] == len(self.results):
                observed = record.get("observed")
                self._lap("case", record.get("at"))
                self.results.append(
                    KernelResult(
                        outcome=KernelOutcome(record["outcome"]),
                        observed=observed if isinstance(observed, dict) else {"value": observed},
                        reason=str(record.get("reason") or ""),
                        seconds=_number(record.get("seconds")),
                        where=self.where,
                        stderr_tail=self._tail_text() if record["outcome"] == KernelOutcome.FAILED else "",
                        spent=self._taken(),
                    )
                )

    def _lap(self, following: str, at: Any = None) -> None:
        """End the current stage now, or `at` the time that the program reported, and begin `following`."""
        now = time.monotonic()
        if isinstance(at, float):  # all processes share the clock, but we may read the line late
            now = min(now, max(at, self.since))
        if self.stage != "wait":
            self.spent[self.stage] = self.spent.get(self.stage, 0.0) + now - self.since
        self.stage, self.since = following, now
        self.stages.add(following)

    def _taken(self) -> dict[str, float]:
        """Return the seconds per stage since the last result, and reset them."""
        spent, self.spent = {name: round(seconds, 4) for name, seconds in self.spent.items()}, {}
        return spent

    def _result_of_dead_process(self, status: int | None, timed_out: bool, timeout: float) -> KernelResult:
        """Return the result of a process that ended or did not answer in time."""
        tail = self._tail_text()
        at = f" at step `{self.where}`" if self.where else " before it took the request"
        last = tail.strip().rsplit("\n", 1)[-1][:500]
        died_of = signal_name(-status) if status is not None and status < 0 else None
        self._lap(self.stage)
        if timed_out:
            outcome, died_of, reason = KernelOutcome.TIMEOUT, None, f"no answer within {timeout:g} s{at}"
            if status is None:
                reason += ", and it cannot be killed: it hangs in the system, as in a driver"
        elif self.general:
            outcome, reason = KernelOutcome.FAILED, self.general
        elif died_of:
            outcome, reason = KernelOutcome.CRASHED, f"killed by {died_of}{at}"
        else:
            outcome, reason = KernelOutcome.CRASHED, f"exited with status {status} without an answer{at}"
            reason += f": {last}" if last else ""
        spent = self._taken()
        seconds = round(sum(spent.values()), 4)
        return KernelResult(outcome, {"exit_status": status}, reason, seconds, died_of, self.where, tail, spent)

    def _tail_text(self) -> str:
        return self.tail.decode("utf-8", "replace")


def _request(cases: Sequence[Request]) -> bytes:
    return json.dumps({"contract": CONTRACT, "cases": list(cases)}, default=str).encode()


def _number(value: Any) -> float:
    """Return a number of seconds: the program may have reported anything."""
    if not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        return 0.0
    return float(value)


def _is_case(value: Any) -> bool:
    """Return whether a case is an index, or left out."""
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _environment(overlay: Overlay | None) -> dict[str, str]:
    """Return the user's environment, which is examined too, without what would keep the program from running."""
    environment = dict(os.environ)
    for name, value in (overlay or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    environment.pop("PYTHONINSPECT", None)
    if environment.get("PYTHONPATH"):  # the program runs in another directory
        entries = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(str(pathlib.Path(entry).absolute()) for entry in entries if entry)
    return environment
