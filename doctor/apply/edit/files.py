"""The user's files: read byte for byte, kept as a backup, replaced whole."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from doctor.errors import DoctorError, reason_of
from doctor.sources.manifests.base import MAX_BYTES
from doctor.util.atomic_write import write_atomically
from doctor.util.printable import printable_path
from doctor.util.reading import read_bytes, regular_bytes, text_of

_BOM = b"\xef\xbb\xbf"
_MOST_BACKUPS = 1000


@dataclass(frozen=True)
class SourceFile:
    """A text file as it is on disk."""

    path: Path
    data: bytes
    text: str  # without the byte order mark

    @classmethod
    def read(cls, path: Path) -> SourceFile:
        """The file; DoctorError for what is no text."""
        data = read_bytes(path, "file", MAX_BYTES)
        return cls(path, data, text_of(data, path, "file"))

    def encoded(self, text: str) -> bytes:
        """Another text, with the mark that this one has."""
        return (_BOM if self.data.startswith(_BOM) else b"") + text.encode("utf-8")


@dataclass(frozen=True)
class Edited:
    """One file before and after."""

    source: SourceFile
    text: str

    @property
    def diff(self) -> str:
        """What changes, as a unified diff that `patch` takes."""
        return "".join(self._rows())

    def _rows(self) -> Iterator[str]:
        name = printable_path(self.source.path.as_posix())
        before, after = (_rows_of(text) for text in (self.source.text, self.text))
        for row in difflib.unified_diff(before, after, name, name, "before", "after"):
            yield row
            if not row.endswith("\n"):
                yield "\n\\ No newline at end of file\n"

    def check(self) -> None:
        """DoctorError where it must not be replaced: it is write-protected, or is not any more what was read."""
        path = self.source.path
        if not os.access(path, os.W_OK):  # where the folder may be written, a new file could take its place
            raise DoctorError(f"cannot write `{path}`: it is read-only", "`--diff` shows the edits")
        try:
            unchanged = regular_bytes(path, MAX_BYTES + 1) == self.source.data
        except OSError as problem:
            raise DoctorError(f"cannot read `{path}`: {reason_of(problem)}") from None
        if not unchanged:
            raise DoctorError(f"`{path}` was changed by someone else meanwhile", "run this again")

    def write(self) -> Path:
        """Keep the old file next to it, then replace it; return the path of the backup."""
        self.check()
        path = self.source.path
        backup = _backup(path, self.source.data)
        write_atomically(path, self.source.encoded(self.text))
        return backup


def _rows_of(text: str) -> list[str]:
    """Lines as diff counts them: only a newline ends one."""
    rows = text.split("\n")
    return [row + "\n" for row in rows[:-1]] + ([rows[-1]] if rows[-1] else [])


def _backup(path: Path, data: bytes) -> Path:
    """`F.bak`, or `F.bak.1` and so on where an older backup says something else; none is ever overwritten."""
    for number in range(_MOST_BACKUPS):
        backup = path.with_name(f"{path.name}.bak" + (f".{number}" if number else ""))
        if backup.is_symlink() or backup.exists():
            if backup.is_file() and regular_bytes(backup, MAX_BYTES + 1) == data:
                return backup
            continue
        write_atomically(backup, data, force=False, like=path)
        return backup
    raise DoctorError(f"`{path}` has {_MOST_BACKUPS} backups already", "delete some of them")
