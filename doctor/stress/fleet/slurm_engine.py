"""Reach the nodes of a Slurm allocation through `srun`: one task per node for the snapshot, one per GPU for a sweep.

Tasks write lines that any launcher may mix; `records` puts them together. A node without an answer is reported.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from doctor.errors import DoctorError, NoDiagnosis, reason_of
from doctor.runner.process_group import end_requested
from doctor.util.own_process import own_command
from doctor.util.redact import shortened

MAX_LINE = 1 << 20
MOST_ERRORS = 400  # lines of srun that are kept
GRACE = 5.0  # seconds for srun to end its tasks


@dataclass(frozen=True)
class Allocation:
    """The nodes of a job, and its number."""

    job: str
    nodes: tuple[str, ...]


def allocation() -> Allocation:
    """Return the allocation this runs in; DoctorError outside of one."""
    job = os.environ.get("SLURM_JOB_ID")
    listed = os.environ.get("SLURM_JOB_NODELIST") or os.environ.get("SLURM_NODELIST")
    if not job or not listed:
        raise DoctorError(
            "`--slurm` works inside an allocation", "`salloc --nodes=4 attn-doctor fleet --slurm`, or sbatch"
        )
    srun, scontrol = shutil.which("srun"), shutil.which("scontrol")
    if srun is None or scontrol is None:
        raise NoDiagnosis(f"`{'srun' if srun is None else 'scontrol'}` is not on the PATH")
    done = subprocess.run(
        [scontrol, "show", "hostnames", listed], capture_output=True, text=True, timeout=60, check=False
    )
    nodes = tuple(done.stdout.split())
    if done.returncode or not nodes:
        raise NoDiagnosis(f"`scontrol show hostnames` failed: {shortened(' '.join(done.stderr.split()), 200)}")
    return Allocation(job, nodes)


def probe_command(nodes: Sequence[str], arguments: Sequence[str], per_node: int = 1, gpus: bool = False) -> list[str]:
    """Return the `srun` command that starts this attn-doctor on the nodes of the allocation.

    One node that fails must not end the others: `--kill-on-bad-exit=0 --no-kill --wait=0`.
    """
    return [
        "srun", f"--nodes={len(nodes)}", f"--ntasks={len(nodes) * per_node}", f"--ntasks-per-node={per_node}",
        "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--overlap", f"--nodelist={','.join(nodes)}",
        *(["--gpus-per-task=1"] if gpus else []), *own_command("fleet", *arguments),
    ]  # fmt: skip


class Stream:
    """One `srun`: its lines as they come, and what it said when it ended."""

    def __init__(self, command: Sequence[str], timeout: float, stdin: str | None = None) -> None:
        self.command, self.timeout, self.stdin = list(command), timeout, stdin
        self.errors: list[str] = []
        self.timed_out = False
        self.status: int | None = None

    def lines(self, tick: Callable[[], None] = lambda: None) -> Iterator[str]:
        """Yield the lines of its output until it ends or the time is up; then its tasks are ended."""
        try:
            process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE if self.stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as problem:
            raise NoDiagnosis(f"cannot start `{self.command[0]}`: {reason_of(problem)}") from None
        try:
            if process.stdin is not None and self.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(self.stdin.encode())
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            yield from self._read(process, tick)
            self.status = None if self.timed_out else process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.status = None
        finally:
            _end(process)

    def _read(self, process: subprocess.Popen[bytes], tick: Callable[[], None]) -> Iterator[str]:
        deadline = time.monotonic() + self.timeout
        buffers = {"out": b"", "err": b""}
        with selectors.DefaultSelector() as selector:
            for stream, name in ((process.stdout, "out"), (process.stderr, "err")):
                if stream is not None:
                    selector.register(stream, selectors.EVENT_READ, name)
            while selector.get_map():
                if time.monotonic() > deadline:
                    self.timed_out = True
                    return
                if end_requested():
                    raise KeyboardInterrupt
                for key, _ in selector.select(0.5):
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    *lines, rest = (buffers[key.data] + chunk).split(b"\n")
                    buffers[key.data] = rest if len(rest) <= MAX_LINE else b""
                    for line in lines:
                        text = line.decode("utf-8", "replace")
                        if key.data == "out":
                            yield text
                        elif len(self.errors) < MOST_ERRORS:
                            self.errors.append(" ".join(text.split())[:300])
                tick()

    def error_of(self, node: str) -> str:
        """Return the last line about a node that `srun` wrote, else its last line."""
        own = [line for line in self.errors if node in line]
        return (own or self.errors or ["srun gave no reason"])[-1]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End srun, which ends its tasks: SIGTERM first, as a killed srun leaves them to the controller."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
