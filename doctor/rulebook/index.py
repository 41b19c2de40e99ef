"""Finds the few rules that can fire for one set of facts among all the rules of a library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from .conditions import All, AnyOf, Condition, Leaf, Not, parse_conditions
from .resolver import FactResolver
from .rule import Library, Rule

#: (position among all rules, rule, what is left of its condition)
Entry = tuple[int, "Rule", tuple[Condition, ...]]


class Group(NamedTuple):
    """Rules that share a condition: it is judged once, then what is left of each, which again may be shared."""

    gate: Leaf | None  # none where nothing is shared
    rules: tuple[tuple[int, Rule, Condition | None], ...]  # None: nothing is left to judge
    groups: tuple[Group, ...]


class RuleIndex:
    """Rules of one library, found by its version and then by the conditions that many of them share.

    The version conditions are judged once per version text and not once per decision. A remaining condition
    that several rules share (`workload.context_parallel: true`) is judged once for all of them. A decision's cost so
    follows the rules that come near to firing, and not the size of the rulebook.
    """

    def __init__(self, rules: tuple[Rule, ...], library: Library | None) -> None:
        self.rules = rules
        self._key = f"{library.distributions[0]}.version" if library and library.distributions else None
        self._parts = frozenset(item.id for item in library.backends if item.part_of) if library else frozenset()
        self._plans: dict[tuple[str | None, bool | None, frozenset[str] | None], tuple[Group, ...]] = {}

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def firing(
        self, known: FactResolver, parts: bool | None = None, failing: frozenset[str] | None = None
    ) -> list[tuple[int, Rule, bool | None]]:
        """(position, rule, True, or None for unknown) of every rule that is not plainly silent.

        `parts`: only rules about parts of backends (True), or only those that do not (False). `failing`: only rules by
        which one of these backends fails in a step.
        """
        version = known.value(self._key) if self._key else None
        plan = self._plans.get((version, parts, failing))
        if plan is None:
            plan = self._plans[version, parts, failing] = _grouped(self._entries(version, parts, failing))
        found: list[tuple[int, Rule, bool | None]] = []
        _add_firing(plan, known, True, found)
        return found

    def any_of(self, parts: bool) -> Rule | None:
        """Some rule about parts of backends, or some other rule."""
        return next((rule for rule in self.rules if parts == self._speaks_of_parts(rule)), None)

    def _speaks_of_parts(self, rule: Rule) -> bool:
        return bool(rule.disables) and rule.disables[0] in self._parts

    def _entries(self, version: str | None, parts: bool | None, failing: frozenset[str] | None) -> list[Entry]:
        entries: list[Entry] = []
        for position, rule in enumerate(self.rules):
            if parts is not None and parts != self._speaks_of_parts(rule):
                continue
            if failing is not None and failing.isdisjoint(rule.fails_at_run):
                continue
            if self._is_of_another_release(rule, version):
                continue
            rest = self._left_of(rule.when, version)
            if rest is not False:
                entries.append((position, rule, () if rest is True else _all_parts(rest)))
        return entries

    def _left_of(self, when: Condition, version: str | None) -> Condition | bool:
        """Return what is left of a condition when the version is known; True or False where nothing is."""
        if isinstance(when, Leaf):
            verdict = self._of_version(when, version)
            return when if verdict is None else verdict
        if isinstance(when, Not):
            part = self._left_of(when.part, version)
            return not part if isinstance(part, bool) else when if part is when.part else Not(part)
        assert isinstance(when, (All, AnyOf))
        decisive = isinstance(when, AnyOf)
        left: list[Condition] = []
        for part in when.parts:
            rest = self._left_of(part, version)
            if rest is decisive:
                return decisive
            if not isinstance(rest, bool):
                left += rest.parts if type(rest) is type(when) else (rest,)
        if not left:
            return not decisive
        return left[0] if len(left) == 1 else type(when)(tuple(left))

    def _is_of_another_release(self, rule: Rule, version: str | None) -> bool:
        """Whether the version alone keeps the rule silent: the rest of its condition need not be parsed then."""
        wanted = None if self._key is None else rule.condition.get(self._key)
        return wanted is not None and self._of_version(parse_conditions({self._key: wanted}), version) is False

    def _of_version(self, part: Condition, version: str | None) -> bool | None:
        if version is None or not isinstance(part, Leaf) or part.key != self._key:
            return None
        return part.test(version)


def _all_parts(when: Condition) -> tuple[Condition, ...]:
    return when.parts if isinstance(when, All) else (when,)


def _add_firing(
    groups: tuple[Group, ...], known: FactResolver, shared: bool | None, found: list[tuple[int, Rule, bool | None]]
) -> None:
    for group in groups:
        verdict = shared
        if group.gate is not None:
            holds = group.gate.holds(known)
            if holds is False:
                continue
            verdict = holds and shared
        for position, rule, rest in group.rules:
            holds = True if rest is None else rest.holds(known)
            if holds is not False:
                found.append((position, rule, holds and verdict))
        _add_firing(group.groups, known, verdict, found)


def _grouped(entries: list[Entry]) -> tuple[Group, ...]:
    """Rules with a shared condition together, the most shared first; the rest in a group without one."""
    groups: list[Group] = []
    while entries:
        shared = Counter(part for _, _, rest in entries for part in rest if isinstance(part, Leaf))
        gate, count = max(shared.items(), key=lambda item: item[1], default=(None, 0))
        if gate is None or count < 2:
            groups.append(Group(None, tuple((position, rule, _left(rest)) for position, rule, rest in entries), ()))
            break
        members: list[Entry] = []
        others: list[Entry] = []
        for entry in entries:
            position, rule, rest = entry
            if gate in rest:
                members.append((position, rule, tuple(part for part in rest if part is not gate)))
            else:
                others.append(entry)
        groups.append(Group(gate, (), _grouped(members)))
        entries = others
    return tuple(groups)


def _left(parts: tuple[Condition, ...]) -> Condition | None:
    return None if not parts else parts[0] if len(parts) == 1 else All(parts)
