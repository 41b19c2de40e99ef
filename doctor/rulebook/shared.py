"""What several cases share, judged once, so that each evaluates only what is left.

Nothing here says which rules those are. Every condition is evaluated on what the cases have in common, with the rest
held back (the GPU and the job of an environment; the releases that a range admits); an answer that needs it is
missing, any other holds in every case.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from doctor.model import Fact, Facts

from .backends import Predictor
from .compiled_facts import is_compiled
from .conditions import All, AnyOf, Condition, Not
from .effects import Implications
from .evaluate import Assessment, Unclear, evaluate
from .messages import missing_keys
from .resolver import FactResolver
from .rule import Rule
from .rulebook import Rulebook

#: What differs from case to case.
VARYING = ("gpu.", "workload.")


class DependsOnCase(Exception):
    """The answer depends on what is held back."""


class SharedResolver(FactResolver):
    """The look-up for what cases share; any other key raises `DependsOnCase`."""

    __slots__ = ("_held_back", "_open", "_same_packages")

    def __init__(
        self,
        facts: Facts,
        implications: Implications,
        predict: Callable[[FactResolver, str], Fact | None] | None,
        held_back: Callable[[str], bool],
        *,
        same_packages: bool = True,
    ) -> None:
        super().__init__(facts, implications, predict)
        self._same_packages = same_packages
        self._held_back = held_back
        self._open: set[str] = set()

    def look_up(self, key: str) -> Fact:  # noqa: D102 (as its base)
        if key in self._open or self._held_back(key) or (not self._same_packages and is_compiled(key)):
            raise DependsOnCase
        try:
            return super().look_up(key)
        except DependsOnCase:
            self._open.add(key)
            raise

    def with_(  # noqa: D102 (as its base)
        self, facts: Facts, predict: Callable[[FactResolver, str], Fact | None] | None
    ) -> FactResolver:
        raise DependsOnCase  # a prediction that changes facts to see what follows: never of what is shared alone

    @property
    def implied(self) -> Mapping[str, Fact]:
        """Every fact that was read and that nothing held back changes."""
        return self._cache


@dataclass(frozen=True)
class SharedEvaluation:
    """One environment, as far as it is judged: the rules that some case may still fire, and the facts all share."""

    facts: Facts
    rulebook: Rulebook
    implied: Mapping[str, Fact]
    unclear: Unclear  # in every case

    def carries(self, facts: Facts) -> bool:
        """Whether these facts differ from the environment's in nothing but the GPU and the job."""
        own = [(key, fact) for key, fact in facts.items() if not key.startswith(VARYING)]
        return len(own) == len(self.facts) and all(same(self.facts.get(key), fact) for key, fact in own)

    def evaluate(self, facts: Facts) -> Assessment:
        """What `evaluate` with the whole rulebook says of a case in this environment."""
        return evaluate(self.rulebook, facts, self.implied, self.unclear)


class SharedEvaluations:
    """The grounds of one environment: as it is declared, and with each choice of releases that its ranges admit."""

    def __init__(self, rulebook: Rulebook) -> None:
        self._rulebook = rulebook
        self._made: dict[object, SharedEvaluation] = {}
        self.memory: dict[tuple[int, Hashable], bool | None] = {}  # what a condition said of a value

    def evaluate(self, name: object, facts: Facts) -> Assessment:
        """What the whole rulebook says of a case on the ground of that name."""
        ground = self._made.get(name)
        if ground is None or not ground.carries(facts):
            ground = self._made[name] = share_evaluation(self._rulebook, facts)
        return ground.evaluate(facts)


def share_evaluation(rulebook: Rulebook, facts: Facts) -> SharedEvaluation:
    """The ground for every case whose facts are these but for the GPU and the job."""
    own = Facts(fact for key, fact in facts.items() if not key.startswith(VARYING))
    known = SharedResolver(own, rulebook.implications, Predictor(rulebook), lambda key: key.startswith(VARYING))
    left, unclear = split_undetermined(rulebook.rules.values(), known)
    possible = (name for name in left if verdict(rulebook.rules[name].when, known) is not False)
    return SharedEvaluation(own, rulebook.only(possible), known.implied, unclear)


def split_undetermined(rules: Iterable[Rule], known: FactResolver) -> tuple[list[str], Unclear]:
    """Return (rules that some case may decide, by the facts they lack those that are undetermined in every case).

    `known` is what the cases share; of `rules`, those that report nothing are left out.
    """
    left: list[str] = []
    unclear: dict[tuple[str, ...], list[Rule]] = {}
    for rule in rules:
        if rule.severity is None:
            continue
        missing = _always_missing(rule, known)
        if missing:
            unclear.setdefault(missing, []).append(rule)
        else:
            left.append(rule.id)
    return left, unclear


def _always_missing(rule: Rule, known: FactResolver) -> tuple[str, ...]:
    """Return the facts that leave a rule undetermined in every case; none where some case may decide it."""
    if rule.fails_at_run:
        return ()
    try:
        return missing_keys(rule, known) if rule.gate.holds(known) is None else ()
    except DependsOnCase:
        return ()


def shared_by(rulebook: Rulebook, cases: Sequence[Facts]) -> SharedResolver:
    """Return the resolver of what these cases have in common; what differs between them raises `DependsOnCase`."""
    first = cases[0]
    keys = {key for case in cases for key in case if key not in first or not same(first[key], case[key])}
    keys |= {key for key in first if not all(key in case for case in cases)}
    common = Facts(fact for key, fact in first.items() if key not in keys)
    same_packages = not any(key.endswith((".version", ".gpu_code")) for key in keys)
    known = SharedResolver(
        common, rulebook.implications, Predictor(rulebook), keys.__contains__, same_packages=same_packages
    )
    known.has_workload = any(key.startswith("workload.") for key in first)
    return known


def same(one: Fact | None, other: Fact) -> bool:
    """Whether two facts are alike."""
    return one is other or one == other  # mostly it is the one object that was read once


def verdict(condition: Condition, known: FactResolver) -> bool | None:
    """True or False where what is shared decides it, None where it does not or does not know."""
    if isinstance(condition, All):
        return _joined([verdict(part, known) for part in condition.parts], False)
    if isinstance(condition, AnyOf):
        return _joined([verdict(part, known) for part in condition.parts], True)
    if isinstance(condition, Not):
        found = verdict(condition.part, known)
        return None if found is None else not found
    try:
        return condition.holds(known)
    except DependsOnCase:
        return None


def _joined(verdicts: list[bool | None], decisive: bool) -> bool | None:
    if decisive in verdicts:
        return decisive
    return None if None in verdicts else not decisive
