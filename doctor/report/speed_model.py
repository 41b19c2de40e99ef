"""How fast each attention backend is on one job, as it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from doctor.facts.measurement import Measurement


@dataclass(frozen=True)
class SpeedRow:
    """One backend, measured or not, and what selects it."""

    measurement: Measurement
    title: str
    select: str  # words for the framework of the job
    seconds: float = 0.0  # that measuring took

    @property
    def usable(self) -> bool:
        """Whether it has a time and computes what the job means."""
        return self.measurement.ran and self.measurement.right is not False

    @property
    def foreign(self) -> tuple[str, ...]:
        """The backends of SDPA whose kernels ran in place of the one that was selected."""
        library, _, part = self.measurement.backend.partition(".")
        return () if library != "sdpa" or part in self.measurement.kernels else self.measurement.kernels

    @property
    def name(self) -> str:
        """The backend, with torch.compile where it was compiled and exists without it."""
        compiled = self.measurement.compiled and self.measurement.backend != "flex.triton"
        return f"{self.measurement.backend}, compiled" if compiled else self.measurement.backend


@dataclass(frozen=True)
class Speed:
    """All that was measured of one job."""

    tool: str
    target: str
    job: Mapping[str, Any]  # the words that were measured
    rows: tuple[SpeedRow, ...]  # the fastest first, per length; then what did not run
    selected: str | None  # the backend that the job selects, where it is predicted and known
    matrix_tflops: float | None  # the rate of a matrix product in this dtype, measured in the same process
    not_installed: tuple[str, ...] = ()  # distributions
    lost: Mapping[str, str] = field(default_factory=dict)  # words of the job that were not measured, with the reasons
    notes: tuple[str, ...] = ()
    timing: Mapping[str, float] = field(default_factory=dict)
    schema: int = 1

    @property
    def lengths(self) -> tuple[int, ...]:
        """The sequence lengths of the keys, in rising order."""
        return tuple(sorted({row.measurement.seq_len_kv for row in self.rows}))

    def at(self, length: int) -> tuple[SpeedRow, ...]:
        """Return the rows of one length."""
        return tuple(row for row in self.rows if row.measurement.seq_len_kv == length)

    @property
    def main(self) -> tuple[SpeedRow, ...]:
        """The rows of the longest sequence."""
        return self.at(self.lengths[-1]) if self.rows else ()

    @property
    def fastest(self) -> SpeedRow | None:
        """The fastest backend that is right for this job."""
        return next((row for row in self.main if row.usable), None)

    @property
    def as_fast(self) -> tuple[SpeedRow, ...]:
        """The rows whose time differs from the fastest by no more than what it varies by; the fastest is the first."""
        best = self.fastest
        if best is None:
            return ()
        return tuple(row for row in self.main if row.usable and (row is best or row.measurement.ties(best.measurement)))

    @property
    def current(self) -> SpeedRow | None:
        """The row of the backend that the job selects."""
        compiled = bool(self.job.get("torch_compile"))
        rows = [row for row in self.main if row.measurement.backend == self.selected]
        return next((row for row in rows if row.measurement.compiled == compiled), next(iter(rows), None))
