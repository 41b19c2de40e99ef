"""Count what the proofs of a rulebook cover: rules, and the bounds of their version ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

from doctor.rulebook.proofs import IMPORT, NO_FILE, NOT_SHOWN, PROVEN, STATED, Proof, Record, proofs_of, record_of
from doctor.rulebook.schema import Source
from doctor.rulebook.tables import TABLES

from .lint import bounds_by_distribution


@dataclass
class Counts:
    """Rules with a bound, and what is proven of them; a bound is a release of one distribution."""

    rules: int = 0
    with_proof: int = 0
    proven: int = 0  # every proof that a machine can check is proven, and there is one
    whole: int = 0  # proven, and every bound of the rule is one of the proofs
    bounds: int = 0
    bounds_proven: int = 0

    def lines(self, title: str, origin: str) -> Iterator[str]:
        """Yield the figures for a reader."""
        yield (
            f"{self.rules} are {title}: {self.with_proof} have a proof, {self.proven} are proven, "
            f"{self.whole} at every bound"
        )
        yield f"{self.bounds_proven} of {self.bounds} bounds of {origin} are proven"


@dataclass
class Coverage:
    """How many rules there are, and how many of them are proven."""

    rules: int = 0
    generated: Counts = field(default_factory=Counts)  # rows of tables, written by scripts from the releases
    by_hand: Counts = field(default_factory=Counts)

    def lines(self) -> list[str]:
        """Return the figures for a reader."""
        bounded = self.generated.rules + self.by_hand.rules
        proven = self.generated.proven + self.by_hand.proven
        return [
            f"{self.rules} rules, {bounded} with a bound on a release",
            *self.generated.lines("rows of tables", "rows"),
            *self.by_hand.lines("written by hand", "rules by hand"),
            f"{proven} of {bounded} rules with a bound are proven ({proven * 100 // max(bounded, 1)} %)",
        ]


def coverage(sources: Iterable[Source], records: Mapping[str, Sequence[Record]]) -> Coverage:
    """Count the rules that `check` judges, and what is proven of them."""
    found = Coverage()
    for source in sources:
        found.rules += 1
        ranges = bounds_by_distribution(source.content.get("when") or {})
        bounds = {(name, bound) for name, values in ranges.items() for bound in values}
        if bounds:
            _count(found.generated if source.in_table else found.by_hand, source, bounds, records)
    return found


def _count(
    found: Counts, source: Source, bounds: set[tuple[str, Version]], records: Mapping[str, Sequence[Record]]
) -> None:
    proofs = proofs_of(source.content)
    checked = [(one, record_of(source.content["id"], one, records)) for one in proofs if one.kind != STATED]
    shown = [(one, record) for one, record in checked if record is not None and record.outcome == PROVEN]
    covered = bounds & {(one.distribution, bound) for one, record in shown for bound in proven_bounds(one, record)}
    found.rules += 1
    found.with_proof += bool(proofs)
    found.bounds += len(bounds)
    found.bounds_proven += len(covered)
    if checked and len(shown) == len(checked):
        found.proven += 1
        found.whole += covered == bounds


def proven_bounds(proof: Proof, record: Record) -> set[Version]:
    """Return the bounds of a proof with a release on each side that was read: an end that is to come is not proven."""
    if not proof.bounds:
        return set()
    if proof.kind == IMPORT:  # a release next to the range may import the name, too
        shown = {Version(text): found not in (NOT_SHOWN, NO_FILE) for text, found in record.checked.items()}
        below = {bound: max((one for one in shown if one < bound), default=None) for bound in proof.bounds}
        above = {bound: min((one for one in shown if one >= bound), default=None) for bound in proof.bounds}
        sides = ((bound, below[bound], above[bound]) for bound in proof.bounds)
        return {bound for bound, one, other in sides if one and other and shown[one] != shown[other]}
    versions = [Version(text) for text in record.checked]
    return {bound for bound in proof.bounds if min(versions) < bound <= max(versions)}


def is_generated(path: Path) -> bool:
    """Whether a script writes the rules of a file from the releases that they are about: the rows of a table."""
    return path.parent.name == TABLES
