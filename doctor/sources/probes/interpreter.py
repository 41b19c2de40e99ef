"""Query an interpreter for its version, prefix and import path; other output does not matter."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from typing import NamedTuple

from doctor.errors import DoctorError, NoDiagnosis, reason_of
from doctor.runner.process_group import ParentDeathPipe
from doctor.util.redact import shortened

LOGGER = logging.getLogger(__name__)
TIMEOUT = 20.0
MAX_OUTPUT = 4 << 20

# Runs in the target, from Python 2.7 on, so that an old one can report its version. It imports only what `site` has
# imported; NUL separates the fields, as no path contains it; marks separate the answer from other output.
_SNIPPET = """
import os, sys
u = os.uname() if hasattr(os, "uname") else ("", "", "", "", "")
try:
    g = os.confstr("CS_GNU_LIBC_VERSION") or ""
except Exception:
    g = ""
i = getattr(sys, "implementation", None)
f = [".".join(str(n) for n in sys.version_info[:3]), i.name if i else "", sys.prefix, u[0], u[4],
     g[6:] if g.startswith("glibc ") else "", os.path.dirname(os.path.abspath(os.__file__))] + sys.path[1:]
enc = getattr(os, "fsencode", lambda text: text)
os.write(1, b"\\n<attn-doctor\\0" + b"\\0".join(enc(x) for x in f) + b"\\0attn-doctor>\\n")
"""
_BEGIN, _END = b"<attn-doctor\0", b"\0attn-doctor>"
_FIELDS = 7


class InterpreterInfo(NamedTuple):
    """What an interpreter reported about itself."""

    version: str
    implementation: str
    prefix: str
    system: str
    machine: str
    glibc: str
    stdlib: str
    path: list[str]


class InterpreterQuery:
    """A query of an interpreter: started at once, its answer is read when it is needed."""

    def __init__(self, python: str) -> None:
        self.python, self._closed = python, False
        environment = {
            # PYTHONSAFEPATH would omit the first entry of sys.path, which the snippet drops itself.
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONSAFEPATH", "PYTHONINSPECT")
        }
        self._death_pipe = ParentDeathPipe()
        try:
            self._process = self._death_pipe.start(
                [python, "-B", "-c", _SNIPPET],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
            )
        except OSError as problem:
            self._death_pipe.close()
            reason = reason_of(problem)
            raise DoctorError(f"cannot start interpreter `{python}`: {reason}") from None
        LOGGER.debug("%s started in process %d to describe itself", python, self._process.pid)

    def answer(self, timeout: float = TIMEOUT) -> InterpreterInfo:
        """Return its answer; DoctorError where it is not Python, NoDiagnosis where it crashes, hangs or is silent."""
        try:
            stdout, stderr, late = _read(self._process, timeout)
        finally:
            self.close()
        _, found, answer = stdout.partition(_BEGIN)
        answer, ended, _ = answer.partition(_END)
        fields = [os.fsdecode(field) for field in answer.split(b"\0")]
        if found and ended and len(fields) >= _FIELDS:
            version, implementation, prefix, system, machine, glibc, stdlib = fields[:_FIELDS]
            return InterpreterInfo(version, implementation, prefix, system, machine, glibc, stdlib, fields[_FIELDS:])
        if late:
            raise NoDiagnosis(f"`{self.python}` did not respond within {timeout:g} s")
        raise _no_answer(self.python, self._process.returncode, stderr)

    def close(self) -> None:
        """Kill it with all its children."""
        if self._closed:
            return
        self._closed = True
        _end(self._process.pid)
        self._process.wait()
        self._death_pipe.close()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _no_answer(python: str, status: int, stderr: bytes) -> DoctorError:
    """Return the error for how it ended instead."""
    last = shortened(stderr.decode("utf-8", "replace").strip().rpartition("\n")[2].strip(), 200)
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return NoDiagnosis(f"`{python}` crashes at start: killed by {name}")
    if status == 0:
        return DoctorError(f"`{python}` is not a Python interpreter, or a sitecustomize ends it or takes its stdout")
    return NoDiagnosis(f"`{python}` fails at start with status {status}" + (f": {last}" if last else ""))


def _read(process: subprocess.Popen[bytes], timeout: float) -> tuple[bytes, bytes, bool]:
    """Return both outputs, up to the answer or the end of the process, and whether it was late.

    Not `communicate`: it would wait for a grandchild that keeps the pipes open.
    """
    assert process.stdout is not None and process.stderr is not None
    output = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    answer, errors = output
    poll = select.poll()
    for descriptor in output:
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    waiting, deadline, late, gone = set(output), time.monotonic() + timeout, False, False
    try:
        while waiting and _END not in output[answer]:
            ready = poll.poll(0 if gone else 50)
            for descriptor, _ in ready:
                chunk = os.read(descriptor, 1 << 16)
                output[descriptor] = (output[descriptor] + chunk)[-MAX_OUTPUT:]
                if not chunk:
                    poll.unregister(descriptor)
                    waiting.discard(descriptor)
            if not ready:
                if gone:
                    break
                gone = process.poll() is not None  # it may have printed since the last poll: read once more
            if time.monotonic() > deadline:
                late = True
                break
        # It closed its pipes: wait for its exit status, within the time limit.
        while not late and _END not in output[answer] and process.poll() is None:
            late = time.monotonic() > deadline
            time.sleep(0.002)
    finally:
        process.stdout.close()
        process.stderr.close()
    return output[answer], output[errors], late


def _end(pid: int) -> None:
    """Kill the whole process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
