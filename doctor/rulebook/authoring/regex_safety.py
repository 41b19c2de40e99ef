"""Whether a signature can be searched in any log: RE2 takes it, and it contains a text that a scan can look for."""

from __future__ import annotations

import re
import warnings

from doctor.rulebook.anchors import SHORTEST, anchors_of
from doctor.util.linear_regex import compiled


def regex_fault(pattern: str, *, scanned: bool = True) -> str | None:
    """Return what is wrong with a pattern, as the end of a sentence; None when it is fine.

    RE2 has no look-around and no references back, and its time is linear. `scanned`: it is looked for in a whole log,
    which needs a fixed text.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
        matcher = compiled(pattern)
    except (re.error, FutureWarning, DeprecationWarning, OverflowError, RecursionError, ValueError) as error:
        return f"is no regular expression that RE2 takes: {error}"
    if matcher.search(b"") is not None:
        return "matches the empty text, so it matches every log"
    if scanned and pattern.startswith("(?i)"):
        return "ignores case as a whole; write `(?i:...)` around the part whose case does not matter"
    if scanned and not anchors_of(pattern):
        return f"has no fixed text of {SHORTEST} characters that every match contains"
    return None
