"""How two environments differ, and what that changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from doctor.model import Change, Finding, Prediction, Report, TextEnum


class DiffArea(TextEnum):
    """What kind of thing differs between two environments, the most relevant to attention first."""

    LIBRARY = "library"  # a package that some rule or prediction reads
    DRIVER = "driver"
    GPU = "gpu"
    FILE = "file"  # what the process loads, and from where
    VARIABLE = "variable"
    WORKLOAD = "workload"
    OTHER = "other"

    @property
    def rank(self) -> int:
        """Return 0 for the most relevant, and more for what matters less."""
        return tuple(DiffArea).index(self)


class DiffSide(TextEnum):
    """One of the two environments that are compared."""

    A = "A"
    B = "B"


@dataclass(frozen=True)
class DiffRow:
    """One fact of two environments; a value of None is unknown."""

    key: str
    a: Any
    b: Any

    @property
    def known(self) -> bool:
        """Whether both values are known, so that they differ for certain."""
        return self.a is not None and self.b is not None


@dataclass(frozen=True)
class Difference:
    """What differs between two environments: facts that change together, such as all of cuDNN."""

    name: str  # as people call it: torch, cuDNN, NVTE_FLASH_ATTN
    area: DiffArea
    rows: tuple[DiffRow, ...]  # the row that names the difference first
    explains: tuple[str, ...] = ()  # rule ids and libraries whose outcome it changes

    @property
    def known(self) -> bool:
        """Whether any of it is known on both sides."""
        return any(row.known for row in self.rows)


@dataclass(frozen=True)
class FindingChange:
    """A finding of one environment that the other does not have."""

    finding: Finding
    side: DiffSide
    other_unknown: bool  # the other environment lacks the facts to decide
    causes: tuple[str, ...]  # names of the differences that it takes, all of them together


@dataclass(frozen=True)
class BackendChange:
    """A library that selects another attention backend in the other environment."""

    library: str
    a: Prediction | None
    b: Prediction | None
    causes: tuple[str, ...]
    reasons: tuple[str, ...] = ()  # why the backend of one side is unavailable on the other


@dataclass(frozen=True)
class Comparison:
    """Two environments compared: what differs, what that changes, and what makes B like A."""

    names: tuple[str, str]  # as the user named A and B
    a: Report
    b: Report
    differences: tuple[Difference, ...]  # the causes of changes first, then by relevance
    findings: tuple[FindingChange, ...]  # the worst first
    backends: tuple[BackendChange, ...]
    pins: tuple[Change, ...]  # packages and variables that make B like A; the causes first
    timing: Mapping[str, float]
    schema: int = 1
