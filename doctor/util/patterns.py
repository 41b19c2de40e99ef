"""Regular expressions that are compiled at their first use: a start needs few of those that its modules define."""

from __future__ import annotations

import re
from typing import Any, cast


class _Pattern:
    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return a regular expression to call the methods of; a fault in it is raised at its first use."""
    return cast("re.Pattern[str]", _Pattern(text, flags))
