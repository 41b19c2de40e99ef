"""What keeps a process of ours from outliving us, however we end: Ctrl-C, a signal, or a kill that nobody can catch."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

#: What asks a program to end: Ctrl-C, a scheduler, a terminal that is closed.
REQUESTS = ("SIGINT", "SIGTERM", "SIGHUP")
LAST_WAIT = 10.0  # seconds for what was killed to be gone: where the driver hangs, it never is

_asked = False
#: Killed and not yet waited for. The driver takes a while to tear down the CUDA context of a process; we need not stand
#: by, but who starts next may find the GPU still held, and so waits first.
_killed: list[subprocess.Popen[bytes]] = []


class ParentDeathPipe:
    """A pipe of which the program holds one end: when ours closes, the kernel kills the program's whole group.

    A handler could not do that: none is run when we are killed. Nothing need listen in the program, which may hang.
    """

    def __init__(self) -> None:
        self.theirs: tuple[int, ...] = ()
        self._ours: int | None = None
        with contextlib.suppress(OSError):  # out of descriptors: the start of the program will say so
            end, self._ours = os.pipe()
            self.theirs = (end,)

    def tie(self, group: int) -> None:
        """The group that depends on us, once it is there; where the system has no such signal, none does."""

        for end in self.theirs:
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(end, fcntl.F_SETOWN, -group)
                fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
        self.hand_over()

    def hand_over(self) -> None:
        """Their end is theirs alone."""
        for end in self.theirs:
            os.close(end)
        self.theirs = ()

    def cut(self) -> None:
        """Nothing depends on us any more."""
        self.hand_over()
        if self._ours is not None:
            os.close(self._ours)
            self._ours = None


def asked_to_end() -> bool:
    """Whether a request to end has come in: whoever waits, in whatever thread, waits no longer."""
    return _asked


@contextlib.contextmanager
def graceful_shutdown() -> Iterator[None]:
    """A request to end raises KeyboardInterrupt here, and is seen by all threads through `asked_to_end`.

    What is ignored stays so (`nohup`, a job in the background of a script), and so does a handler that somebody else
    installed; within another such block, and outside the main thread, this does nothing.
    """
    global _asked

    def heard(number: int, frame: Any) -> None:
        global _asked
        _asked = True
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (getattr(signal, name) for name in REQUESTS if hasattr(signal, name)):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                with contextlib.suppress(ValueError):  # not in the main thread
                    before[number] = signal.signal(number, heard)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if before:
            _asked = False


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and its whole group, grandchildren too (also those left behind by a clean exit)."""
    try:
        os.killpg(process.pid, signal.SIGKILL)  # a new session: group id = pid
    except (ProcessLookupError, PermissionError):
        process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what stdin still held finds no reader
                pipe.close()
    _killed.append(process)


def bury() -> None:
    """Wait for what was killed, within reason."""
    while _killed:
        with contextlib.suppress(IndexError):  # two threads may be at it
            status_of(_killed.pop())


def status_of(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status of a process that was killed; None if it is there all the same."""

    try:
        return process.wait(LAST_WAIT)
    except subprocess.TimeoutExpired:
        return None
