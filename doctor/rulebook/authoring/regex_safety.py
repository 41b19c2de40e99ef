"""Whether a signature stays linear on any log: a static look at the parsed regular expression.

`explain` runs every signature over text that anyone may have written. Python's engine backtracks, so the shapes
that make backtracking explode are refused: repeats within repeats, alternatives within repeats, neighbouring
repeats without a landmark between them, references back.
"""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

MAX_OPEN_REPEATS = 3  # each one multiplies the worst case by the length of the line
WIDE = 10  # a repeat bounded above this counts as open


def regex_fault(pattern: str) -> str | None:
    """What is wrong with a signature, as a sentence; None when it is fine."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled = re.compile(pattern)
            parsed = _parser().parse(pattern)
    except (re.error, FutureWarning, DeprecationWarning, OverflowError, RecursionError) as error:
        return f"is no regular expression: {error}"
    if compiled.search(""):
        return "matches the empty text, so it matches every log"
    problem = _Walk().sequence(parsed, within=False)
    if problem is None and re.match(r"\^?\.[*+]", pattern):
        return "starts with an open repeat; a signature is searched anywhere, so leave it out"
    return problem


def _parser() -> Any:
    if sys.version_info >= (3, 11):
        import re._parser as parser  # type: ignore[import-not-found,unused-ignore]
    else:
        import sre_parse as parser
    return parser


class _Walk:
    def __init__(self) -> None:
        self.open_repeats = 0

    def sequence(self, items: Any, within: bool) -> str | None:
        """The first fault among items that follow one another; `within` an open repeat."""
        after_repeat = False
        for operator, argument in items:
            name = str(operator)
            if name in ("MAX_REPEAT", "MIN_REPEAT"):
                low, high, body = argument
                if (problem := self.repeat(int(low), int(high), body, within, after_repeat)) is not None:
                    return problem
                after_repeat = int(high) > WIDE and high != low
                continue
            if name != "AT":
                after_repeat = False
            if (problem := self.single(name, argument, within)) is not None:
                return problem
        return None

    def repeat(self, low: int, high: int, body: Any, within: bool, after_repeat: bool) -> str | None:
        """The first fault of one repeat and its body."""
        if within and high != low:
            return "repeats within a repeat"
        if high <= WIDE:
            return self.sequence(body, within)
        if high == low:
            return self.sequence(body, within=True)
        if after_repeat:
            return "has two open repeats side by side; put fixed text between them"
        self.open_repeats += 1
        if self.open_repeats > MAX_OPEN_REPEATS:
            return f"has more than {MAX_OPEN_REPEATS} open repeats"
        return self.sequence(body, within=True)

    def single(self, name: str, argument: Any, within: bool) -> str | None:
        """The first fault of one item that is no repeat."""
        if name.startswith("GROUPREF"):
            return "refers back to a group"
        if name == "BRANCH":
            if within:
                return "has alternatives within a repeat; a character class such as [ab] does it"
            return next((p for branch in argument[1] if (p := self.sequence(branch, within)) is not None), None)
        if name == "SUBPATTERN":
            return self.sequence(argument[3], within)
        if name in ("ASSERT", "ASSERT_NOT"):
            return self.sequence(argument[1], within)
        if name in ("ATOMIC_GROUP", "POSSESSIVE_REPEAT"):
            return "uses atomic or possessive syntax, which Python 3.10 does not know"
        return None
