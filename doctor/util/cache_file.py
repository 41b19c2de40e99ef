"""Files in the user's cache folder: used only where their content is exactly what this user wrote.

A cache is data, never code: a regular file that belongs to this user and that others cannot write, with the digest of
its content in its first line. In any doubt it counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from .open_flags import BINARY, NO_LINK, NO_WAIT

LOGGER = logging.getLogger(__name__)
MAX_BYTES = 64 * 1024 * 1024
_LONGEST_HEADER = 4096  # bytes


def cache_folder(name: str = "") -> Path | None:
    """Return the folder for our cache files, or the one below it that `name` is; None where the user has none."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache")).expanduser()
    except RuntimeError:  # no home folder
        return None
    return base / "attn-doctor" / name if base.is_absolute() else None


class CacheFile:
    """A file that is open: its header and content are read at once, parts behind them when they are needed.

    It stays open, because another process may replace the file, and the parts belong to this one.
    """

    def __init__(self, descriptor: int) -> None:
        self.header: dict[str, Any] = {}
        self._descriptor = descriptor
        self._parts = 0  # where they start
        self._position = Lock()

    def read(self, size: int) -> bytes:
        """Return the content of a file of this size; OSError, ValueError, TypeError or KeyError for a damaged one."""
        head, _, _ = self._read_at(_LONGEST_HEADER, 0).partition(b"\n")
        header = json.loads(head)
        self._parts = len(head) + 1 + int(header["size"])
        content = self._read_at(int(header["size"]), len(head) + 1)
        if self._parts + int(header["parts"]) != size or digest_of(content) != header["digest"]:
            raise ValueError("the file is damaged")
        self.header = header
        return content

    def part(self, start: int, size: int, digest: str) -> bytes | None:
        """Return some bytes of the parts; None where they do not have this digest."""
        try:
            found = self._read_at(size, self._parts + start)
        except OSError:
            return None
        return found if digest_of(found) == digest else None

    def _read_at(self, size: int, start: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, size, start)
        with self._position:  # Windows: threads share the position in the file
            os.lseek(self._descriptor, start, os.SEEK_SET)
            return os.read(self._descriptor, size)

    def __del__(self) -> None:
        os.close(self._descriptor)


def read_cache(cache: Path, key: str) -> tuple[dict[str, Any], bytes] | None:
    """Return header and content for exactly this key; None for a stale, damaged, foreign or missing file."""
    found = open_cache(cache, key)
    return None if found is None else (found[0].header, found[1])


def open_cache(cache: Path, key: str, like: Path | None = None) -> tuple[CacheFile, bytes] | None:
    """Return the file and its content for exactly this key; None for a stale, damaged, foreign or missing one.

    A file that came with the code is trusted as much as this file of the code, `like`: both have one owner.
    """
    try:
        owner = None if like is None else like.stat()
        descriptor = os.open(cache, os.O_RDONLY | BINARY | NO_LINK | NO_WAIT)
    except (OSError, ValueError):
        return None
    file = CacheFile(descriptor)
    try:
        status = os.fstat(descriptor)
        if not _trusted(status, owner) or status.st_size > MAX_BYTES:
            return None
        content = file.read(status.st_size)
        return (file, content) if file.header["key"] == key else None
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError, MemoryError):
        return None


def write_cache(cache: Path, key: str, content: bytes, parts: bytes = b"", **more: str) -> None:
    """Write so that a reader sees all of it or none, whatever other process writes it at the same time."""
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(_with_header(key, content, parts, more))
        temporary.replace(cache)
    except (OSError, ValueError) as problem:  # a read-only home or a full disk costs time, not the diagnosis
        LOGGER.debug("cannot write the cache %s: %s", cache, problem)
        with suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)


def write_data(path: Path, key: str, content: bytes, parts: bytes = b"", **more: str) -> None:
    """Write a file that comes with the code, for `open_cache`; OSError where that fails."""
    path.write_bytes(_with_header(key, content, parts, more))


def _with_header(key: str, content: bytes, parts: bytes, more: Mapping[str, str]) -> bytes:
    header = {"key": key, **more, "size": len(content), "parts": len(parts), "digest": digest_of(content)}
    return b"".join((json.dumps(header).encode("ascii"), b"\n", content, parts))


def _trusted(status: os.stat_result, like: os.stat_result | None) -> bool:
    """Return whether a file is regular, ours or of the owner of `like`, and no more writable by others than that."""
    if not stat.S_ISREG(status.st_mode):
        return False
    if not hasattr(os, "getuid"):
        return True
    owner, writable = (os.getuid(), 0) if like is None else (like.st_uid, like.st_mode)
    return status.st_uid == owner and not status.st_mode & ~writable & 0o022


def digest_of(content: bytes) -> str:
    """Return what shows damage of these bytes."""
    return hashlib.sha256(content).hexdigest()
