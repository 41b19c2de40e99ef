"""A way out that no rule names: releases searched with package metadata and the rulebook as the only judges.

Depth-first with iterative deepening on the number of changed packages. What a broken requirement or a firing rule
does not depend on cannot mend it: every look-up of a judgement is traced, and only packages that feed one of these
facts are moved. Releases that no rule, release table or requirement tells apart are tried once, nearest first.
Both prunings lose no solution (docs/adr/0006-fix-by-asking-again.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..backends import Predictor
from ..conditions import Leaf
from ..evaluate import rule_holds
from ..known import Known
from ..model import ABSENT, Fact, Facts
from ..release_index import admits
from ..rulebook import Rulebook
from ..vocabulary import parse_version
from .cost import series
from .effects import changed_facts
from .packages import pressing, ways_out
from .parts import leader_of
from .plan import Plan
from .repair import Outcome, Repair
from .stack import Stack

_MOST = 3  # packages changed; what goes along because of metadata counts
_EVALUATIONS, _NODES = 700, 4000
_SMALL = 150, 600  # the same, where a rule's way is there already
_OF_TORCH = re.compile(r"torch\.|cudnn\.")


class _Traced(Known):
    """A look-up that remembers every key it was asked for, directly or on the way."""

    __slots__ = ("reads",)
    reads: set[str]

    def look_up(self, key: str) -> Fact:
        """The fact of `key`, which is remembered."""
        self.reads.add(key)
        return super().look_up(key)

    def with_(self, facts: Facts, predict: Any) -> Known:
        """The same with some facts replaced; it goes on remembering in the same place."""
        changed = _Traced(self.given.with_(*facts.values()), self._implications, predict)
        changed.reads = self.reads
        return changed


def _traced(rulebook: Rulebook, facts: Facts) -> _Traced:
    known = _Traced(facts, rulebook.implications, Predictor(rulebook))
    known.reads = set()
    return known


class Search:
    """One search for one patient."""

    def __init__(self, repair: Repair, most: int = _MOST, evaluations: int = _EVALUATIONS, nodes: int = _NODES) -> None:
        self.repair, self.stack, self.rulebook = repair, repair.stack, repair.rulebook
        self.left, self.nodes, self.most = evaluations, nodes, most
        self._seen: set[frozenset[tuple[str, str]]] = set()
        self._memo: dict[Any, Any] = {}

    @property
    def exhausted(self) -> bool:
        """Whether it ended before everything was tried: then an empty answer proves nothing."""
        return self.left <= 0 or self.nodes <= 0

    def best(self) -> Outcome | None:
        """The cheapest set of releases that clears every error; None when there is none within the bounds."""
        for size in range(1, self.most + 1):
            self._seen.clear()
            found = list(self._extend({}, size, min(self.repair.firing, default=None)))
            if found:
                return min(found, key=lambda outcome: outcome.cost)
            if self.exhausted:
                return None
        return None

    def _extend(self, chosen: dict[str, str], size: int, target: str | None) -> Iterator[Outcome]:
        """Everything of this size that begins with `chosen`; `target` is the error to be mended first."""
        key = frozenset(chosen.items())
        if key in self._seen or self.exhausted:
            return
        self._seen.add(key)
        self.nodes -= 1
        versions = self.stack.completed(chosen)
        if not self.stack.keeps(versions):
            return
        clash = next(iter(pressing(self.stack, chosen)), None)
        if clash is not None:
            for package, spec in ways_out(self.stack, clash, versions, chosen) if len(chosen) < size else ():
                yield from self._with(chosen, package, spec, size, target)
            return
        outcome, reads = self._judged(chosen, target, len(chosen) < size)
        if outcome is not None and len(chosen) == size:
            yield outcome
        elif outcome is None and reads is not None and len(chosen) < size:
            for package in sorted(self._movers(reads) - set(chosen)):
                yield from self._with(chosen, package, "", size, None if target not in self.repair.firing else target)

    def _with(
        self, chosen: dict[str, str], package: str, spec: str, size: int, target: str | None
    ) -> Iterator[Outcome]:
        for version in self.releases(package, spec):
            if self.stack.fits(package, version, chosen) and not self.stack.outdated(package, version, chosen):
                yield from self._extend({**chosen, package: version}, size, target)

    def _judged(
        self, chosen: Mapping[str, str], target: str | None, go_on: bool
    ) -> tuple[Outcome | None, set[str] | None]:
        """(the outcome if nothing is left, else what the first error depends on)."""
        repair = self.repair
        facts = changed_facts(self.rulebook, repair.facts, repair.base.known, self.stack, chosen, {}, {})
        if target is not None:  # the cheap question first
            known = _traced(self.rulebook, facts)
            if rule_holds(self.rulebook, self.rulebook.rules[target], known) is not False:
                return None, known.reads
        self.left -= 1
        outcome = repair.asked(Plan(), chosen)
        if outcome is not None and not outcome.firing:
            return outcome, None
        if not go_on:
            return None, None
        known = _traced(self.rulebook, facts)
        if outcome is None:  # no usable backend
            for library in self.rulebook.libraries.values():
                if library.prefix and library.name in repair.usable:
                    known.look_up(f"{library.prefix}.selected")
        else:
            rule_holds(self.rulebook, self.rulebook.rules[min(outcome.firing)], known)
        return None, known.reads

    def _movers(self, reads: set[str]) -> set[str]:
        """The packages whose release decides one of these facts."""
        found = {"torch"} if any(_OF_TORCH.match(key) for key in reads) else set()
        for key in reads:
            if key.endswith(".version"):
                name = key.removesuffix(".version")
                found.add(leader_of(name) or name)
        here = self.stack.installed
        return {name for name in found if here.get(name, ABSENT) != ABSENT and self.stack.movable(name)}

    def releases(self, package: str, spec: str) -> list[str]:
        """The releases within the range, one of each kind that anything tells apart: the nearest."""
        key = (package, spec)
        if key not in self._memo:
            kinds: dict[Any, str] = {}
            for version in self.stack.domain(package, spec):
                kinds.setdefault(self._kind(package, version), version)
            self._memo[key] = list(kinds.values())
        found: list[str] = self._memo[key]
        return found

    def _kind(self, package: str, version: str) -> Any:
        """Everything that tells a release from another: rules, release tables, requirements both ways, and the cost."""
        release = self.stack.index.release(package, version)
        if release is None or package == "torch":
            return version
        torch = self.stack.installed.get("torch")
        needs = frozenset(
            (need.package, need.range)
            for need in self.stack.needs(package, version, torch)
            if need.package in self.stack.installed
        )
        leaves, tables, ranges = self._distinctions(package)
        present = self.stack.installed.get(package, ABSENT)
        return (
            needs,
            tuple(self.stack.parts(package, version, torch).items()) if package == "transformer-engine" else (),
            tuple(leaf.test(version) for leaf in leaves),
            tuple(repr(table.get(version)) for table in tables),
            tuple(admits(spec, version) for spec in ranges),
            release.has_wheel(self.stack.platform),
            present != ABSENT and parse_version(version) < parse_version(present),
            series(version) == series(present) if present != ABSENT else None,
        )

    def _distinctions(self, package: str) -> tuple[list[Leaf], list[Mapping[str, Any]], list[str]]:
        """The conditions, release tables and requirements that speak of a package."""
        key = ("distinctions", package)
        if key not in self._memo:
            name = f"{package}.version"
            parts = {name, *(f"{part}.version" for part in self.stack.installed if leader_of(part) == package)}
            leaves = {(leaf.key, leaf.text): leaf for leaf in self._leaves() if leaf.key in parts}
            tables = [
                table for sources in self.rulebook.implications.values() for source, table in sources if source == name
            ]
            self._memo[key] = list(leaves.values()), tables, sorted(requirements_on(self.stack, package))
        found: tuple[list[Leaf], list[Mapping[str, Any]], list[str]] = self._memo[key]
        return found

    def _leaves(self) -> list[Leaf]:
        if "leaves" not in self._memo:
            conditions = [rule.when for rule in self.rulebook.rules.values()]
            for library in self.rulebook.libraries.values():
                orders = (*library.preferences, *(order for orders in library.variants.values() for order in orders))
                conditions += [when for when in (library.applies, *(when for when, _ in orders)) if when is not None]
            for sources in self.rulebook.implications.values():
                conditions += [source for source, _ in sources if not isinstance(source, str)]
            self._memo["leaves"] = [leaf for condition in conditions for leaf in condition.leaves()]
        found: list[Leaf] = self._memo["leaves"]
        return found


def better(repair: Repair, outcome: Outcome) -> Outcome | None:
    """A way that needs fewer packages and is worse in nothing that matters: torch's and CUDA's line, downgrades."""
    size = len(outcome.chosen)
    if size < 2 or outcome.firing:
        return None
    found = Search(repair, min(size - 1, _MOST), *_SMALL).best()
    if found is None or not found.dominates(outcome):
        return None
    return found


def requirements_on(stack: Stack, package: str) -> set[str]:
    """Every range that a release of an installed package puts on this one."""
    found = set()
    for other, version in stack.installed.items():
        if version == ABSENT or other == package:
            continue
        candidates = stack.index.releases(other) if stack.index.mentions(other, package) else ()
        for release in {version, *candidates}:
            found |= {need.range for need in stack.needs(other, release, None) if need.package == package}
    return found - {""}
