"""Decision lists of a library: an ordered list of cases decides the value of a fact, as the library's own code does.

A case has a condition and a value; the first whose condition holds counts. The value is a literal or `{other.key}`,
the value of that fact. A case that is unknown leaves the fact unknown, unless all later possibilities agree with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from doctor.facts.vocabulary import parse
from doctor.model import ABSENT, Fact
from doctor.rulebook.conditions import All, Condition, Leaf, parse_conditions
from doctor.rulebook.resolver import FactResolver, unknown

#: what is left of a case's condition once the version is known (None: nothing), and its value
Case = tuple["Condition | None", str]


class DecisionList:
    """The cases of one fact, with the version conditions judged once per version text."""

    def __init__(self, key: str, version_key: str, cases: Sequence[Mapping[str, Any]]) -> None:
        self.key = key
        self._version_key = version_key
        self._cases: tuple[Case, ...] = tuple(
            (parse_conditions(case["when"]) if case.get("when") else None, str(case["value"])) for case in cases
        )
        self._by_version: dict[str | None, tuple[Case, ...]] = {}

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of all cases, for any version."""
        return tuple(condition for condition, _ in self._cases if condition is not None)

    def decide(self, known: FactResolver) -> Fact:
        """Return the fact; an unknown one lists the keys that are missing."""
        version = known.value(self._version_key)
        cases = self._by_version.get(version)
        if cases is None:
            cases = self._by_version[version] = tuple(self._of_version(version))
        possible: set[Any] = set()
        lacking: dict[str, None] = {}
        for condition, text in cases:
            holds = True if condition is None else condition.holds(known)
            if holds is False:
                continue
            value = self._value(known, text)
            if value is None:
                lacking.update(dict.fromkeys(known.missing(text[1:-1])))
            elif holds is None and condition is not None:
                lacking.update(dict.fromkeys(_missing(condition, known)))
            possible.add(value)
            if holds:
                break
        else:
            possible.add(ABSENT)
        if len(possible) == 1 and None not in possible:
            return Fact(self.key, possible.pop(), f"decided by {self._version_key.removesuffix('.version')}")
        return unknown(self.key, "decision list", lacking)

    def _value(self, known: FactResolver, text: str) -> Any:
        return known.value(text[1:-1]) if text.startswith("{") else parse(self.key, text)

    def _of_version(self, version: str | None) -> list[Case]:
        kept: list[Case] = []
        for condition, text in self._cases:
            rest: list[Condition] = []
            for part in _parts(condition):
                of_version = isinstance(part, Leaf) and part.key == self._version_key and version is not None
                verdict = part.test(version) if of_version and isinstance(part, Leaf) else None
                if verdict is False:
                    break
                if verdict is None:
                    rest.append(part)
            else:
                kept.append((None if not rest else rest[0] if len(rest) == 1 else All(tuple(rest)), text))
                if not rest:
                    break  # no later case of this release counts
        return kept


def chosen(prefix: str | None, key: str, known: FactResolver) -> tuple[str | None, bool]:
    """Return the backend that the fact `key` names, or None, and whether the fact is known."""
    name = known.value(key)
    return (None, name == ABSENT) if name in (None, ABSENT) else (f"{prefix}.{name}", True)


def _parts(condition: Condition | None) -> tuple[Condition, ...]:
    if condition is None:
        return ()
    return condition.parts if isinstance(condition, All) else (condition,)


def _missing(condition: Condition, known: FactResolver) -> list[str]:
    return [key for leaf in condition.leaves() if leaf.holds(known) is None for key in known.missing(leaf.key)]
