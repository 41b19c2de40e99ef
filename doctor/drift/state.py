"""The state of one path through a function, and how paths that differ in nothing of interest become one again."""

from __future__ import annotations

import ast
import math
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from .values import UNKNOWN, UNKNOWN_HERE, Const, Mapping, Unknown, Value, carries, choice

#: Paths kept apart in one function; beyond it they are joined and what differs is unknown.
PATH_LIMIT = 24
#: The clock is read once in so many steps.
CLOCK_STEPS = 256
#: Up to this many states are compared with each other; more are grouped by the hash of their values.
PAIRWISE = 8


class Raised(Exception):
    """The examined code raises an exception that some handler of it catches."""

    def __init__(self, exception: str) -> None:
        super().__init__(exception)
        self.exception = exception


class BudgetExceeded(Exception):
    """The analysis of a package used all of its steps."""


class Budget:
    """Steps and seconds that an analysis may use."""

    def __init__(self) -> None:
        """Allow nothing yet."""
        self.steps = 0
        self.limit = 0
        self.deadline = math.inf

    def allow(self, steps: int) -> None:
        """Allow this many steps from now on."""
        self.limit = self.steps + steps

    @contextmanager
    def apart(self, steps: int) -> Iterator[None]:
        """Allow some steps for a part of the work that does not count for the rest."""
        before, limit = self.steps, self.limit
        self.allow(steps)
        try:
            yield
        finally:
            self.limit = limit + self.steps - before

    def tick(self) -> None:
        """Count a step; raise BudgetExceeded when steps or seconds are used up."""
        self.steps += 1
        if self.steps > self.limit or (self.steps % CLOCK_STEPS == 0 and time.process_time() > self.deadline):
            raise BudgetExceeded

    @property
    def is_late(self) -> bool:
        """Whether the seconds are used up."""
        return time.process_time() > self.deadline

    @property
    def is_spent(self) -> bool:
        """Whether the steps are used up."""
        return self.steps >= self.limit


