"""Facts that nothing states: what is usually meant, flagged as assumed."""

from __future__ import annotations

from typing import Any

from doctor.model import Fact


def assumed_fact(key: str, value: Any, why: str) -> Fact:
    """Return a fact that is assumed; `why` says on what grounds."""
    return Fact(key, value, f"assumed: {why}", assumed=True)
