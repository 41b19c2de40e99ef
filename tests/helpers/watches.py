"""What sources are handed to look for, in tests of sources alone."""

from __future__ import annotations

from functools import lru_cache

from doctor.diagnosis.watch import watch_of
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.watch import Watch


@lru_cache(maxsize=1)
def built_in_watch() -> Watch:
    """Return the names and tables of the built-in rulebook."""
    return watch_of(load_rulebook())
