"""The built-in rulebook, loaded once per process."""

from __future__ import annotations

from functools import cache

from doctor.rulebook.rulebook import Rulebook, load_rulebook


@cache
def builtin_rulebook() -> Rulebook:
    """Return the rulebook that the project ships; tests share it, since nothing changes it."""
    return load_rulebook()


def builtin_stack() -> frozenset[str]:
    """Return the distributions whose sources the analysis of API drift reads."""
    return builtin_rulebook().stack
