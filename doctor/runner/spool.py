"""What a command printed, for a later look: parts of its pipes in memory, parts of files where they are."""

from __future__ import annotations

import fcntl
import os
import stat
from collections import deque
from collections.abc import Iterator

HEAD = 16 << 20  # bytes of the output's start that are kept
TAIL = 48 << 20  # bytes of its end
_BLOCK = 1 << 20
_LINE = 1 << 20  # bytes after which a line counts as complete


class WrittenFile:
    """A file that the command writes to itself, from where its output starts."""

    def __init__(self, reader: int, start: int) -> None:
        self._reader = reader
        self._start = start

    @property
    def _bounds(self) -> tuple[int, int]:
        end = os.fstat(self._reader).st_size
        return (self._start if self._start <= end else 0), end  # a file that was cut starts at zero

    @property
    def dropped(self) -> bool:
        """Whether the middle is too large to be looked at."""
        start, end = self._bounds
        return end - start > HEAD + TAIL

    def blocks(self) -> Iterator[bytes]:
        """Yield the start and the end of what the file holds now."""
        start, end = self._bounds
        parts = [(start, start + HEAD), (end - TAIL, end)] if end - start > HEAD + TAIL else [(start, end)]
        for at, stop in parts:
            while at < stop and (block := os.pread(self._reader, min(_BLOCK, stop - at), at)):
                yield block
                at += len(block)


class Spool:
    """What a command printed: its start and its end."""

    def __init__(self) -> None:
        self._files: list[WrittenFile] = []
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._room = HEAD  # bytes that still fit into the start
        self._held = 0  # bytes in the tail
        self._open: dict[int, bytes] = {}  # unfinished line of each stream
        self._cut = False
        self.discarded: list[int] = []  # streams that go to /dev/null

    @property
    def dropped(self) -> bool:
        """Whether a part of the output is not kept."""
        return self._cut or any(file.dropped for file in self._files)

    def note_target(self, stream: int, *, written_before: bool) -> bool:
        """Return whether the command can have our own stream: a file that is readable later, or /dev/null.

        `written_before`: another stream goes to the same file, which is read once.
        """
        try:
            status = os.fstat(stream)
        except OSError:  # closed
            return False
        nothing = os.stat(os.devnull)  # noqa: PTH116 - the command waits for the import of pathlib
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == nothing.st_rdev:
            self.discarded.append(stream)
            return True
        if not stat.S_ISREG(status.st_mode):
            return False
        try:
            reader = os.open(f"/proc/self/fd/{stream}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        appends = fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_APPEND
        if not written_before:
            self._files.append(WrittenFile(reader, status.st_size if appends else os.lseek(stream, 0, os.SEEK_CUR)))
        return True

    def add(self, stream: int, data: bytes) -> None:
        """Keep the complete lines of what a stream printed, so that streams mix by lines."""
        head, newline, tail = (self._open.pop(stream, b"") + data).rpartition(b"\n")
        if len(tail) > _LINE:
            head, newline, tail = head + newline + tail, b"", b""
        if tail:
            self._open[stream] = tail
        self._keep(head + newline)

    def _keep(self, data: bytes) -> None:
        if self._room > 0:
            self._head.append(data)
            self._room -= len(data)
            return
        self._tail.append(data)
        self._held += len(data)
        while self._held > TAIL:  # the middle goes
            self._held -= len(self._tail.popleft())
            self._cut = True

    def blocks(self) -> Iterator[bytes]:
        """Yield everything that was kept: files first."""
        self._keep(b"".join(tail + b"\n" for tail in self._open.values()))
        self._open.clear()
        for file in self._files:
            yield from file.blocks()
        yield from self._head
        yield from self._tail
