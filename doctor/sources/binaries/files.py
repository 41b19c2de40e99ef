"""The files that the loader model looks at: those of this machine, or a description captured on another one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from doctor.util.deep_search import deep_search

from .elf import BadElf, ElfFile, Summary
from .ldso import System, loader_cache, read_system


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

    def is_folder(self, path: str) -> bool:
        """Return whether there is such a folder."""
        ...

    def system(self, loader: str, machine: str) -> System:
        """Return what the system's loader brings."""
        ...


@dataclass
class Disk:
    """The files of this machine; each is read once."""

    cache_file: str = "/etc/ld.so.cache"
    has_system: bool = True  # False: only the files of a tree count, not the libraries of this machine
    remembered: Mapping[str, Any] = field(default_factory=dict)  # of an earlier run: path -> stamp, description
    known: dict[str, Summary | Damaged | None] = field(default_factory=dict)
    stamps: dict[str, tuple[int, int]] = field(default_factory=dict)
    _cache: dict[str, str] = field(default_factory=dict)
    _folders: dict[str, bool] = field(default_factory=dict)

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
        return self._cache.get(name)

    def is_folder(self, path: str) -> bool:
        """Return whether there is such a folder; each is looked at once."""
        if path not in self._folders:
            self._folders[path] = os.path.isdir(path)  # noqa: PTH112
        return self._folders[path]

    def system(self, loader: str, machine: str) -> System:
        """Return what the loader of this machine brings."""
        found = read_system(loader, machine)
        if self.has_system:
            self._cache = loader_cache(self.cache_file, machine, found.subfolders, found.legacy)
        return found


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
        path = path if path in links else os.path.normpath(path)
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

    def is_folder(self, path: str) -> bool:
        """Return False: hardware subfolders are not in a description."""
        return False

    def system(self, loader: str, machine: str) -> System:
        """Return common folders: a description does not have those of the loader."""
        return read_system("", machine)


def from_description(entry: Mapping[str, Any]) -> Summary | Damaged:
    """Return what an entry of a description says of a file."""
    if "damaged" in entry:
        return Damaged(entry["damaged"])
    return Summary(
        entry["machine"], entry["soname"], tuple(entry["needed"]), entry["rpath"], entry["runpath"],
        tuple((library, version, bool(weak)) for library, version, weak in entry["requires"]),
        tuple(entry["provides"]), entry.get("interpreter", ""), entry.get("no_default_folders", False),
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
