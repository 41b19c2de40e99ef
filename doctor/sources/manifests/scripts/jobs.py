"""The workload that a command states: of a server or of a training, whichever it starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from doctor.model import Fact

from .serving import serving_facts
from .training import Find, training_facts

#: Text of a shell command, as in `sh -c "…"`, that may start one.
STARTS_JOB = re.compile(r"\bserve\b|launch_server|api_server|train|\bsft\b|\bswift\b|\btrl\b")


def job_facts(words: Sequence[tuple[int, str]], file: Path, find: Find) -> list[Fact]:
    """Return the workload that a command states; empty for a command that starts neither."""
    return serving_facts(words, file) or training_facts(words, file, find)
