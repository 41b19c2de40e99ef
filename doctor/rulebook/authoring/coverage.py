"""Count what the proofs of a rulebook cover: rules, and the bounds of their version ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from doctor.rulebook.proofs import PROVEN, STATED, Proof, Record, proofs_of, record_of
from doctor.rulebook.schema import Source

from .lint import bounds_by_distribution

_GENERATED = "# Written by scripts/"


@dataclass
class Coverage:
    """How many rules there are, and how many of them are proven; a bound is a release of one distribution."""

    rules: int = 0
    bounded: int = 0  # rules whose condition names a release
    generated: int = 0  # of these: a script writes them from the files of the releases
    with_proof: int = 0
    proven: int = 0  # every proof that a machine can check is proven, and there is one
    whole: int = 0  # proven, and every bound of the rule is one of the proofs
    bounds: int = 0
    bounds_proven: int = 0

    def lines(self) -> list[str]:
        """Return the figures for a reader."""
        by_hand = self.bounded - self.generated
        return [
            f"{self.rules} rules, {self.bounded} with a bound on a release",
            f"{self.generated} of them are written by scripts from the files of the releases",
            f"{by_hand} are written by hand: {self.with_proof} have a proof, {self.proven} are proven, "
            f"{self.whole} at every bound",
            f"{self.bounds_proven} of {self.bounds} bounds of rules by hand are proven",
        ]


def coverage(sources: Iterable[Source], records: Mapping[str, Sequence[Record]]) -> Coverage:
    """Count the rules that `check` judges, and what is proven of them."""
    found = Coverage()
    for source in sources:
        ranges = bounds_by_distribution(source.content.get("when") or {})
        found.rules += 1
        if not ranges:
            continue
        found.bounded += 1
        if is_generated(Path(source.path)):
            found.generated += 1
            continue
        proofs = proofs_of(source.content)
        bounds = {(name, bound) for name, values in ranges.items() for bound in values}
        checked = [(one, record_of(source.content["id"], one, records)) for one in proofs if one.kind != STATED]
        shown = [(one, record) for one, record in checked if record is not None and record.outcome == PROVEN]
        covered = bounds & {(one.distribution, bound) for one, record in shown for bound in proven_bounds(one, record)}
        found.with_proof += bool(proofs)
        found.bounds += len(bounds)
        found.bounds_proven += len(covered)
        if checked and len(shown) == len(checked):
            found.proven += 1
            found.whole += covered == bounds
    return found


def proven_bounds(proof: Proof, record: Record) -> set[Version]:
    """Return the bounds of a proof with a release on each side that was read: an end that is to come is not proven."""
    if not proof.bounds:
        return set()
    read = [Version(text) for text in record.checked]
    return {bound for bound in proof.bounds if min(read) < bound <= max(read)}


def is_generated(path: Path) -> bool:
    """Whether a script writes a rule file from the releases that it is about."""
    with path.open(encoding="utf-8") as file:
        return file.readline().startswith(_GENERATED)
