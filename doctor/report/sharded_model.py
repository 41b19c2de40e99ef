"""The nouns of a sweep over many nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BadCase:
    """A case of the sweep with a fault."""

    case: str
    backend: str
    verdict: str
    reason: str
    node: str  # empty where the engine does not say it, or the journal had it


@dataclass(frozen=True)
class ShardedReport:
    """The results of a sweep over many nodes; cases without a result are counted too."""

    tool: str
    planned: int
    counts: Mapping[str, int]  # verdict -> cases
    by_backend: Mapping[str, Mapping[str, int]]
    bad_cases: tuple[BadCase, ...]
    nodes: Mapping[str, int]  # node -> cases that it ran
    resumed: int
    seconds: float
    notes: tuple[str, ...] = ()
    schema: int = 1

    @property
    def bad(self) -> bool:
        """Return whether a case has a fault or no result."""
        return bool(self.bad_cases or self.counts.get("not reached"))
