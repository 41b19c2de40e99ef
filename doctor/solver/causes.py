"""Find what an evaluation depends on: the facts that have to change before a rule is silent or a backend is available.

Every look-up is traced. Where several limits make a backend unavailable, each has to be lifted; so it is enough to look
at the one with the fewest options: what it does not read cannot make the backend available.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from doctor.model import ABSENT, TORCH, Fact, Facts
from doctor.packages.relations import owner_of
from doctor.packages.release_wheels import PACKAGE
from doctor.rulebook.backends import Predictor, order_that_counts
from doctor.rulebook.conditions import PRESENT, All, Condition, Leaf
from doctor.rulebook.evaluate import know, rule_holds
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Library, Rule
from doctor.rulebook.rulebook import Rulebook
from doctor.util.patterns import pattern

from .environment import PackageSet
from .plan import LOADER_VARIABLES

_OF_TORCH = pattern(r"torch\.|cudnn\.")
#: What may be installed where it is missing, so that a backend comes into being; everything else only moves.
ADDABLE = (PACKAGE,)


class Traced(FactResolver):
    """A resolver that records every key that is read, directly or on the way."""

    __slots__ = ("reads",)
    reads: set[str]

    def look_up(self, key: str) -> Fact:
        """The fact of `key`, which is remembered."""
        self.reads.add(key)
        return super().look_up(key)

    def with_(self, facts: Facts, predict: Any) -> FactResolver:
        """The same with some facts replaced; it shares the memory."""
        changed = Traced(self.given.with_(*facts.values()), self._implications, predict)
        changed.reads = self.reads
        return changed


def traced(rulebook: Rulebook, facts: Facts) -> Traced:
    """Return a resolver for these facts that records the keys that are read in `reads`."""
    known = Traced(facts, rulebook.implications, Predictor(rulebook))
    known.reads = set()
    return known


class Limit(NamedTuple):
    """One rule that takes a backend out; None: it is not in the order of preference."""

    rule: Rule | None
    reads: frozenset[str] = frozenset()  # for what is no rule


class Blocked(NamedTuple):
    """A backend, or one of its parts, with every limit that has to be lifted before it serves."""

    backend: str
    title: str
    limits: tuple[Limit, ...]


class Causes:
    """What feeds the judgements about one set of facts."""

    def __init__(self, rulebook: Rulebook, stack: PackageSet, facts: Facts) -> None:
        self.rulebook, self.stack, self.facts = rulebook, stack, facts
        self.known, _ = know(rulebook, facts)
        self._blocked: dict[str, tuple[Blocked, ...]] = {}
        self._of: dict[str, set[str]] = {}
        self._limit_reads: dict[str, frozenset[str]] = {}

    def movers(self, reads: Iterable[str]) -> set[str]:
        """The packages whose release decides one of these facts, as far as they may change."""
        reads = set(reads)
        found = {TORCH} if any(_OF_TORCH.match(key) for key in reads) else set()
        for key in reads:
            if key.endswith(".loads"):  # compiled files next to torch: either can change
                found |= {key.removesuffix(".loads"), TORCH}
            elif key.endswith(".version"):
                name = key.removesuffix(".version")
                owner = owner_of(name)
                found |= {name} if owner is None else {owner, TORCH}  # for whose CUDA another owner's parts are
        here = self.stack.installed
        moved = {n for n in found if self.stack.movable(n) and (here.get(n, ABSENT) != ABSENT or n in ADDABLE)}
        return moved | {name for name in self._strayed() if f"{name}.version" in reads}

    def _strayed(self) -> set[str]:
        """Installed parts that are not at the version their owner pins: they can be put back."""
        if "strayed" not in self.stack.memo:
            found = set()
            for name, version in self.stack.installed.items():
                own = self.stack.pinned_by_owner(name) if version != ABSENT and self.stack.free(name) else None
                if own is not None and own != version:
                    found.add(name)
            self.stack.memo["strayed"] = found
        strayed: set[str] = self.stack.memo["strayed"]
        return strayed

    def switches(self, reads: Iterable[str]) -> set[str]:
        """The variables among these that are set and can be unset."""
        names = {key.removeprefix("env.") for key in reads if key.startswith("env.")} - LOADER_VARIABLES
        return {name for name in names if self.facts.value(f"env.{name}") not in (None, ABSENT)}

    def of(self, rule: Rule) -> set[str]:
        """Facts of which at least one has to change before the rule falls silent."""
        if rule.id not in self._of:
            self._of[rule.id] = self._facts_behind(rule)
        return self._of[rule.id]

    def _facts_behind(self, rule: Rule) -> set[str]:
        whole = rule.when.parts if isinstance(rule.when, All) else (rule.when,)
        found: set[str] = set()
        for part in whole:
            library = self._selection(part)
            found |= self._of_selection(library) if library is not None else self._reads(part)
        if rule.fails_at_run:
            known = traced(self.rulebook, self.facts)
            rule_holds(self.rulebook, rule, known)
            found |= known.reads
        return found

    def selection(self, rule: Rule) -> Library | None:
        """The library whose backends are all out, where that is what the rule says."""
        whole = rule.when.parts if isinstance(rule.when, All) else (rule.when,)
        return next(filter(None, map(self._selection, whole)), None)

    def _selection(self, part: Condition) -> Library | None:
        """The library whose backends are all out, where that is what the condition says."""
        if not isinstance(part, Leaf) or part.text != ABSENT:
            return None
        prefix, _, rest = part.key.partition(".")
        return self.rulebook.by_prefix.get(prefix) if rest in ("selected", "selected_by_default") else None

    def _of_selection(self, library: Library) -> set[str]:
        found: set[str] = set()
        for blocked in self.blocked(library):
            fewest, least = frozenset[str](), None
            for limit in blocked.limits:
                reads = self.reads_of(limit)
                ways = len(self.movers(reads)) + len(self.switches(reads))
                if least is None or ways < least:
                    fewest, least = reads, ways
                if not ways:
                    break  # nothing lifts it: nothing else of this backend matters
            found |= fewest
        return found

    def of_libraries(self, names: Iterable[str]) -> set[str]:
        """The same for libraries that lost their last backend."""
        found: set[str] = set()
        for name in names:
            library = self.rulebook.libraries[name]
            if library.prefix:
                found |= self._of_selection(library)
        return found

    def blocked(self, library: Library) -> tuple[Blocked, ...]:
        """Every backend of a library, parts apart, with its limits; one without limits serves."""
        if library.name not in self._blocked:
            self._blocked[library.name] = tuple(self._judge(library))
        return self._blocked[library.name]

    def _judge(self, library: Library) -> Iterator[Blocked]:
        known, index = traced(self.rulebook, self.facts), self.rulebook.support.get(library.name)
        refusals = self.rulebook.import_errors.get(library.name)
        common = [
            rule for _, rule, holds in (refusals.firing(known) if refusals else ()) if holds and rule.import_error
        ]
        rules = [rule for _, rule, holds in (index.firing(known) if index else ()) if holds]
        for backend in library.backends:
            if backend.part_of is None and backend.id not in library.variants:
                disabling = [*common, *(rule for rule in rules if backend.id in rule.disables)]
                yield Blocked(backend.id, backend.title, self._limits(disabling))
            elif backend.part_of is not None:
                ids = {backend.id, backend.part_of}
                disabling = [*common, *(rule for rule in rules if ids.intersection(rule.disables))]
                orders = library.variants[backend.part_of]
                known_reads = traced(self.rulebook, self.facts)
                limits = self._limits(disabling)
                if backend.id not in (order_that_counts(orders, known_reads) or ()):
                    limits = (*limits, Limit(None, frozenset(known_reads.reads)))
                yield Blocked(backend.id, backend.title, limits)

    def _limits(self, rules: Iterable[Rule]) -> tuple[Limit, ...]:
        return tuple(Limit(rule) for rule in sorted(rules, key=_effort))

    def reads_of(self, limit: Limit) -> frozenset[str]:
        """All facts that decide about a limit."""
        if limit.rule is None:
            return limit.reads
        if limit.rule.id not in self._limit_reads:
            reads = self._reads(limit.rule.when)
            if limit.rule.fails_at_run:  # it fires only where its backend is selected
                known = traced(self.rulebook, self.facts)
                rule_holds(self.rulebook, limit.rule, known)
                reads |= known.reads
            self._limit_reads[limit.rule.id] = frozenset(reads)
        return self._limit_reads[limit.rule.id]

    def _reads(self, condition: Condition) -> set[str]:
        """All that was looked up for the condition, but for what no other release changes: that a package is there.

        A part may well be gone with another release of its owner.
        """
        found: set[str] = set()
        for part in condition.parts if isinstance(condition, All) else (condition,):
            known_reads = part.key.removesuffix(".version") if isinstance(part, Leaf) and part.text == PRESENT else ""
            if isinstance(part, Leaf) and known_reads not in ("", part.key) and owner_of(known_reads) is None:
                continue
            known = traced(self.rulebook, self.facts)
            part.holds(known)
            found |= known.reads
        return found


def _effort(rule: Rule) -> tuple[bool, int]:
    """Order rules by how few facts decide them."""
    keys = [leaf.key for leaf in rule.when.leaves()]
    return any(not key.startswith(("gpu.", "workload.")) for key in keys), len(keys)
