"""Who owns the files of an installation, by the RECORD files: files owned twice, and files that differ from it."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from doctor.util.reading import open_regular

_MAX_RECORD = 64 << 20
_MAX_HASHED = 64 << 20
_IGNORED = ("__pycache__/", ".dist-info/", ".pyc", "../")


@dataclass(frozen=True)
class Entry:
    """One line of a RECORD."""

    path: str
    sha256: str  # in the form of RECORD; empty where it has none
    size: int | None


@dataclass(frozen=True)
class Owner:
    """One distribution with the files that it lists."""

    name: str
    version: str | None
    base: str  # the folder that paths are relative to
    record: str


@dataclass(frozen=True)
class SharedFiles:
    """Files that two distributions list with different content."""

    owners: tuple[str, ...]  # name and version of each
    paths: tuple[str, ...]
    holder: str | None  # whose content is on disk, for the first file where that can be determined


@dataclass(frozen=True)
class Changed:
    """Files of one distribution whose size or content is not what its RECORD says."""

    owner: str
    paths: tuple[str, ...]
    missing: tuple[str, ...]


def read_record(path: str) -> Iterator[Entry]:
    """Yield the files of a RECORD; none where it cannot be read."""
    try:
        with open_regular(path) as stream:
            text = stream.read(_MAX_RECORD).decode("utf-8", "replace")
    except OSError:
        return
    try:
        for row in csv.reader(text.splitlines()):
            if len(row) >= 3 and row[0]:
                kind, _, digest = row[1].partition("=")
                yield Entry(row[0], digest if kind == "sha256" else "", int(row[2]) if row[2].isdigit() else None)
    except csv.Error:
        return


def shared_files(owners: Iterable[Owner]) -> Iterator[SharedFiles]:
    """Yield each pair of distributions that list the same files with different content."""
    first: dict[tuple[str, str], tuple[Owner, Entry]] = {}
    found: dict[tuple[Owner, Owner], list[tuple[Entry, Entry]]] = {}
    for owner in owners:
        for entry in read_record(owner.record):
            if any(part in entry.path for part in _IGNORED) or not entry.sha256:
                continue
            before = first.setdefault((owner.base, entry.path), (owner, entry))
            if before[0] is not owner and before[1].sha256 != entry.sha256:
                found.setdefault((before[0], owner), []).append((before[1], entry))
    for (one, other), entries in found.items():
        holder = next(
            (held for held in (_holder(one, other, *pair) for pair in sorted(entries, key=_size)) if held), None
        )
        yield SharedFiles((_label(one), _label(other)), tuple(pair[0].path for pair in entries), holder)


def _size(pair: tuple[Entry, Entry]) -> int:
    return pair[0].size or 0


def _holder(one: Owner, other: Owner, mine: Entry, theirs: Entry) -> str | None:
    path = os.path.join(one.base, mine.path)  # noqa: PTH118
    size = _size_of(path)
    if size is None:
        return None
    if mine.size != theirs.size:
        return _label(one) if size == mine.size else _label(other) if size == theirs.size else None
    digest = _digest(path)
    return _label(one) if digest == mine.sha256 else _label(other) if digest == theirs.sha256 else None


def changed_files(owner: Owner, *, hashed: bool = True) -> Changed | None:
    """Return what differs from the RECORD: sizes of all files, and content of small Python files."""
    changed: list[str] = []
    missing: list[str] = []
    for entry in read_record(owner.record):
        if any(part in entry.path for part in _IGNORED):
            continue
        path = os.path.join(owner.base, entry.path)  # noqa: PTH118
        size = _size_of(path)
        if size is None:
            missing.append(entry.path)
        elif (entry.size is not None and size != entry.size) or (
            hashed and entry.sha256 and entry.path.endswith(".py") and _digest(path) not in (None, entry.sha256)
        ):
            changed.append(entry.path)
    return Changed(_label(owner), tuple(changed), tuple(missing)) if changed or missing else None


def _label(owner: Owner) -> str:
    return f"{owner.name} {owner.version}"


def _size_of(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except (OSError, ValueError):
        return None


def _digest(path: str) -> str | None:
    try:
        if os.stat(path).st_size > _MAX_HASHED:  # noqa: PTH116
            return None
        with open_regular(path) as stream:
            found = hashlib.file_digest(stream, "sha256") if hasattr(hashlib, "file_digest") else None
            if found is None:
                found = hashlib.sha256(stream.read())
    except (OSError, ValueError):
        return None
    return base64.urlsafe_b64encode(found.digest()).rstrip(b"=").decode()
