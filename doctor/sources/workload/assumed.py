"""Facts that nothing states, with the usual value and flagged as assumed."""

from __future__ import annotations

from typing import Any

from doctor.model import Fact


def assumed_fact(key: str, value: Any, why: str) -> Fact:
    """Return an assumed fact; `why` gives the reason."""
    return Fact(key, value, f"assumed: {why}", assumed=True)
