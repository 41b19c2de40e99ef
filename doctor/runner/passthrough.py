"""Run a command as if nothing stood between it and the terminal, and keep what it prints for a later look.

Where our own stream is a file or /dev/null, the command inherits it: nothing is copied, and the file is read after a
failure. Otherwise an output stream of the command is a pipe, or a pseudo-terminal where ours is a terminal, and what
comes out of it is written to our own stream at once. The command inherits standard input.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import selectors
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence

from doctor.errors import DoctorError, reason_of

from .spool import Spool

_CHUNK = 1 << 16
_PIPE = 1 << 20  # bytes a pipe holds, so that the command seldom waits
_QUIET = 0.2  # seconds without output after which a command that has ended is taken as done
_PAUSE = 0.002  # seconds between reads of a busy pipe: fewer, larger reads
_BUSY = 1 << 16  # bytes; a read with fewer is followed by the pause
_FORWARDED = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH")
_FROM_KERNEL = 128  # si_code of a signal that the terminal sent, to the command as well
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of a shell


class Outcome:
    """How a command ended: its exit code, or the signal that ended it."""

    def __init__(self, code: int, signal: int | None, spool: Spool) -> None:
        self.code, self.signal, self.spool = code, signal, spool

    @property
    def failed(self) -> bool:
        """Whether it did not end with exit code 0."""
        return self.signal is not None or self.code != 0


def run_command(command: Sequence[str]) -> Outcome:
    """Run a command to its end, forwarding streams and signals; DoctorError carries the exit code of a shell."""
    spool = Spool()
    plumbing = _Plumbing(spool)
    try:
        out, errors = plumbing.write_end(1), plumbing.write_end(2)
        process = subprocess.Popen(command, stdout=out, stderr=errors, close_fds=False)  # it inherits what we did
    except OSError as problem:
        plumbing.close_write_ends()
        raise CommandNotStarted(command[0], problem) from None
    plumbing.close_write_ends()
    with _forwarding(process, plumbing):
        plumbing.copy_until_end(process)
    status = process.returncode
    return Outcome(max(status, 0), -status if status < 0 else None, spool)


class CommandNotStarted(DoctorError):
    """The command does not exist or cannot be executed."""

    def __init__(self, name: str, problem: OSError) -> None:
        super().__init__(f"cannot run `{name}`: {reason_of(problem)}")
        self.exit_code = NOT_FOUND if isinstance(problem, FileNotFoundError) else NOT_EXECUTABLE


def end_like(outcome: Outcome) -> int:
    """End this process by the signal that ended the command; return its exit code otherwise."""
    if outcome.signal is None:
        return outcome.code
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its core already
    signal.signal(outcome.signal, signal.SIG_DFL) if outcome.signal not in (signal.SIGKILL, signal.SIGSTOP) else None
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {outcome.signal})
    os.kill(os.getpid(), outcome.signal)
    return 128 + outcome.signal


class _Plumbing:
    """The pipes between a command and our streams: one for both where ours are the same file."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._ends: dict[int, tuple[int, int]] = {}  # stream -> read end, write end; no entry: inherited
        self._terminals: list[int] = []
        shared = _same_file(1, 2)
        for stream in (1, 2):
            again = stream == 2 and shared
            if not spool.note_target(stream, written_before=again):
                self._ends[stream] = self._ends[1] if again else self._pair(stream)
        self._targets = {ends[0]: stream for stream, ends in reversed(self._ends.items())}

    def _pair(self, stream: int) -> tuple[int, int]:
        if os.isatty(stream):
            read_end, write_end = os.openpty()
            mode = termios.tcgetattr(write_end)
            mode[1] &= ~termios.OPOST  # our terminal does that already
            termios.tcsetattr(write_end, termios.TCSANOW, mode)
            self._terminals.append(read_end)
            self.copy_size()
            return read_end, write_end
        read_end, write_end = os.pipe()
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE)
        return read_end, write_end

    def copy_size(self) -> None:
        """Give the pseudo-terminals the size of ours."""
        for terminal in self._terminals:
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(1 if os.isatty(1) else 2, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
                fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)

    def write_end(self, stream: int) -> int | None:
        """Return what the command gets as this stream; None for our own."""
        return self._ends[stream][1] if stream in self._ends else None

    def close_write_ends(self) -> None:
        """Leave the command as the only writer."""
        for end in {ends[1] for ends in self._ends.values()}:
            os.close(end)

    def copy_until_end(self, process: subprocess.Popen[bytes]) -> None:
        """Copy all output; once the command has ended, what its children still print is copied in the background."""
        with selectors.DefaultSelector() as selector:
            for end in self._targets:
                selector.register(end, selectors.EVENT_READ)
            ended = _watch_end(process, selector)
            last = time.monotonic()
            while selector.get_map().keys() - {ended}:
                for key, _ in selector.select(_QUIET):
                    if key.fd == ended:
                        selector.unregister(ended)
                        os.close(ended)
                        ended = None
                        process.wait()
                    elif self._copy(key.fd):
                        last = time.monotonic()
                    else:
                        selector.unregister(key.fd)
                if process.poll() is not None and time.monotonic() - last > _QUIET:
                    self._leave_to_background([end for end in self._targets if end in selector.get_map()])
                    break
        process.wait()

    def _copy(self, end: int) -> bool:
        """Copy what is there; False at the end of the stream."""
        try:
            data = os.read(end, _PIPE)
        except OSError:  # a pseudo-terminal without a writer
            return False
        if not data:
            return False
        target = self._targets[end]
        if not _write_all(target, data):
            os.close(end)  # our reader has left: the command finds a broken pipe, as it would without us
            return False
        self._spool.add(target, data)
        if len(data) < _BUSY and end not in self._terminals:
            time.sleep(_PAUSE)
        return True

    def _leave_to_background(self, ends: Sequence[int]) -> None:
        """Let a process of its own go on copying for children that outlive the command."""
        if not ends or os.fork():
            return
        try:
            with selectors.DefaultSelector() as selector:
                for end in ends:
                    selector.register(end, selectors.EVENT_READ)
                while selector.get_map():
                    for key, _ in selector.select():
                        try:
                            data = os.read(key.fd, _CHUNK)
                        except OSError:
                            data = b""
                        if not data or not _write_all(self._targets[key.fd], data):
                            selector.unregister(key.fd)
        finally:
            os._exit(0)


def _watch_end(process: subprocess.Popen[bytes], selector: selectors.BaseSelector) -> int | None:
    """Return a descriptor that becomes readable when the command ends; None where the system has none."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        return None
    selector.register(descriptor, selectors.EVENT_READ)
    return descriptor


def _write_all(stream: int, data: bytes) -> bool:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(stream, view) :]
        except BlockingIOError:
            time.sleep(_PAUSE)
        except OSError:
            return False
    return True


def _same_file(one: int, other: int) -> bool:
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


@contextlib.contextmanager
def _forwarding(process: subprocess.Popen[bytes], plumbing: _Plumbing) -> Iterator[None]:
    """Pass signals on to the command, except those that the terminal sends to both of us."""
    numbers = {getattr(signal, name) for name in _FORWARDED}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    done = threading.Event()

    def forward() -> None:
        while not done.is_set():
            info = signal.sigtimedwait(numbers, 0.5)
            if info is None:
                continue
            if info.si_signo == signal.SIGWINCH:
                plumbing.copy_size()
            if info.si_code != _FROM_KERNEL and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, info.si_signo)

    thread = threading.Thread(target=forward, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
