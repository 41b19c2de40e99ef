"""Lines that warn: they explain a later error only where they say so, and no failure where none follows."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .scan import Match

_WARNING = re.compile(
    r"\w*Warning: |^\W{0,4}(?:WARNING|Warning|WARN|INFO|NOTE|Note)\b|\b(?:WARNING|INFO) \d\d-\d\d \d\d:|^\[W\d{0,4} "
)
#: The line itself names what runs instead.
_INSTEAD = re.compile(
    r"(?i)\bwill (?:only |now )?(?:run|use|fall|default)|\bfall(?:s|ing)? ?back|\bfallback\b"
    r"|\busing \S[^.]{2,60} instead|for (?:faster|better) |is optional|unfused implementation"
    r"|[:;,(-] ?(?:taking|using|trying|continuing with|switching to|defaulting to) \w"
)
_RAISED = re.compile(r"(?:[\w.]+(?:Error|Exception|Failure)|exc\.Unsupported)\b")


def warns(line: str) -> bool:
    """Return whether a line is a warning or a notice, not an error."""
    return _WARNING.search(line) is not None


def names_alternative(line: str) -> bool:
    """Return whether a warning says what runs instead: the program goes on."""
    return warns(line) and _INSTEAD.search(line) is not None


def last_raised(errors: Iterable[Match]) -> int:
    """Return the line of the last error that is no warning; 0 where a log has none."""
    return max((match.line for match in errors if _RAISED.search(match.text) and not warns(match.text)), default=0)
