"""Read files that anyone may have written: every reader of an input file goes through here.

Only regular files are read, up to a limit. A pipe or a device is read where the command line names it, with a limit of
time as well. Inside a project, a link must not lead out of it, unless the user trusts the project.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from doctor.errors import DoctorError, reason_of

from .open_flags import BINARY, CLOSE_ON_EXEC, NO_WAIT

MAX_BYTES = 8 * 1024 * 1024
MAX_LINE = 1024 * 1024  # bytes of one line of JSON Lines
MOST_SKIPPED = 64 * 1024 * 1024  # characters of a line that is too long, until reading stops
WRITER_WAIT = 2.0  # seconds until somebody opens a named pipe for writing
DATA_WAIT = 60.0  # seconds until the other end of a pipe sends its next bytes
_TOP = ".git"  # marks the top of a checkout; without one, these mark a project
_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg")
_SYSTEM = ("/dev/", "/proc/")  # their links name what the process itself holds open

TRUST_HINT = "`--trust-project` allows it, if you trust the project's files"

_trusted = False


@contextlib.contextmanager
def trust_project(trusted: bool = True) -> Iterator[None]:
    """Let links and paths of the project lead out of it within the block."""
    global _trusted
    before, _trusted = _trusted, trusted
    try:
        yield
    finally:
        _trusted = before


def is_trusted() -> bool:
    """Return whether the user trusts the project under examination."""
    return _trusted


def read_text(path: Path, what: str, limit: int = MAX_BYTES, *, named: bool = False) -> str:
    """Return the text of a file; DoctorError where it is unreadable, no regular file, binary or too large.

    named: the command line names the file, so that it may be a pipe, as of `<(command)`.
    """
    return text_of(read_bytes(path, what, limit, named=named), path, what)


def text_of(data: bytes, path: Path, what: str) -> str:
    """Return the content of a file as text; DoctorError where it is binary."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DoctorError(f"{what} `{path}` is not UTF-8 text") from None
    if "\0" in text:
        raise DoctorError(f"{what} `{path}` is binary, not text")
    return text


def read_bytes(path: Path, what: str, limit: int = MAX_BYTES, *, named: bool = False) -> bytes:
    """Return the content of a file; DoctorError where it is unreadable, no regular file or larger than `limit`."""
    try:
        _refuse_link_out(path, what)
        data = _read(path, limit, named)
    except (OSError, RuntimeError) as problem:  # RuntimeError: a loop of links, before Python 3.13
        raise DoctorError(f"cannot read {what} `{path}`: {reason_of(problem)}") from None
    except ValueError:
        raise DoctorError(f"cannot read {what}: `{path!s}` is not a file name".replace("\0", "\\0")) from None
    if len(data) > limit:
        raise DoctorError(f"{what} `{path}` is larger than {limit // (1024 * 1024)} MiB")
    return data


