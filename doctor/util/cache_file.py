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
from typing import Any

LOGGER = logging.getLogger(__name__)
MAX_BYTES = 64 * 1024 * 1024


def cache_folder(name: str = "") -> Path | None:
    """Return the folder for our cache files, or the one below it that `name` is; None where the user has none."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache")).expanduser()
    except RuntimeError:  # no home folder
        return None
    return base / "attn-doctor" / name if base.is_absolute() else None


def read_cache(cache: Path, key: str, like: Path | None = None) -> tuple[dict[str, Any], bytes] | None:
    """Return header and content for exactly this key; None for a stale, damaged, foreign or missing file.

    A file that came with the code is trusted as this file of the code, `like`: it has the same owner.
    """
    try:
        owner = None if like is None else like.stat()
        descriptor = os.open(cache, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        return None
    try:
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(stream.fileno())
            if not _trusted(status, owner) or status.st_size > MAX_BYTES:
                return None
            head, _, content = stream.read(status.st_size).partition(b"\n")
        header = json.loads(head)
        if header["key"] != key or header["digest"] != _digest(content):
            return None
        return header, content
    except (OSError, ValueError, TypeError, KeyError, RecursionError, MemoryError):
        return None


def write_cache(cache: Path, key: str, content: bytes, **more: str) -> None:
    """Write so that a reader sees all of it or none, whatever other process writes it at the same time."""
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(_with_header(key, content, more))
        temporary.replace(cache)
    except (OSError, ValueError) as problem:  # a read-only home or a full disk costs time, not the diagnosis
        LOGGER.debug("cannot write the cache %s: %s", cache, problem)
        with suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)


def write_data(path: Path, key: str, content: bytes, **more: str) -> None:
    """Write a file that comes with the code, for `read_cache`; OSError where that fails."""
    path.write_bytes(_with_header(key, content, more))


def _with_header(key: str, content: bytes, more: Mapping[str, str]) -> bytes:
    return json.dumps({"key": key, **more, "digest": _digest(content)}).encode("ascii") + b"\n" + content


def _trusted(status: os.stat_result, like: os.stat_result | None) -> bool:
    """Return whether a file is regular, ours or of the owner of `like`, and no more writable by others than that."""
    if not stat.S_ISREG(status.st_mode):
        return False
    if not hasattr(os, "getuid"):
        return True
    owner, writable = (os.getuid(), 0) if like is None else (like.st_uid, like.st_mode)
    return status.st_uid == owner and not status.st_mode & ~writable & 0o022


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
