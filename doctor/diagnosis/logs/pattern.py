"""What a scan looks for, and which of it to try on a line: the patterns whose texts the line contains."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from doctor.util.linear_regex import Filtered

MOST = 16  # matches of a pattern that are kept
_MANY = 4  # patterns with a text, from which on they are looked for in one step
_OFTEN = 8  # lines with a text, before that step is prepared
_MOST_KINDS = 4_096  # kinds of lines that are remembered


@dataclass(frozen=True)
class Pattern:
    """One regular expression to look for, and the texts of which every match contains one."""

    match: str
    anchors: tuple[str, ...]
    most: int = MOST  # matches that are kept


@dataclass(frozen=True)
class _Group:
    """Patterns that are looked for in one step."""

    indices: Sequence[int]
    search: Filtered


@dataclass(frozen=True)
class _Plan:
    """What to try on lines with the same texts."""

    generation: tuple[int, int]
    groups: Sequence[_Group]
    single: Sequence[int]
    to_group: Sequence[bytes]  # texts with many patterns that are still tried one by one


class PatternChoice:
    """Which patterns to try on a line; patterns that have all their matches are left out."""

    def __init__(self, patterns: Sequence[Pattern], by_anchor: Mapping[bytes, Sequence[int]]) -> None:
        self._patterns = patterns
        self._full: set[int] = set()
        self._groups: dict[bytes, _Group | None] = {}  # None: they cannot be looked for in one step
        self._looked: dict[bytes, int] = {}
        self.use(by_anchor, ())

    def use(self, by_anchor: Mapping[bytes, Sequence[int]], direct: Sequence[int]) -> None:
        """Take other texts; `direct`: patterns that are tried on every line."""
        self._by_anchor = {**by_anchor, b"": direct} if direct else by_anchor
        self._relations: dict[bytes, tuple[int, tuple[bytes, ...]]] = {}
        self._plans: dict[tuple[bytes, ...], _Plan] = {}
        self._texts = sorted(by_anchor)
        self._groups.pop(b"", None)

    def fill(self, index: int) -> None:
        """Leave out a pattern from now on."""
        self._full.add(index)

    def open_of(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Return those of some patterns that still take matches."""
        return tuple(index for index in indices if index not in self._full)

    def step(self, anchor: bytes) -> int:
        """Return how far behind the start of a text the next one can start that is no part of it."""
        return self._relation(anchor)[0]

    def texts_of(self, anchors: Iterable[bytes]) -> dict[bytes, None]:
        """Return the texts that a line contains which contains these."""
        return dict.fromkeys(part for anchor in anchors for part in self._relation(anchor)[1])

    def has_any(self, anchors: tuple[bytes, ...]) -> bool:
        """Return whether there are patterns to try on a line with these texts."""
        plan = self._plan(anchors)
        return bool(plan.groups or plan.single)

    def to_try(self, anchors: tuple[bytes, ...], part: bytes) -> Sequence[int]:
        """Return the patterns to try on a line with these texts: those that match, or were not looked for yet."""
        plan = self._plan(anchors)
        for text in plan.to_group:
            self._looked[text] = self._looked.get(text, 0) + 1
            if self._looked[text] > _OFTEN:
                self._groups[text] = self._group(self.open_of(self._by_anchor[text]))
        matching = [group.indices[at] for group in plan.groups for at in group.search.matching(part)]
        return self.open_of(list(dict.fromkeys((*matching, *plan.single)))) if matching else plan.single

    def _plan(self, anchors: tuple[bytes, ...]) -> _Plan:
        generation = len(self._full), len(self._groups)
        plan = self._plans.get(anchors)
        if plan is None or plan.generation != generation:
            if len(self._plans) >= _MOST_KINDS:
                self._plans.clear()
            plan = self._plans[anchors] = self._planned(anchors, generation)
        return plan

    def _planned(self, anchors: tuple[bytes, ...], generation: tuple[int, int]) -> _Plan:
        groups: list[_Group] = []
        single: dict[int, None] = {}
        to_group: list[bytes] = []
        for text in (*self.texts_of(anchors), *((b"",) if b"" in self._by_anchor else ())):
            open_ = self.open_of(self._by_anchor[text])
            group = self._groups.get(text)
            if group is not None and open_:
                groups.append(group)
                continue
            single.update(dict.fromkeys(open_))
            if len(open_) >= _MANY and text not in self._groups:
                to_group.append(text)
        return _Plan(generation, groups, tuple(single), to_group)

    def _group(self, indices: Sequence[int]) -> _Group | None:
        try:
            return _Group(indices, Filtered([self._patterns[index].match for index in indices]))
        except ValueError:
            return None

    def _relation(self, anchor: bytes) -> tuple[int, tuple[bytes, ...]]:
        """Return the step behind a text, and the texts in it, itself included."""
        if anchor not in self._relations:
            self._relations[anchor] = self._step(anchor), tuple(self._parts(anchor))
        return self._relations[anchor]

    def _step(self, anchor: bytes) -> int:
        if anchor not in self._by_anchor:  # found by a pattern itself
            return 1
        for start in range(1, len(anchor)):
            at = bisect_right(self._texts, anchor[start:])
            if at < len(self._texts) and self._texts[at].startswith(anchor[start:]):
                return start
        return len(anchor)

    def _parts(self, anchor: bytes) -> set[bytes]:
        ends = range(1, len(anchor) + 1) if anchor in self._by_anchor else ()
        return {part for end in ends for start in range(end) if (part := anchor[start:end]) in self._by_anchor}
