"""Parse TOML with file and line of errors, and find the lines of tables, keys and texts, which `tomllib` lacks."""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError, fault

from .patterns import pattern


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Return the document; DoctorError with the file's name and the line of the error."""
    if sys.version_info >= (3, 11):  # imported where there is TOML to read: most checks read none
        import tomllib
    else:
        import tomli as tomllib

    _refuse_long_keys(text, name)
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        place = re.search(r"\(at (?:line (\d+)|end of document)", str(problem))
        line = int(place[1]) if place and place[1] else text.rstrip().count("\n") + 1
        raise DoctorError(f"{name}:{line}: not TOML: {re.sub(r' *[(]at .*', '', str(problem)).lower()}") from None
    except RecursionError:
        raise DoctorError(f"{name}: nested too deeply") from None
    except ValueError:  # a number with more digits than Python accepts
        raise DoctorError(f"{name}: a number in it is too long") from None
    return content


_MOST_PARTS = 64  # of a dotted key: time and memory of `tomllib` grow with the square
_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*"""
_LONG_KEY = rf"(?<![A-Za-z0-9_-])(?:{_PART}){{{_MOST_PARTS}}}"


def _refuse_long_keys(text: str, name: str) -> None:
    """Raise DoctorError for a dotted key of very many parts."""
    if text.count(".") < _MOST_PARTS:
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") >= _MOST_PARTS and re.search(_LONG_KEY, line):
            raise DoctorError(f"{name}:{number}: a key has more than {_MOST_PARTS} parts")


_HEADER = pattern(r"\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")


_KEY = pattern(r"""((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")


_TEXT = pattern(r"\"([^\"\\]*)\"|'([^']*)'")


def load_toml(path: Path, text: str) -> dict[str, Any]:
    """Return the document; DoctorError with the line of the error."""
    return parse_toml(text, str(path))


class Tables:
    """The `[[header]]` tables of a document, in order, and the lines of their keys."""

    def __init__(self, text: str, header: str) -> None:
        self.lines = text.split("\n")
        starts = [number for number, line in enumerate(self.lines, 1) if line.strip() == f"[[{header}]]"]
        self._starts = [*starts, len(self.lines) + 1]

    def line_of(self, index: int, key: str) -> int:
        """Return the line of `key = …` in the table of that number, else the table's own line."""
        if index + 1 >= len(self._starts):
            return 1
        begin, end = self._starts[index], self._starts[index + 1]
        pattern = re.compile(rf"{key}\s*=")
        found = (number for number in range(begin, end) if pattern.match(self.lines[number - 1].lstrip()))
        return next(found, begin)

    def text_of(self, line: int) -> str:
        """Return a line."""
        return self.lines[line - 1].rstrip("\r")


class Places:
    """The lines of the keys and texts of a document."""

    def __init__(self, text: str) -> None:
        self.rows = text.split("\n")
        self._keys: dict[tuple[str, str], int] = {}
        self._texts: dict[str, list[int]] = {}
        table = ""
        for number, row in enumerate(self.rows, 1):
            stripped = row.strip()
            if not stripped or stripped[0] == "#":
                continue
            if header := _HEADER.match(stripped):
                table = _bare(header[1])
                self._keys.setdefault((table, ""), number)
            elif key := _KEY.match(stripped):
                self._keys.setdefault((table, _bare(key[1])), number)
            if '"' in stripped or "'" in stripped:
                for found in _TEXT.finditer(stripped):
                    self._texts.setdefault(found[1] or found[2] or "", []).append(number)

    def key(self, table: str, key: str = "") -> int:
        """Return the line of `key = …` in a table, of `[table.key]`, or of the table itself; else 1."""
        for found in ((table, key), (f"{table}.{key}", ""), (table, "")):
            if found in self._keys:
                return self._keys[found]
        parent, _, last = table.rpartition(".")
        return self.key(parent, last) if parent else 1

    def text(self, text: str, after: int = 1) -> int:
        """Return the first line from `after` on with this text in quotes, else `after`."""
        lines = self._texts.get(text, [])
        at = bisect_left(lines, after)
        return lines[at] if at < len(lines) else after

    def raw(self, line: int) -> str:
        """Return a line."""
        return self.rows[line - 1].rstrip("\r") if 0 < line <= len(self.rows) else ""


def _bare(name: str) -> str:
    return re.sub(r"[\s\"']", "", name)


def tables(path: Path, content: Any, key: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, table) of an array of tables; DoctorError for anything else."""
    found = content.get(key)
    if found is None:
        found = []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise fault(path, None, f"`{key}` needs to be tables")
    yield from enumerate(found)


def text_at(path: Path, line: int, table: dict[str, Any], key: str) -> str | None:
    """Return a text of a table, None where it is missing; DoctorError for another type."""
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise fault(path, line, f"`{key}` needs a text")
    return value
