"""Named groups of messages that other rules explain: `rules/index/other_messages.json`.

A signature that takes any error of a library's files names in `unless` the groups that it leaves to rules of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from doctor.util.resources import rules_dir


def other_messages_file() -> Path:
    """Return the file that holds the groups."""
    return rules_dir() / "index" / "other_messages.json"


@cache
def other_messages() -> Mapping[str, tuple[str, ...]]:
    """Return the expressions of each group, by its name."""
    groups = json.loads(other_messages_file().read_text(encoding="utf-8"))
    return {name: tuple(group["expressions"]) for name, group in groups.items()}
