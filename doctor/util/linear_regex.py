"""Regular expressions whose time is linear in the text: RE2, on bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import re2  # type: ignore[import-untyped]

_MEMORY = 4 << 20  # bytes of one automaton
_MULTILINE = b"(?m)"


@cache
def compiled(pattern: str) -> Any:
    """Return a pattern compiled by RE2, for bytes; ValueError if RE2 does not take it.

    `^` and `$` match at the ends of each line.
    """
    return _compile(pattern, _MEMORY)


def compiled_once(pattern: str, memory: int) -> Any:
    """Return a pattern as `compiled` does, of up to so many bytes; it is freed when the caller drops it."""
    found = _compile(pattern, memory)
    re2.purge()  # RE2's Python module would hold it, too
    return found


def _compile(pattern: str, memory: int) -> Any:
    try:
        return re2.compile(_MULTILINE + pattern.encode("utf-8"), _options(memory))
    except re2.error as problem:
        reason = problem.args[0] if problem.args else problem
        raise ValueError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None


def _options(memory: int) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.max_mem = memory
    return options


class Filtered:
    """Many patterns that are looked for in one step: RE2 tries those whose fixed texts a text contains."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._filter = re2.Filter()
        for pattern in patterns:
            if not pattern.isascii():
                raise ValueError("fixed texts have to be ASCII")
            self._filter.Add(_MULTILINE + pattern.encode(), _options(_MEMORY))
        self._filter.Compile()

    def matching(self, text: bytes) -> Sequence[int]:
        """Return the positions, in what was given, of the patterns that match anywhere in a text."""
        return self._filter.Match(text) or ()


def found_in(pattern: str, text: str) -> bool:
    """Return whether a pattern matches anywhere in a text."""
    return compiled(pattern).search(text.encode("utf-8", "replace")) is not None


def named_groups(found: Any) -> dict[str, str]:
    """Return the named groups of a match as text; those without text are left out."""
    named = ((_text(name), found.group(index)) for name, index in found.re.groupindex.items())
    return {name: _text(value) for name, value in named if value}


def groups_in(pattern: str, text: str) -> dict[str, str]:
    """Return the named groups of the first match of a pattern; none where it does not match."""
    found = compiled(pattern).search(text.encode("utf-8", "replace"))
    return {} if found is None else named_groups(found)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
