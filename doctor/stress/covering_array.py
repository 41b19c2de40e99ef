"""Build a covering array from a seed: few cases in which every pair of values of two axes occurs."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Row = tuple[int, ...]  # for each axis the place of its value
Tuple_ = tuple[tuple[int, int], ...]  # ((axis, place), ...), by axis


class CoveringArray:
    """Rows over `axes`, chosen greedily; `fits` says which rows are valid.

    Iterating yields rows without repetition. Until every feasible pair has occurred, each row is the best of several
    candidates by its new pairs, afterwards by its new triples. `pairs` counts what is covered.
    """

    CANDIDATES = 12
    TRIES = 60

    def __init__(
        self,
        axes: Mapping[str, Sequence[Mapping[str, Any]]],
        fits: Callable[[dict[str, Any]], bool],
        seed: int,
        resting: Collection[str] = (),
    ) -> None:
        """Make an empty array; `resting` axes take their first value in rows that are not valid otherwise.

        Without that, a value that is compatible with few others would draw most rows to those few.
        """
        self.names = list(axes)
        self.resting = [place for place, name in enumerate(self.names) if name in resting]
        self.values = [list(axes[name]) for name in self.names]
        self.fits = fits
        self.random = random.Random(seed)
        self.missing = {
            ((a, i), (b, j))
            for a, b in combinations(range(len(self.names)), 2)
            for i in range(len(self.values[a]))
            for j in range(len(self.values[b]))
        }
        self.total = len(self.missing)
        self.infeasible: set[Tuple_] = set()
        self.rows: set[Row] = set()
        self.triples: set[Tuple_] = set()

    def case(self, row: Row) -> dict[str, Any]:
        """Return the case of a row."""
        made: dict[str, Any] = {}
        for values, place in zip(self.values, row, strict=True):
            made.update(values[place])
        return made

    @property
    def pairs(self) -> tuple[int, int]:
        """Return (pairs covered, feasible pairs)."""
        feasible = self.total - len(self.infeasible)
        return feasible - len(self.missing), feasible

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            row = self._next()
            if row is None:
                return
            self.rows.add(row)
            self.missing.difference_update(_tuples(row, 2))
            self.triples.update(_tuples(row, 3))
            yield self.case(row)

    def _next(self) -> Row | None:
        while self.missing:
            # Sorted, so that only the seed decides, not the order of a set.
            wanted = self.random.choice(sorted(self.missing)) if len(self.rows) else min(self.missing)
            found = [row for row in (self._with(wanted) for _ in range(self.CANDIDATES)) if row is not None]
            if found:
                return max(found, key=lambda row: len(self.missing.intersection(_tuples(row, 2))))
            self.missing.discard(wanted)
            self.infeasible.add(wanted)
        found = [row for row in (self._with(()) for _ in range(self.CANDIDATES // 2)) if row is not None]
        if not found:
            return None
        return max(found, key=lambda row: len(_tuples(row, 3) - self.triples))

    def _with(self, wanted: Tuple_) -> Row | None:
        """Return a random new row that is valid and has the wanted values; None if none was found."""
        fixed = dict(wanted)
        for _ in range(self.TRIES):
            row = tuple(fixed.get(axis, self.random.randrange(len(values))) for axis, values in enumerate(self.values))
            if row not in self.rows and self.fits(self.case(row)):
                return row
            rested = tuple(0 if axis in self.resting and axis not in fixed else place for axis, place in enumerate(row))
            if rested != row and rested not in self.rows and self.fits(self.case(rested)):
                return rested
        return None


def _tuples(row: Row, size: int) -> set[Tuple_]:
    return set(combinations(enumerate(row), size))
