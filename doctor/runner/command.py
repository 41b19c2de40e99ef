"""Run an installer in its own process group and return its output; none of its processes outlives the call."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from doctor.errors import reason_of
from doctor.util.redact import shortened

from .process_group import need_process_groups
from .result import signal_name

LOGGER = logging.getLogger(__name__)

TAIL = 256 << 10  # bytes of output that are kept
FLOOD = 256 << 20  # bytes of output after which a program is stopped
GRACE = 5.0  # seconds to put things back after an interruption: pip restores what it was replacing

#: Variables that would make an installer use another location than the given one.
_REDIRECTING = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONINSPECT", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER",
    "PIP_PYTHON", "PIP_REQUIREMENT", "PIP_CONSTRAINT", "PIP_QUIET", "UV_TARGET", "UV_PREFIX", "UV_PYTHON",
    "UV_SYSTEM_PYTHON", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_WORKING_DIRECTORY", "VIRTUAL_ENV", "CONDA_PREFIX",
)  # fmt: skip
_UNREAD = "Could not fetch URL "  # pip's message for a page of an index
_QUIET = {
    "NO_COLOR": "1", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off",
    "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never", "PYTHONUNBUFFERED": "1",
}  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """The result of one program."""

    command: tuple[str, ...]
    code: int | None  # exit status, negative for a signal; None: it did not end by itself
    out: str
    err: str
    seconds: float
    trouble: str | None = None  # why there is no exit status
    unread: tuple[str, ...] = ()  # `ADDRESS: why`: pages of an index that pip could not read, only in its log

    @property
    def good(self) -> bool:
        """Return whether it ended with status 0."""
        return self.code == 0

    @property
    def said(self) -> str:
        """Return the output of both streams."""
        return f"{self.out}\n{self.err}"

    @property
    def end(self) -> str:
        """Describe how it ended, with the last line of its output."""
        if self.trouble is not None:
            return self.trouble
        lines = [line.strip() for line in (self.err.strip() or self.out.strip()).splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        last = shortened((errors or lines or [""])[-1], 300)
        code = self.code or 0
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with status {code}"
        return f"{how}: {last}" if last else how


def run_child(
    command: Sequence[str], *, timeout: float, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Ran:
    """Run a program and return its result; an interrupt ends its whole group and is raised again.

    It runs in an empty folder unless `cwd` names one: `python -m pip` would import modules of the current folder, and
    uv would read its configuration there.
    """
    need_process_groups(f"starting `{command[0]}`")
    began = time.monotonic()
    program = os.path.abspath(command[0]) if os.sep in command[0] else command[0]  # noqa: PTH100 - links stay
    with (
        tempfile.TemporaryDirectory(prefix="attn-doctor-") as empty,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        tempfile.NamedTemporaryFile() as log,
    ):
        try:
            process = subprocess.Popen(
                [program, *command[1:]], stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd or empty,
                env=environment({"PIP_LOG": log.name, **(env or {})}), start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as problem:
            reason = reason_of(problem)
            return Ran(tuple(command), None, "", "", 0.0, f"cannot be started: {reason}")
        trouble: str | None = "was interrupted"
        try:
            trouble = _wait(process, (out, err), began + timeout, timeout)
        finally:
            _end(process)
        code = None if trouble else process.returncode
        seconds = round(time.monotonic() - began, 3)
        LOGGER.debug("%s: %s after %.1f s", command[0], trouble or f"exit code {code}", seconds)
        return Ran(tuple(command), code, _tail(out), _tail(err), seconds, trouble, _unread(Path(log.name)))


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the user's environment, with registries and proxies, without variables that redirect an installer."""
    kept = {name: value for name, value in os.environ.items() if name not in _REDIRECTING}
    return {**kept, **_QUIET, **(more or {})}


def _wait(
    process: subprocess.Popen[bytes], streams: tuple[IO[bytes], IO[bytes]], deadline: float, timeout: float
) -> str | None:
    while True:
        try:
            process.wait(timeout=max(0.0, min(0.2, deadline - time.monotonic())))
            return None
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return f"gave no answer within {timeout:g} s"
            if any(os.fstat(stream.fileno()).st_size > FLOOD for stream in streams):
                return f"printed more than {FLOOD >> 20} MiB"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the group: first by SIGINT, so that the installer can restore what it was replacing."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # grandchildren too
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(stream: IO[bytes]) -> str:
    size = os.fstat(stream.fileno()).st_size
    stream.seek(max(0, size - TAIL))
    return stream.read(TAIL).decode("utf-8", "replace")


def _unread(log: Path) -> tuple[str, ...]:
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            pages = (line.partition(_UNREAD)[2].strip() for line in lines if _UNREAD in line)
            return tuple(dict.fromkeys(page.removesuffix(" - skipping") for page in pages))
    except OSError:
        return ()  # the program removed its log
