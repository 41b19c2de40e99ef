"""Which verdicts on rules stay as they are when some facts change, so that only the other rules are judged again.

A rule is silent because one part of its condition is false. As long as no fact of that part can have changed, the
part stays false. Any other verdict stays as long as no fact of the whole condition can have changed. What can change
follows from the derivations, from what releases imply, and from predictions, which may depend on anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from doctor.model import Facts

from .backends import Predictor
from .conditions import All, Condition, Deferred
from .resolver import FactResolver
from .rulebook import Rulebook

_VERSION, _GIVEN = ".version", ".given"
#: A change of these may change any fact: whether a package that no rule names is absent.
_OF_EVERYTHING = frozenset({"distributions.complete"})


class Verdicts:
    """The verdicts on rules for some facts, with the keys on which each rests."""

    def __init__(self, rulebook: Rulebook, known: FactResolver) -> None:
        self._known, self._dependents = known, rulebook.dependents
        predicts = Predictor(rulebook).answers
        predicted = self._closure(filter(predicts, self._dependents))
        self._found: dict[str, tuple[bool | None, frozenset[str]]] = {}
        for rule in rulebook.concerned(known.value):
            part = None if rule.severity is None else _refuting(rule.gate, known)
            if rule.severity is None or (part is None and rule.fails_at_run):
                continue
            keys = frozenset(leaf.key for leaf in (part or rule.gate).leaves())
            if predicted.isdisjoint(keys) and not any(map(predicts, keys)):
                self._found[rule.id] = (False if part else rule.gate.holds(known), keys)

    def after(self, facts: Facts) -> Mapping[str, bool | None]:
        """Return the verdicts, by the ids of rules, that are certainly the same on these facts."""
        before = self._known.given
        changed = {key for key in {*before, *facts} if _said(before, key) != _said(facts, key)}
        if not _OF_EVERYTHING.isdisjoint(changed) or self._known.has_workload != facts.has_workload:
            return {}
        given = {f"{name}{_GIVEN}" for key in changed for name in (key, key.removesuffix(_VERSION))}
        affected = self._closure(changed | given)
        return {name: verdict for name, (verdict, keys) in self._found.items() if affected.isdisjoint(keys)}

    def _closure(self, changed: Iterable[str]) -> set[str]:
        """Return these keys and all that may follow from them, apart from predictions."""
        affected: set[str] = set()
        left = list(changed)
        while left:
            key = left.pop()
            if key not in affected:
                affected.add(key)
                left += self._dependents.get(key, ())
        return affected


def _said(facts: Facts, key: str) -> tuple[Any, bool] | None:
    fact = facts.get(key)
    return None if fact is None else (fact.value, bool(fact.assumed))


def _refuting(condition: Condition, known: FactResolver) -> Condition | None:
    """Return the first part that is false; None where the condition is not false."""
    for part in condition.parts if isinstance(condition, (Deferred, All)) else (condition,):
        if part.holds(known) is False:
            return _refuting(part, known) if isinstance(part, All) else part
    return None