@lru_cache(maxsize=20_000)
def words(text: str) -> frozenset[str]:
    """Return the identifiers in a condition."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", text))


@dataclass(slots=True)
class State:
    """The variables of a frame (`x` and dotted paths such as `ctx.x`), and the conditions assumed on the way."""

    variables: dict[str, Value] = field(default_factory=dict)
    facts: dict[str, bool] = field(default_factory=dict)
    unknown: str = ""
    """A guard of the installation that could not be evaluated; findings on this path are uncertain."""
    asserted: frozenset[str] = frozenset()
    """Conditions that hold because the code asserts them: no choice of the workload."""

    def fork(self) -> State:
        """Return a copy that changes independently."""
        return State(dict(self.variables), dict(self.facts), self.unknown, self.asserted)

    def bind(self, name: str, value: Value) -> None:
        """Assign a variable or dotted path, and forget what was assumed about the old value."""
        root, _, rest = name.partition(".")
        if not rest:
            prefix = f"{name}."
            for key in [key for key in self.variables if key.startswith(prefix)]:
                del self.variables[key]
            stale = [text for text in self.facts if root in words(text)]
        else:
            stale = [text for text in self.facts if name in text]
        for text in stale:
            del self.facts[text]
        self.variables[name] = value

    def conditions(self) -> list[str]:
        """Return the conditions that the workload chooses, as the code writes them."""
        return [text if truth else f"not ({text})" for text, truth in self.facts.items() if text not in self.asserted]

    def alias(self, name: str, source: str) -> None:
        """Repeat what is assumed about `source` for `name`, after `name = source`."""
        pattern = re.compile(rf"(?<![\w.]){re.escape(source)}(?![\w.])")
        for text, truth in list(self.facts.items()):
            if source in text and pattern.search(text):
                self.facts[pattern.sub(name, text)] = truth


def _identity(state: State) -> frozenset[tuple[str, Value]]:
    return frozenset((name, value) for name, value in state.variables.items() if carries(value))


def _agree(one: State, other: State) -> bool:
    """Return whether two paths agree in all values of interest; most values are the same object."""
    mine, theirs = one.variables, other.variables
    for name, value in mine.items():
        its = theirs.get(name)
        if its is value:
            continue
        if (carries(value) or (its is not None and carries(its))) and its != value:
            return False
    return mine.keys() >= theirs.keys() or not any(carries(value) for name, value in theirs.items() if name not in mine)


def _joined(states: list[State], unknown: str) -> State:
    """Join paths that agree in all values of interest."""
    first, *others = states
    result = State({}, {}, unknown, first.asserted)
    for name, value in first.variables.items():
        same, environment = True, isinstance(value, Unknown) and value.environment
        for state in others:
            its = state.variables.get(name)
            if its is value:
                continue
            if its is None:
                break
            environment = environment or (isinstance(its, Unknown) and its.environment)
            same = same and its == value
        else:
            result.variables[name] = value if same else UNKNOWN_HERE if environment else UNKNOWN
    for text, truth in first.facts.items():
        if all(state.facts.get(text) == truth for state in others):
            result.facts[text] = truth
    return result


def _groups(states: list[State]) -> Iterable[list[State]]:
    """Return the states in groups that agree in all values of interest."""
    if len(states) > PAIRWISE:
        by_identity: dict[frozenset[tuple[str, Value]], list[State]] = {}
        for state in states:
            by_identity.setdefault(_identity(state), []).append(state)
        return by_identity.values()
    groups: list[list[State]] = []
    for state in states:
        group = next((item for item in groups if _agree(item[0], state)), None)
        if group is None:
            groups.append([state])
        else:
            group.append(state)
    return groups


def merge(states: list[State], before: str) -> list[State]:
    """Join the states behind a branch that differ in nothing of interest.

    `before` is the unknown guard that was already open before the branch: paths that become one again have passed
    both sides of the branch, and depend on it no longer.
    """
    if len(states) < 2:
        return states
    merged = [group[0] if len(group) == 1 else _joined(group, before) for group in _groups(states)]
    if len(merged) > PATH_LIMIT:
        return [join_all(merged, before)]
    return merged


def join_all(states: list[State], before: str) -> State:
    """Join states whatever they differ in: dicts keep the keys of all, other values become alternatives."""
    result = State({}, {}, before, states[0].asserted)
    names = dict.fromkeys(name for state in states for name in state.variables)
    for name in names:
        values = [state.variables[name] for state in states if name in state.variables]
        result.variables[name] = values[0] if all(item == values[0] for item in values) else _union(values)
    for text, truth in states[0].facts.items():
        if all(state.facts.get(text) == truth for state in states[1:]):
            result.facts[text] = truth
    return result


def _union(values: list[Value]) -> Value:
    if all(isinstance(item, Mapping) for item in values):
        mappings = [item for item in values if isinstance(item, Mapping)]
        sure = set.intersection(*({key for key, _ in item.entries} for item in mappings))
        every = {key for item in mappings for key, _ in item.entries} | {k for item in mappings for k in item.optional}
        entries = tuple((key, UNKNOWN) for key in sorted(sure))
        return Mapping(entries, frozenset(every - sure), any(item.open for item in mappings))
    if all(isinstance(item, (Const, Unknown)) for item in values):
        return UNKNOWN
    return choice(values)


_WRITTEN: dict[int, tuple[ast.expr, tuple[str, bool]]] = {}


def written(test: ast.expr) -> tuple[str, bool]:
    """Write a condition so that one and its opposite read the same; the second value says which it was."""
    known = _WRITTEN.get(id(test))
    if known is None or known[0] is not test:
        known = _WRITTEN[id(test)] = (test, _written(test))
    return known[1]


def _written(test: ast.expr) -> tuple[str, bool]:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        opposite = {ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.NotIn: ast.In}.get(type(test.ops[0]))
        if opposite is not None:
            return ast.unparse(ast.Compare(test.left, [opposite()], test.comparators)), False
    return ast.unparse(test), True
