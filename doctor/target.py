"""Run a program in the interpreter under examination and bring its answers back, whatever that program does.

The program may print, fork, hang, die of a signal or never start: each costs at most the case it happened in, and
what happened is the answer. The other half of the contract is `kernels/_probe.py`.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .records import dataclass, field

if TYPE_CHECKING:  # imported where used: a check that runs nothing must not pay for it
    import subprocess

Request = Mapping[str, Any]
Overlay = Mapping[str, "str | None"]

CONTRACT = 1
MAX_LINE = 8 << 20  # a line longer than this is no answer of ours
STDERR_TAIL = 8 << 10

#: Outcomes of a case; the last two are the host's own.
OUTCOMES = ("ran", "refused", "unavailable", "failed", "crashed", "timeout")


@dataclass(frozen=True)
class Answer:
    """What became of one case."""

    outcome: str
    observed: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0
    signal: str | None = None  # name of the signal that ended the process
    where: str | None = None  # the last step that was announced
    stderr_tail: str = ""


def run_program(
    python: str,
    program: str,
    cases: Sequence[Request],
    *,
    timeout: float,
    env: Overlay | None = None,
) -> list[Answer]:
    """Run `program` (a kernel's name, or a path to a .py file) on `cases` with `python`; one answer per case, in order.

    `timeout` is the longest wait, in seconds, for the next answer; the first one includes starting up. `env` is laid
    over our own environment, None removing a variable. Nothing the program does raises here.
    """
    source = pathlib.Path(program)
    if source.suffix != ".py":
        from .assets import kernels_dir

        source = kernels_dir() / f"{program}.py"
    return _run(python, source.name, source.read_text("utf-8"), cases, timeout, env)


def run_snippet(
    python: str, source: str, request: Request | None = None, *, timeout: float, env: Overlay | None = None
) -> Answer:
    """Run a program given as text, under the same contract, on one request."""
    return _run(python, "snippet.py", source, [request or {}], timeout, env)[0]


def ask(
    python: str, program: str, request: Request | None = None, *, timeout: float, env: Overlay | None = None
) -> Answer:
    """`run_program` for a single request."""
    return run_program(python, program, [request or {}], timeout=timeout, env=env)[0]


def _run(
    python: str, name: str, source: str, cases: Sequence[Request], timeout: float, env: Overlay | None
) -> list[Answer]:
    import shutil
    import tempfile

    from .assets import kernels_dir

    answers: list[Answer] = []
    # Ours alone and otherwise empty: no file of the user's current directory can shadow what the program imports.
    directory = pathlib.Path(tempfile.mkdtemp(prefix="attn-doctor-"))
    try:
        (directory / name).write_text(source, "utf-8")
        for shared in kernels_dir().glob("_*.py"):
            (directory / shared.name).write_bytes(shared.read_bytes())
        while len(answers) < len(cases):
            process = Process(python, name, directory, cases[len(answers) :], env)
            got, started = process.collect(timeout)
            answers += got
            # A process that ended before its first case ends so every time: one answer serves all.
            if not started and len(answers) < len(cases):
                answers += [got[-1]] * (len(cases) - len(answers))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return answers


class Process:
    """One start of the program: its pipes, its process group and what it has said so far."""

    def __init__(
        self, python: str, name: str, directory: pathlib.Path, cases: Sequence[Request], env: Overlay | None
    ) -> None:
        import subprocess
        import tempfile

        self.cases = len(cases)
        self.answers: list[Answer] = []
        self.case: int | None = None  # the case under way; None before the first
        self.where: str | None = None
        self.general: str | None = None  # trouble that belongs to no case
        self.line = b""
        self.oversize = False
        self.tail = b""
        self.problem: str | None = None
        if os.sep in python:
            python = os.path.abspath(python)  # noqa: PTH100 - a venv's python is a link that must not be resolved
        self.process: subprocess.Popen[bytes] | None = None
        # A file and not a pipe: a program that never reads its request must not block us.
        with tempfile.TemporaryFile(dir=directory) as request:
            request.write(json.dumps({"contract": CONTRACT, "cases": list(cases)}, default=str).encode())
            request.seek(0)
            try:
                self.process = subprocess.Popen(
                    [python, "-B", name],
                    stdin=request,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=directory,
                    env=_environment(env),
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self.problem = f"cannot start `{python}`: {text}"

    def collect(self, timeout: float) -> tuple[list[Answer], bool]:
        """Wait for answers until the process is gone or late; also whether any case was begun."""
        if self.process is None:
            return [Answer("unavailable", reason=self.problem or "cannot start")], False
        began = time.monotonic()
        timed_out = True
        try:
            timed_out = self._read(self.process, timeout)
        finally:  # also when we are interrupted: nothing of it may outlive us
            self._kill(self.process)
        status = self.process.wait()
        if len(self.answers) < self.cases:
            fresh = self.case is not None and self.case >= len(self.answers)
            # Gone after an answer, before the next case: on purpose (a lost device). The host starts anew behind it.
            if fresh or not self.answers or timed_out:
                self.answers.append(self._obituary(status, timed_out, timeout, time.monotonic() - began))
        return self.answers, self.case is not None

    def _read(self, process: subprocess.Popen[bytes], timeout: float) -> bool:
        """Read both pipes until the process ends; True if it was late."""
        import selectors

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
                answered = len(self.answers)
                for key, _ in ready:
                    chunk = os.read(key.fd, 1 << 16)
                    if chunk:
                        key.data(chunk)
                    else:
                        selector.unregister(key.fileobj)
                if len(self.answers) > answered:
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
            if time.monotonic() >= deadline:
                return True
            time.sleep(0.005)
        return False

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
            self.case, self.where = progress.get("case"), progress.get("step")
        elif record.get("outcome") in OUTCOMES:
            if record.get("case") is None:
                self.general = str(record.get("reason"))
            elif record["case"] == len(self.answers):
                observed = record.get("observed")
                self.answers.append(
                    Answer(
                        outcome=record["outcome"],
                        observed=observed if isinstance(observed, dict) else {"value": observed},
                        reason=record.get("reason") or "",
                        seconds=float(record.get("seconds") or 0.0),
                        where=self.where,
                        stderr_tail=self._tail_text() if record["outcome"] == "failed" else "",
                    )
                )

    def _obituary(self, status: int, timed_out: bool, timeout: float, seconds: float) -> Answer:
        """The answer that the program could not give any more."""
        tail = self._tail_text()
        at = f" at step `{self.where}`" if self.where else " before it took the request"
        last = tail.strip().rsplit("\n", 1)[-1][:500]
        died_of = signal_name(-status) if status < 0 else None
        if timed_out:
            outcome, died_of, reason = "timeout", None, f"no answer within {timeout:g} s{at}"
        elif self.general:
            outcome, reason = "failed", self.general
        elif died_of:
            outcome, reason = "crashed", f"killed by {died_of}{at}"
        else:
            outcome, reason = "crashed", f"exited with status {status} without an answer{at}"
            reason += f": {last}" if last else ""
        return Answer(outcome, {"exit_status": status}, reason, round(seconds, 4), died_of, self.where, tail)

    def _tail_text(self) -> str:
        return self.tail.decode("utf-8", "replace")

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        """End the process and its whole group, grandchildren too (also those left behind by a clean exit)."""
        try:
            os.killpg(process.pid, signal.SIGKILL)  # a new session: group id = pid
        except (ProcessLookupError, PermissionError):
            process.kill()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
