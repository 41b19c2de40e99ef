"""Fixed texts of regular expressions: every match contains one of them, so a scan for texts finds all candidates."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from typing import Any

if sys.version_info >= (3, 11):
    import re._parser as parser  # type: ignore[import-not-found,unused-ignore]
else:
    import sre_parse as parser

SHORTEST = 3  # characters; shorter texts are in nearly every line
_MOST = 64  # alternatives of one pattern
_SPELLED = 5  # letters of a text whose case does not matter that are spelled in every way


def anchors_of(pattern: str) -> tuple[str, ...]:
    """Return texts of which every match of `pattern` contains at least one; () if there are none of useful length.

    Of all places in the pattern, the one with the longest texts is taken. Case matters, as in the pattern. A pattern
    that is no regular expression has none.
    """
    try:
        parsed: Any = parser.parse(pattern)
        return _best(parsed)
    except (re.error, RecursionError, OverflowError):
        return ()


@lru_cache(maxsize=4096)
def fixed_length(pattern: str) -> int:
    """Return how many characters of every match the pattern spells out: what it says of a line, not what it spans."""
    try:
        parsed: Any = parser.parse(pattern)
        return _fixed(parsed)
    except (re.error, RecursionError, OverflowError):
        return 0


def _fixed(items: Iterable[Any]) -> int:
    total = 0
    for operator, argument in items:
        name = str(operator)
        if name == "LITERAL":
            total += 1
        elif name == "BRANCH":
            total += min(_fixed(branch) for branch in argument[1])
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            total += int(argument[0]) * _fixed(argument[2])
        elif name == "SUBPATTERN":
            total += _fixed(argument[3])
    return total


def _best(items: Iterable[Any]) -> tuple[str, ...]:
    """Return the best texts of a sequence: a run of fixed characters, or one text for each alternative of a group."""
    found: list[tuple[str, ...]] = []
    run: list[str] = []
    for operator, argument in _flat(items):
        name = str(operator)
        if name == "LITERAL":
            run.append(chr(argument))
            continue
        found.append(("".join(run),))
        run = []
        if name == "BRANCH":
            texts = tuple(text for branch in argument[1] for text in _best(branch) or ("",))
            found.append(texts if len(texts) <= _MOST else ())
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and int(argument[0]) > 0:
            found.append(_best(argument[2]))
        elif name == "SUBPATTERN":  # `(?i:...)`: case does not matter inside
            found.append(tuple(spelled for text in _best(argument[3]) for spelled in _spellings(text)))
    found.append(("".join(run),))
    usable = [texts for texts in found if texts and min(map(len, texts)) >= SHORTEST]
    return max(usable, key=lambda texts: (min(map(len, texts)), -len(texts)), default=())


def _spellings(text: str) -> tuple[str, ...]:
    """Return every spelling in upper and lower case of a part of a text."""
    ends = [end for end, letter in enumerate(text, 1) if letter.isalpha()]
    part = text if len(ends) <= _SPELLED else text[: ends[_SPELLED - 1]]
    letters = [sorted({letter.lower(), letter.upper()}) for letter in part]
    return tuple("".join(spelled) for spelled in product(*letters))


def _flat(items: Iterable[Any]) -> Iterable[Any]:
    """Yield the items of a sequence with plain groups opened, so that texts run on through them."""
    for operator, argument in items:
        if str(operator) == "SUBPATTERN" and not argument[1]:
            yield from _flat(argument[3])
        elif str(operator) == "IN" and len(argument) == 1 and str(argument[0][0]) == "LITERAL":
            yield argument[0]
        else:
            yield operator, argument