def regular_bytes(path: Path, limit: int) -> bytes:
    """Return at most `limit` bytes of the beginning of a regular file; OSError for anything else."""
    with open_regular(path) as stream:
        return stream.read(limit)


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file to read; OSError for anything else, without waiting for a pipe."""
    _require_regular(os.stat(path).st_mode)  # noqa: PTH116 - before it is opened: opening a device may have an effect
    stream = open(path, "rb", opener=_without_waiting)  # noqa: SIM115
    try:
        _require_regular(os.fstat(stream.fileno()).st_mode)
    except OSError:
        stream.close()
        raise
    return stream


def open_stream(path: Path) -> BinaryIO:
    """Open a file that the command line names, to read it bit by bit; OSError where it cannot be opened."""
    return open_regular(path) if stat.S_ISREG(path.stat().st_mode) else io.BufferedReader(_Pipe(path, None))


def bounded_lines(stream: TextIO, limit: int) -> Iterator[str | None]:
    """Yield each line, None for one that is longer; no more than `limit` characters are in memory at a time.

    OSError where a line does not end at all, as those of a device.
    """
    while line := stream.readline(limit + 1):
        if len(line) <= limit:
            yield line
            continue
        skipped = 0
        while line and not line.endswith("\n"):
            line = stream.readline(limit)
            skipped += len(line)
            if skipped > MOST_SKIPPED:
                raise OSError(errno.EFBIG, f"a line is longer than {MOST_SKIPPED >> 20} MiB")
        yield None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | BINARY | NO_WAIT)


def contained(path: Path, top: Path) -> bool:
    """Return whether a path, with its links followed, is inside a folder; a path that cannot exist is outside."""
    try:
        return path.resolve().is_relative_to(top.resolve())
    except (OSError, ValueError, RuntimeError):
        return False


def project_top(path: Path) -> Path | None:
    """Return the top of the checkout around a file or folder, else of the project, else None; links stay as named."""
    around = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow the links
    for marks in ((_TOP,), _PROJECT):
        for parent in (around, *around.parents):
            if any((parent / mark).exists() for mark in marks):
                return parent
    return None


def _refuse_link_out(path: Path, what: str) -> None:
    """Raise DoctorError for a link inside a project that leads out of it."""
    absolute = os.path.abspath(path)  # noqa: PTH100
    if _trusted or absolute.startswith(_SYSTEM):
        return
    if os.path.realpath(absolute) == absolute:
        return
    for link in reversed((Path(absolute), *Path(absolute).parents)):
        if not link.is_symlink():
            continue
        top = project_top(link.parent)  # not of the link itself: its target may be a checkout of its own
        if top is None and link == Path(absolute):  # a folder above may be linked as the machine has it
            top = _folder_of(link)
        if top is not None and not contained(link, top):
            raise DoctorError(f"{what} `{path}` is a link that leads out of the project", TRUST_HINT)


def _folder_of(link: Path) -> Path:
    """Return what a file outside any project belongs to: its folder, or the model in a cache of Hugging Face."""
    for folder in link.parents:
        if folder.name == "snapshots" and (folder.parent / "blobs").is_dir():
            return folder.parent
    return link.parent


def _read(path: Path, limit: int, named: bool) -> bytes:
    """Return up to `limit` + 1 bytes; OSError where the file is unreadable or no regular file."""
    if not named or stat.S_ISREG(path.stat().st_mode):
        return regular_bytes(path, limit + 1)
    with io.BufferedReader(_Pipe(path, DATA_WAIT)) as stream:
        return stream.read(limit + 1)


def _require_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


class _Pipe(io.RawIOBase):
    """A pipe or device that the command line names: waits for data, but not for a writer who never comes."""

    def __init__(self, path: Path, patience: float | None) -> None:
        self._descriptor: int | None = _without_waiting(str(path), os.O_RDONLY | CLOSE_ON_EXEC)
        mode = os.fstat(self._descriptor).st_mode
        if stat.S_ISDIR(mode):
            self.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if stat.S_ISCHR(mode) and not os.isatty(self._descriptor) and str(path) != os.devnull:
            self.close()
            raise OSError(errno.EINVAL, "it is a device")
        self._patience = patience  # seconds between two pieces of data; None: any time
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._met = not stat.S_ISFIFO(mode)  # somebody has opened the other end
        self._last = time.monotonic()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        assert self._descriptor is not None
        while True:
            try:
                chunk = os.read(self._descriptor, len(buffer))
            except BlockingIOError:  # somebody holds the other end and has sent nothing yet
                self._met = True
                self._wait(self._patience, "no data came")
                continue
            if chunk or self._met or self._poll.poll(0):
                self._last = time.monotonic()
                buffer[: len(chunk)] = chunk
                return len(chunk)
            self._wait(WRITER_WAIT, "it is a pipe without a writer")  # no byte, and poll reports no end either

    def _wait(self, patience: float | None, why: str) -> None:
        if patience is not None and time.monotonic() - self._last > patience:
            raise OSError(errno.ETIMEDOUT, why)
        if not self._poll.poll(50):
            time.sleep(0.01)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        super().close()
