"""Releases that every rule treats alike in one case: they are judged once, by the newest of them.

Nothing here says which those are. Every rule is evaluated first on what all choices share (`ground`). Of what is
left, each choice evaluates the single conditions. Two with the same results are alike: each
finding of one holds for the other, except for the versions that its message names.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from doctor.facts.derived.registry import DERIVATIONS
from doctor.model import ABSENT, Fact, Facts
from doctor.rulebook.backends import Predictor, step_facts, unset
from doctor.rulebook.compiled_facts import compiled_answer, is_compiled
from doctor.rulebook.conditions import Condition, Leaf
from doctor.rulebook.evaluate import Assessment, evaluate
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Library, Rule
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.shared import DependsOnCase, shared_by, split_undetermined, verdict

#: What a condition said of a value, kept for all the cases of a gate.
Memory = dict[tuple[int, Hashable], "bool | None"]


class Alike:
    """Cases that differ in nothing but the releases they take, and which of them the rulebook treats alike."""

    def __init__(self, rulebook: Rulebook, cases: Sequence[Facts], memory: Memory | None = None) -> None:
        self._rulebook, self._cases = rulebook, cases
        self._memory: Memory = {} if memory is None else memory
        self._main = _View(rulebook, rulebook.rules.values(), cases, self._memory)
        self._changed: dict[tuple[tuple[str, Hashable], ...], _View] = {}
        left, self._unclear = split_undetermined(self._main.left, self._main.shared)
        self._left = rulebook.only(left)

    def groups(self) -> list[tuple[int, ...]]:
        """The numbers of the cases that are alike, in order; the groups in the order of their last."""
        found: dict[Hashable, list[int]] = {}
        for number, case in enumerate(self._cases):
            found.setdefault(tuple(self._traits(case)), []).append(number)
        return sorted((tuple(numbers) for numbers in found.values()), key=lambda numbers: numbers[-1])

    def evaluate(self, number: int, *, name_missing: bool = True) -> Assessment:
        """What `evaluate` with the whole rulebook says of a case."""
        case = self._cases[number]
        return evaluate(self._left, case, self._main.implied, self._unclear, name_missing=name_missing)

    def _traits(self, case: Facts) -> Iterator[Hashable]:
        """All that a judgement can depend on; a prediction is evaluated again with some facts changed."""
        probe = self._main.probe(case)
        yield from self._main.outlook(probe)
        yield from self._of_steps(case, probe)
        for library in self._rulebook.by_prefix.values():
            cleared = unset(library, probe)
            if any(fact.value != ABSENT for fact in cleared.values()):
                without, view = self._with(case, cleared)
                probe_without = view.probe(without)
                yield from view.outlook(probe_without)
                yield from self._of_steps(without, probe_without)

    def _of_steps(self, case: Facts, probe: FactResolver) -> Iterator[Hashable]:
        for backend in (name for library in self._rulebook.by_prefix.values() for name in library.variants):
            try:
                steps = probe.value(f"{backend}.steps")
            except DependsOnCase:
                yield object()  # like nothing else
                continue
            yield steps
            for text in () if steps in (None, ABSENT) else steps:
                at_step, view = self._with(case, step_facts(text))
                yield from view.outlook(view.probe(at_step))

    def _with(self, case: Facts, facts: Facts) -> tuple[Facts, _View]:
        """The case with some facts replaced, and the view of all cases so changed."""
        name = tuple((key, fact.value) for key, fact in facts.items())
        view = self._changed.get(name)
        if view is None:
            support = [rule for rule in self._rulebook.rules.values() if rule.disables or rule.import_error]
            changed = [one.with_(*facts.values()) for one in self._cases]
            view = self._changed[name] = _View(self._rulebook, support, changed, self._memory)
        return case.with_(*facts.values()), view


class _View:
    """What rules read of these cases that is not the same in all of them."""

    def __init__(self, rulebook: Rulebook, rules: Iterable[Rule], cases: Sequence[Facts], memory: Memory) -> None:
        self._implications, self._memory = rulebook.implications, memory
        self._packages = rulebook.packages
        self._predictor = Predictor(rulebook)
        self.shared = shared = shared_by(rulebook, cases)
        judged = [(rule, verdict(rule.when, shared)) for rule in rules]
        self.left = tuple(rule for rule, holds in judged if holds is not False)
        leaves = [leaf for rule, holds in judged if holds is None for leaf in rule.when.leaves()]
        leaves += [leaf for condition in _of_libraries(rulebook.libraries.values()) for leaf in condition.leaves()]
        varying: dict[str, dict[int, Leaf]] = {}
        for leaf in leaves:
            if leaf.key in varying or not _is_told(shared, leaf.key):
                varying.setdefault(leaf.key, {})[id(leaf)] = leaf
        self._varying = {key: tuple(tested.values()) for key, tested in varying.items()}
        #: What every case knows; a prediction is made again, since all its reasons are needed.
        self.implied: Mapping[str, Fact] = {
            key: fact for key, fact in shared.implied.items() if not self._predictor.answers(key)
        }

    def probe(self, case: Facts) -> FactResolver:
        """Return the resolver of one case without predictions, which follow from the rest (`DependsOnCase`)."""
        return FactResolver(case, self._implications, self._refuse, self.implied)

    def outlook(self, probe: FactResolver) -> Iterator[Hashable]:
        """How every condition turns out, for the keys that are not the same in all cases."""
        for key, leaves in self._varying.items():
            try:
                value = probe.look_up(key).value
            except DependsOnCase:
                yield from _inputs(key, probe)
            else:
                yield None if value is None else tuple(self._says(leaf, value) for leaf in leaves)

    def _says(self, leaf: Leaf, value: Hashable) -> bool | None:
        tested = (id(leaf), value)
        if tested not in self._memory:
            self._memory[tested] = leaf.test(value)
        return self._memory[tested]

    def _refuse(self, known: FactResolver, key: str) -> Fact | None:
        if is_compiled(key):
            return compiled_answer(key, known, self._packages)
        if self._predictor.answers(key):
            raise DependsOnCase
        return None


def _inputs(key: str, probe: FactResolver) -> Iterator[Hashable]:
    """What a value that depends on a prediction is made of besides it."""
    derivation = DERIVATIONS.get(key)
    yield DependsOnCase
    for need in (*derivation.needs, *derivation.uses) if derivation else ():
        try:
            yield probe.value(need)
        except DependsOnCase:
            yield from _inputs(need, probe)


def _is_told(shared: FactResolver, key: str) -> bool:
    try:
        shared.look_up(key)
    except DependsOnCase:
        return False
    return True


def _of_libraries(libraries: Iterable[Library]) -> Iterator[Condition]:
    """The conditions that are no rule's: where a library applies, what it prefers, what releases imply and decide."""
    for library in libraries:
        if library.applies is not None:
            yield library.applies
        orders = (library.preferences, *library.variants.values(), library.stage_orders)
        yield from (condition for order in orders for condition, _ in order if condition is not None)
        yield from (condition for condition, _ in library.implies)
        yield from (condition for decision in library.decisions.values() for condition in decision.conditions)
