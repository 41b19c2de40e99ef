"""Positions of values in a TOML text: tomlkit finds them, and only they are replaced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError

from .specifier import Edit

Key = tuple["str | int", ...]
_MARK = "attn-doctor looks for this place"


@dataclass(frozen=True)
class Token:
    """A string in a text: with its quotes, and the inside."""

    start: int
    end: int
    inner: tuple[int, int]


class Places:
    """The spans of values in one document: found all at once, since to read TOML with its places is slow."""

    def __init__(self, path: Path, text: str, keys: Iterable[Key]) -> None:
        self.path, self.text = path, text
        document = self._parsed()
        if document.as_string() != text:
            raise DoctorError(f"`{path}` cannot be edited without touching other lines", "edit it by hand")
        self._spans = self._found(document, list(dict.fromkeys(keys)))

    def _parsed(self) -> Any:
        try:
            import tomlkit
        except ModuleNotFoundError:
            raise DoctorError(
                f"editing `{self.path}` needs `tomlkit`", "`pip install tomlkit`, or `--pin FILE`"
            ) from None
        return tomlkit.parse(self.text)

    def _found(self, document: Any, keys: list[Key]) -> dict[Key, tuple[int, int]]:
        """Replace every value by a mark; the positions of the marks are those of the values."""
        shown: list[str] = []
        for number, key in enumerate(keys):
            table = document
            for name in key[:-1]:
                table = table[name]
            shown.append(table[key[-1]].as_string())
            table[key[-1]] = f"{_MARK} {number}."
        spans: dict[Key, tuple[int, int]] = {}
        longer = 0  # by how much the marked text is ahead
        for match in re.finditer(rf'"{_MARK} (\d+)\."', document.as_string()):
            number = int(match[1])
            start = match.start() - longer
            end = start + len(shown[number])
            if self.text[start:end] != shown[number]:
                break
            spans[keys[number]] = start, end
            longer += len(match[0]) - len(shown[number])
        return spans

    def span(self, key: Key) -> tuple[int, int]:
        """Return the position of the value of a key."""
        if key not in self._spans:
            raise DoctorError(f"`{self.path}`: `{'.'.join(map(str, key))}` cannot be edited alone", "edit it by hand")
        return self._spans[key]

    def row(self, at: int) -> tuple[int, int]:
        """The physical line around a place, its break included."""
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        return start, len(self.text) if end < 0 else end + 1


def tokens(text: str, start: int, end: int) -> list[Token]:
    """The strings that are items of the array in this span; not those of tables inside it."""
    return [token for token, depth in _strings(text, start, end) if depth == 1]


def token_at(text: str, start: int) -> Token:
    """The string that begins here."""
    return next(_strings(text, start, len(text)))[0]


def _strings(text: str, start: int, end: int) -> Iterator[tuple[Token, int]]:
    at, depth = start, 0
    while at < end:
        sign = text[at]
        if sign in "\"'":
            quote = text[at : at + 3] if text[at : at + 3] == sign * 3 else sign
            stop = _closing(text, at + len(quote), quote)
            yield Token(at, stop + len(quote), (at + len(quote), stop)), depth
            at = stop + len(quote)
            continue
        if sign == "#":
            at = (text.find("\n", at) + 1 or end) - 1
        depth += (sign in "[{") - (sign in "]}")
        at += 1


def _closing(text: str, at: int, quote: str) -> int:
    """Where the string ends that is open here."""
    while not text.startswith(quote, at):
        at += 2 if text[at] == "\\" and quote[0] == '"' else 1
    return at


def more_items(
    text: str, span: tuple[int, int], after: Token | None, items: Sequence[tuple[str, str]], newline: str
) -> list[Edit]:
    """What to put where so that an array of strings has more items: (item, comment), behind a given one of its own.

    They get lines of their own where their neighbours have them.
    """
    start, end = span
    joined = ", ".join(item for item, _ in items)
    if after is None:
        empty = not text[start + 1 : end - 1].strip()
        return [Edit(start + 1, start + 1, joined + ("" if empty else ", " if text[start + 1] not in "\r\n" else ","))]
    row = text.rfind("\n", start, after.start) + 1
    indent = text[row : after.start]
    following = [token for token in tokens(text, start, end) if token.start > after.start]
    tail = text[after.end : following[0].start if following else end - 1]
    comma = _comma(tail)
    feed = tail.find("\n", max(comma, 0))
    if row == 0 or indent.strip() or feed < 0:
        return [Edit(after.end, after.end, f", {joined}")]
    stop = after.end + feed + 1
    closed = bool(following) or comma >= 0  # the last one has a comma too
    lines = "".join(
        f"{indent}# {comment}{newline}{indent}{item}{',' if closed or number < len(items) else ''}{newline}"
        for number, (item, comment) in enumerate(items, 1)
    )
    return [Edit(after.end, after.end, "" if comma >= 0 else ","), Edit(stop, stop, lines)]


def _comma(tail: str) -> int:
    """Return the position of the comma behind an item, comments aside; -1 where it has none."""
    at = 0
    while at < len(tail):
        if tail[at] == "#":
            at = tail.find("\n", at)
            if at < 0:
                return -1
        elif tail[at] == ",":
            return at
        at += 1
    return -1


def without_item(text: str, span: tuple[int, int], token: Token) -> tuple[int, int]:
    """The stretch to cut out so that an array loses one item: its line where it is alone on it, else it and a comma."""
    start, end = span
    tail = text[token.end : end - 1]
    comma = _comma(tail)
    own = comma >= 0 and not tail[:comma].strip()
    stop = token.end + comma + 1 if own else token.end
    row = text.rfind("\n", start, token.start) + 1
    rest = text[stop : (text.find("\n", stop) + 1) or end]
    alone = row > 0 and not text[row : token.start].strip() and (not rest.strip() or rest.lstrip().startswith("#"))
    if alone and rest.endswith("\n"):
        return row, stop + len(rest)
    if own:
        return token.start, stop + len(text[stop:end]) - len(text[stop:end].lstrip(" \t"))
    before = text[start : token.start].rstrip()
    return (start + len(before) - 1 if before.endswith(",") else token.start), token.end
