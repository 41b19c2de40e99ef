"""TOML with line numbers, as far as lock files need them: which line a table begins in, and a key within it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from .interface import fault


def load_toml(path: Path, text: str) -> dict[str, Any]:
    """The document; DoctorError with the line of what is wrong."""
    try:
        tomllib = import_module("tomllib")
    except ModuleNotFoundError:  # Python 3.10
        try:
            tomllib = import_module("tomli")
        except ModuleNotFoundError:
            hint = "install `attn-doctor[declared]`, or run it with Python 3.11 or newer"
            raise fault(path, None, "Python 3.10 cannot read TOML by itself", hint) from None
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        place = re.search(r"\(at (?:line (\d+)|end of document)", str(problem))
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
        raise fault(path, line, f"not TOML: {re.sub(r' *[(]at .*', '', str(problem)).lower()}") from None
    except RecursionError:
        raise fault(path, None, "nested too deeply") from None
    return content


class Tables:
    """The `[[header]]` tables of a document, in order, and the lines of their keys."""

    def __init__(self, text: str, header: str) -> None:
        self.lines = text.split("\n")
        starts = [number for number, line in enumerate(self.lines, 1) if line.strip() == f"[[{header}]]"]
        self._starts = [*starts, len(self.lines) + 1]

    def line_of(self, index: int, key: str) -> int:
        """The line of `key = …` in the table of that number; the table's own where it is written otherwise."""
        if index + 1 >= len(self._starts):
            return 1
        begin, end = self._starts[index], self._starts[index + 1]
        pattern = re.compile(rf"{key}\s*=")
        found = (number for number in range(begin, end) if pattern.match(self.lines[number - 1].lstrip()))
        return next(found, begin)

    def text_of(self, line: int) -> str:
        """A line as it stands."""
        return self.lines[line - 1].rstrip("\r")


def tables(path: Path, content: Any, key: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, table) of an array of tables; DoctorError if it is none."""
    found = content.get(key)
    if found is None:
        found = []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise fault(path, None, f"`{key}` needs tables")
    yield from enumerate(found)


def text_at(path: Path, line: int, table: dict[str, Any], key: str) -> str | None:
    """A text of a table, None where it has none; DoctorError for anything else."""
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise fault(path, line, f"`{key}` needs a text")
    return value
