"""Keep child processes from outliving the doctor, however it ends: Ctrl-C, a signal, or SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from doctor.errors import DoctorError

try:
    import fcntl
except ImportError:  # Windows: no child is started there
    fcntl = None  # type: ignore[assignment]

#: Signals that end a program: Ctrl-C, Ctrl-\, a scheduler, a closed terminal.
END_SIGNALS = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP")
LAST_WAIT = 10.0  # seconds to wait for a killed process: one that hangs in a driver never ends

#: Set where no interpreter of a target may be started: the variable holds the hint that says which option allows it.
NO_INTERPRETER = "ATTN_DOCTOR_NO_INTERPRETER"

_end_requested = False
_starting = False  # a signal waits until the child that the main thread starts is bound to this process
#: Killed and not yet waited for. The driver takes a while to remove the CUDA context of a process. We do not wait for
#: it, but the next process may find the GPU still held, so starting one waits first.
_killed: list[subprocess.Popen[bytes]] = []


def need_process_groups(what: str) -> None:
    """Raise DoctorError where the system has no process groups: what a hung child started could not be ended."""
    if not hasattr(os, "killpg"):
        raise DoctorError(
            f"{what} needs Linux or macOS: this system has no process groups",
            "`--site-packages`, `--facts` and `--requirements` read files and start no process",
        )


class ParentDeathPipe:
    """A pipe whose other end a child process holds: when our end closes, the kernel kills the child's whole group.

    A signal handler could not do that, because SIGKILL runs none. The child does not have to cooperate; it may hang.
    """

    def __init__(self) -> None:
        self.child_ends: tuple[int, ...] = ()
        self._our_end: int | None = None
        with contextlib.suppress(OSError):  # out of descriptors: starting the child reports it
            end, self._our_end = os.pipe()
            self.child_ends = (end,)

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a child in a group of its own that is bound to this pipe; a signal to end waits until it is.

        `options` are those of Popen. OSError where the program cannot be started, DoctorError where none may be.
        """
        if os.environ.get(NO_INTERPRETER):
            raise DoctorError(f"`{command[0]}` is not started", os.environ[NO_INTERPRETER])
        need_process_groups(f"starting `{command[0]}`")
        with _signals_held():
            process = subprocess.Popen(command, start_new_session=True, pass_fds=self.child_ends, **options)
            self._attach(process.pid)
        return process

    def _attach(self, group: int) -> None:
        """Bind the process group to this pipe; without effect on systems that cannot signal on a closed pipe."""
        for end in self.child_ends:
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(end, fcntl.F_SETOWN, -group)
                fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
        self._close_child_end()

    def _close_child_end(self) -> None:
        """Close our copy of the child's end."""
        for end in self.child_ends:
            os.close(end)
        self.child_ends = ()

    def close(self) -> None:
        """Close both ends: the child has ended or was killed."""
        self._close_child_end()
        if self._our_end is not None:
            os.close(self._our_end)
            self._our_end = None


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Raise KeyboardInterrupt for a signal to end only behind this block; Python calls handlers in the main thread."""
    global _starting
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _starting = True
    try:
        yield
    finally:
        _starting = False
    if _end_requested:
        raise KeyboardInterrupt


def end_requested() -> bool:
    """Return whether a signal ends the doctor: loops in every thread must stop waiting."""
    return _end_requested


@contextlib.contextmanager
def graceful_shutdown() -> Iterator[None]:
    """Raise KeyboardInterrupt on a signal to end, and notify all threads through `end_requested`.

    An ignored signal stays ignored (`nohup`, a background job of a script), and so does a handler that was installed
    by others. Within another such block, and outside the main thread, this does nothing.
    """
    global _end_requested

    def on_signal(number: int, frame: Any) -> None:
        global _end_requested
        _end_requested = True
        if not _starting:
            raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (getattr(signal, name) for name in END_SIGNALS if hasattr(signal, name)):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                with contextlib.suppress(ValueError):  # not in the main thread
                    before[number] = signal.signal(number, on_signal)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if before:
            _end_requested = False


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its whole group, including processes that a clean exit left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)  # a new session: group id = pid
    except (ProcessLookupError, PermissionError):
        process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):  # buffered data without a reader
                pipe.close()
    _killed.append(process)


def reap_killed() -> None:
    """Wait for killed processes, at most LAST_WAIT seconds each."""
    while _killed:
        with contextlib.suppress(IndexError):  # another thread may have taken the last one
            status_of(_killed.pop())


def status_of(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status of a killed process; None if it still exists after LAST_WAIT seconds."""
    try:
        return process.wait(LAST_WAIT)
    except subprocess.TimeoutExpired:
        return None
