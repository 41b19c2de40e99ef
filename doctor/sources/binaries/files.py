"""The files that the loader model looks at: those of this machine, or a description captured on another one."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from doctor.util.deep_search import deep_search

from .elf import BadElf, ElfFile, Summary

#: Where a glibc system installs libraries. Debian's glibc searches the folders with the machine's name first.
DEFAULT_DIRS = (
    "/lib/{machine}-linux-gnu", "/usr/lib/{machine}-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib",
)  # fmt: skip
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_MAX_CACHE = 16 << 20


@dataclass(frozen=True)
class Damaged:
    """A file that exists and that the loader cannot map."""

    reason: str


class Files(Protocol):
    """What the model needs to know about files; `None` is a file that does not exist."""

    def summary(self, path: str) -> Summary | Damaged | None:
        """Return what the loader reads of a file before it looks up symbols."""
        ...

    def identity(self, path: str) -> str:
        """Return a name that is equal for two paths of one file."""
        ...

    def listing(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder, empty where it cannot be read."""
        ...

    def cached_path(self, name: str) -> str | None:
        """Return the file that ldconfig's cache names for a library."""
        ...

    def below(self, folder: str, prefix: str) -> tuple[str, ...]:
        """Return the files below a folder whose names begin with a text, stubs left out, as `glob` with `**` does."""
        ...


@dataclass
class Disk:
    """The files of this machine; each is read once."""

    cache_file: str = "/etc/ld.so.cache"
    system: bool = True  # False: only the files of a tree count, not the libraries of this machine
    remembered: Mapping[str, Any] = field(default_factory=dict)  # of an earlier run: path -> stamp, description
    known: dict[str, Summary | Damaged | None] = field(default_factory=dict)
    stamps: dict[str, tuple[int, int]] = field(default_factory=dict)
    _cache: dict[str, str] | None = None

    def summary(self, path: str) -> Summary | Damaged | None:
        """Return what the loader reads of a file before it looks up symbols."""
        if path not in self.known:
            self.known[path] = self._summary(path)
        return self.known[path]

    def _summary(self, path: str) -> Summary | Damaged | None:
        now = self.stamps[path] = stamp(path)
        if now == MISSING:
            return None
        old = self.remembered.get(path)
        if old is not None and tuple(old[0]) == now:
            return from_description(old[1])
        return read_summary(path)

    def to_remember(self) -> dict[str, Any]:
        """Return what a later run needs to know about the files that exist."""
        return {
            path: [self.stamps[path], described(summary)]
            for path, summary in self.known.items()
            if summary is not None and path in self.stamps
        }

    def identity(self, path: str) -> str:
        """Return the path without links."""
        return os.path.realpath(path)

    def below(self, folder: str, prefix: str) -> tuple[str, ...]:
        """Return the files below a folder whose names begin with a text, stubs left out."""
        return tuple(deep_search(folder, prefix))

    def listing(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder, empty where it cannot be read."""
        try:
            return tuple(sorted(os.listdir(folder)))  # noqa: PTH208
        except OSError:
            return ()

    def cached_path(self, name: str) -> str | None:
        """Return the file that ldconfig's cache names for a library."""
        if self._cache is None:
            self._cache = loader_cache(self.cache_file) if self.system else {}
        return self._cache.get(name)


def read_summary(path: str) -> Summary | Damaged | None:
    """Return what the loader reads of a file, `Damaged` where it cannot be mapped, None where there is none."""
    try:
        with ElfFile(path) as elf:
            return elf.summary()
    except BadElf as problem:
        return Damaged(str(problem))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        return Damaged("no permission to read it")
    except (OSError, ValueError) as problem:
        return Damaged(getattr(problem, "strerror", None) or str(problem))


@dataclass(frozen=True)
class Captured:
    """Files as a description of another machine lists them; a path that is not in it does not exist there."""

    body: Mapping[str, Any]

    def summary(self, path: str) -> Summary | Damaged | None:
        """Return what the description says of a file."""
        entry = self.body["files"].get(self.identity(path))
        if entry is None:
            return None
        return from_description(entry)

    def identity(self, path: str) -> str:
        """Return the path without links."""
        links = self.body["links"]
        for _ in range(40):
            target = links.get(path)
            if target is None:
                head, _, tail = path.rpartition("/")
                parent = links.get(head)
                if parent is None:
                    return path
                target = f"{parent}/{tail}"
            path = target
        return path

    def listing(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder."""
        return tuple(self.body["folders"].get(folder, ()))

    def below(self, folder: str, prefix: str) -> tuple[str, ...]:
        """Return the files below a folder that the description lists for this search."""
        return tuple(self.body["below"].get(f"{folder} {prefix}", ()))

    def cached_path(self, name: str) -> str | None:
        """Return the file that ldconfig's cache names for a library."""
        found = self.body["cache"].get(name)
        return None if found is None else str(found)


def from_description(entry: Mapping[str, Any]) -> Summary | Damaged:
    """Return what an entry of a description says of a file."""
    if "damaged" in entry:
        return Damaged(entry["damaged"])
    return Summary(
        entry["machine"], entry["soname"], tuple(entry["needed"]), entry["rpath"], entry["runpath"],
        tuple((library, version, bool(weak)) for library, version, weak in entry["requires"]),
        tuple(entry["provides"]),
    )  # fmt: skip


MISSING = (-1, -1)


def stamp(path: str) -> tuple[int, int]:
    """Return size and time of a file: equal stamps mean the same content."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return MISSING
    return status.st_size, status.st_mtime_ns


def described(summary: Summary | Damaged) -> dict[str, Any]:
    """Return the entry of a description for one file."""
    return {"damaged": summary.reason} if isinstance(summary, Damaged) else asdict(summary)


def loader_cache(path: str = "/etc/ld.so.cache") -> dict[str, str]:
    """Return library name -> file from ldconfig's cache, without running ldconfig; empty without a cache."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123
            data = stream.read(_MAX_CACHE)
    except OSError:
        return {}
    start = data.find(_CACHE_MAGIC)  # an old-format cache may come first
    if start < 0:
        return {}
    body = data[start:]
    count = int.from_bytes(body[20:24], "little")
    found: dict[str, str] = {}
    if not 0 < count < 1 << 20:
        return {}
    for index in range(count):
        entry = body[48 + index * 24 : 48 + (index + 1) * 24]
        if len(entry) < 24:
            break
        _, key, value, _, processors = struct.unpack("<IIIIQ", entry)
        if processors:  # for some processors only
            continue
        name, target = (body[at : body.find(b"\0", at)].decode("utf-8", "replace") for at in (key, value))
        if name:
            found.setdefault(name, target)
    return found
