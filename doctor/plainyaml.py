"""The YAML that hands write, read without a parser: a key and a value per line, nested by indentation.

Importing PyYAML costs one and a half bare Python starts, a sixth of a whole check (docs/adr/0005). Only lines that can
mean one thing are read here; at the first doubt the parser has the whole text, so there is one YAML and not two.
"""

from __future__ import annotations

import re
from typing import Any

MAX_TEXT = 100_000
MAX_LINE = 800  # YAML wants a key's colon within 1024 characters
MAX_DEPTH = 8

#: `key: value`, `key:` or `- value`, then perhaps a comment. A value is quoted, without escapes; a list of words; or
#: plain, of characters that cannot end it or begin anything else.
_LINE = re.compile(
    r"""(?P<indent>\ *)(?:(?P<key>[A-Za-z_][A-Za-z0-9_.-]*):|-(?=\ ))
    (?:\ +(?:(?P<quote>["'])(?P<quoted>[^"'\\]*)(?P=quote)
           |\[(?P<words>[A-Za-z0-9_.,\ +"'-]*)\]
           |(?P<plain>-?[A-Za-z0-9_./~](?:[A-Za-z0-9_./~+=<>*()@,;!?\ -]*[A-Za-z0-9_./~+=<>*()@,;!?-])?)))?
    \ *(?:(?<=\ )\#.*)?""",
    re.VERBOSE,
)
_WORD = re.compile(r"""-?[A-Za-z0-9_.+]+|(["'])[A-Za-z0-9_.\ +-]*\1""")
_NULLS = ("~", "null", "Null", "NULL")

Path = tuple[str, ...]


class _DoubtError(Exception):
    """A line that needs the parser."""


def read_plain(text: str) -> tuple[dict[str, Any], dict[Path, int]] | None:
    """What the parser would make of the text: its content, and the line of every part; None for what is in doubt."""
    if len(text) > MAX_TEXT:
        return None
    reader = _Reader()
    try:
        for number, line in enumerate(text.split("\n"), 1):
            if not line.isprintable() or len(line) > MAX_LINE:
                return None
            if line.strip() and not line.lstrip().startswith("#"):
                reader.read(line, number)
    except _DoubtError:
        return None
    return (reader.root, reader.lines) if reader.root else None


class _Reader:
    """What has been read, and the mappings and lists that further lines may belong to."""

    def __init__(self) -> None:
        self.root: dict[str, Any] = {}
        self.lines: dict[Path, int] = {}
        self._open: list[tuple[int, dict[str, Any] | list[Any], Path]] = [(0, self.root, ())]
        self._bare: str | None = None  # the key of the line before, if it has no value of its own

    def read(self, line: str, number: int) -> None:
        """Take in one line."""
        found = _LINE.fullmatch(line)
        if found is None:
            raise _DoubtError
        key, indent = found["key"], len(found["indent"])
        if indent > self._open[-1][0]:
            self._descend(indent, is_list=key is None)
        while indent < self._open[-1][0]:
            self._open.pop()
        depth, content, path = self._open[-1]
        if indent != depth or isinstance(content, list) != (key is None):
            raise _DoubtError
        value, bare = _value(found)
        if isinstance(content, list):
            if bare:
                raise _DoubtError
            here = (*path, str(len(content)))
            content.append(value)
        else:
            if key in content:
                raise _DoubtError
            here = (*path, key)
            content[key] = value
        self._bare = key if bare else None
        self.lines.setdefault((), number)
        self.lines[here] = number
        if isinstance(value, list):
            self.lines.update(((*here, str(index)), number) for index in range(len(value)))

    def _descend(self, indent: int, *, is_list: bool) -> None:
        """What follows is the value of the key before."""
        _, content, path = self._open[-1]
        if self._bare is None or isinstance(content, list) or len(self._open) > MAX_DEPTH:
            raise _DoubtError
        inner: dict[str, Any] | list[Any] = [] if is_list else {}
        content[self._bare] = inner
        self._open.append((indent, inner, (*path, self._bare)))


def _value(found: re.Match[str]) -> tuple[Any, bool]:
    """(the value, whether the line has none)."""
    if (plain := found["plain"]) is not None:
        return (None if plain in _NULLS else plain), False
    if found["quote"] is not None:
        return found["quoted"], False
    if found["words"] is None:
        return None, True
    words = [word.strip(" ") for word in found["words"].split(",")] if found["words"].strip(" ") else []
    if not all(map(_WORD.fullmatch, words)):
        raise _DoubtError
    return [None if word in _NULLS else word.strip("\"'") for word in words], False
