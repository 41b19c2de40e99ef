"""Finds the few rules that can fire for one set of facts among all the rules of a library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .conditions import All, Condition, Leaf, parse_conditions
from .resolver import FactResolver
from .rule import Library, Rule

#: (position among all rules, rule, what is left of its condition)
Entry = tuple[int, "Rule", Condition]
#: rules that all test the same first: (that condition, or None, the rules)
Group = tuple["Leaf | None", tuple[Entry, ...]]


class RuleIndex:
    """Rules of one library, found by its version and then by the conditions that many of them share.

    The version conditions are judged once per version text and not once per decision. Of what is left, a condition
    that several rules share (`workload.context_parallel: true`) is judged once for all of them. A decision's cost so
    follows the rules that come near to firing, and not the size of the rulebook.
    """

    def __init__(self, rules: tuple[Rule, ...], library: Library | None) -> None:
        self.rules = rules
        self._key = f"{library.distributions[0]}.version" if library and library.distributions else None
        self._parts = frozenset(item.id for item in library.backends if item.part_of) if library else frozenset()
        self._plans: dict[tuple[str | None, bool | None], tuple[Group, ...]] = {}

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def firing(self, known: FactResolver, parts: bool | None = None) -> Iterator[tuple[int, Rule, bool | None]]:
        """(position, rule, True, or None for unknown) of every rule that is not plainly silent.

        `parts`: only rules about parts of backends (True), or only those that do not (False).
        """
        version = known.value(self._key) if self._key else None
        plan = self._plans.get((version, parts))
        if plan is None:
            plan = self._plans[version, parts] = _grouped(self._entries(version, parts))
        for gate, entries in plan:
            shared = True if gate is None else gate.holds(known)
            if shared is False:
                continue
            for position, rule, rest in entries:
                holds = rest.holds(known)
                if holds is not False:
                    yield position, rule, holds and shared

    def any_of(self, parts: bool) -> Rule | None:
        """Some rule about parts of backends, or some other rule."""
        return next((rule for rule in self.rules if parts == self._speaks_of_parts(rule)), None)

    def _speaks_of_parts(self, rule: Rule) -> bool:
        return bool(rule.disables) and rule.disables[0] in self._parts

    def _entries(self, version: str | None, parts: bool | None) -> list[Entry]:
        entries: list[Entry] = []
        for position, rule in enumerate(self.rules):
            if parts is not None and parts != self._speaks_of_parts(rule):
                continue
            if self._is_of_another_release(rule, version):
                continue
            rest: list[Condition] = []
            for part in _all_parts(rule.when):
                verdict = self._of_version(part, version)
                if verdict is False:
                    break
                if verdict is None:
                    rest.append(part)
            else:
                entries.append((position, rule, All(tuple(rest))))
        return entries

    def _is_of_another_release(self, rule: Rule, version: str | None) -> bool:
        """Whether the version alone keeps the rule silent: the rest of its condition need not be parsed then."""
        wanted = rule.body["when"].get(self._key)
        return wanted is not None and self._of_version(parse_conditions({self._key: wanted}), version) is False

    def _of_version(self, part: Condition, version: str | None) -> bool | None:
        if version is None or not isinstance(part, Leaf) or part.key != self._key:
            return None
        return part.test(version)


def _all_parts(when: Condition) -> tuple[Condition, ...]:
    return when.parts if isinstance(when, All) else (when,)


def _grouped(entries: list[Entry]) -> tuple[Group, ...]:
    """Rules with a shared condition together, the most shared first; the rest in a group without one."""
    groups: list[Group] = []
    while entries:
        shared = Counter(_name(part) for _, _, rest in entries for part in _all_parts(rest) if isinstance(part, Leaf))
        name, count = max(shared.items(), key=lambda item: item[1], default=(("", ""), 0))
        if count < 2:
            groups.append((None, tuple(entries)))
            break
        gate: Leaf | None = None
        members: list[Entry] = []
        others: list[Entry] = []
        for position, rule, rest in entries:
            found = next((part for part in _all_parts(rest) if isinstance(part, Leaf) and _name(part) == name), None)
            if found is None:
                others.append((position, rule, rest))
            else:
                gate = gate or found
                members.append((position, rule, All(tuple(part for part in _all_parts(rest) if part is not found))))
        groups.append((gate, tuple(members)))
        entries = others
    return tuple(groups)


def _name(leaf: Leaf) -> tuple[str, str]:
    return leaf.key, leaf.text
