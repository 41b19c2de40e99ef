"""The one condition language of rules: few operators, three outcomes (True, False, None = could not tell).

A mapping of fact keys means *all hold*; `all:`, `any:` and `not:` nest. A wanted value is
a version or number range (`">=2.1,<2.9"`), a literal, a list of literals, `present` or `absent`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from packaging.version import Version

from .errors import DoctorError
from .model import ABSENT, Evidence, Fact
from .vocabulary import BOOLEAN, INTEGER, NUMBER, SM, VERSION, WINDOW, parse, parse_version, term

PRESENT = "present"
OPERATORS = (">=", "<=", "==", "!=", "~=", ">", "<")
_OPPOSITE = {">=": "<", "<": ">=", "<=": ">", ">": "<=", "==": "!=", "!=": "=="}


class Known(Protocol):
    """What a condition asks of the facts: a fact for every key, unknown ones with a problem."""

    def look_up(self, key: str) -> Fact:
        """The fact of `key`; never raises for a key of the vocabulary."""


@lru_cache(maxsize=65536)
def _clause_holds(operator: str, bound_text: str, found_text: str) -> bool | None:
    """One version clause under PEP 440, except that a pre-release of the bound itself is undecided.

    NVIDIA's containers carry builds such as 2.6.0a0+ecf3bae: cut somewhere before 2.6.0, so whether
    what 2.6.0 brought is in there cannot be told from the number.
    """
    found, bound = parse_version(found_text), parse_version(bound_text.removesuffix(".*"))
    if found.is_prerelease and not bound.is_prerelease and _same_release(found, bound):
        return None
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(operator + bound_text).contains(found, prereleases=True)


def _same_release(one: Version, other: Version) -> bool:
    width = max(len(one.release), len(other.release))

    def padded(version: Version) -> tuple[int, ...]:
        return version.release + (0,) * (width - len(version.release))

    return padded(one) == padded(other)


def split_clauses(text: str) -> list[tuple[str, str]]:
    """`">=2.1,<2.9"` as [(">=", "2.1"), ("<", "2.9")]; empty when the text is no range."""
    clauses = []
    for part in text.split(","):
        part = part.strip()
        operator = next((op for op in OPERATORS if part.startswith(op)), None)
        if operator is None:
            return []
        clauses.append((operator, part[len(operator) :].strip()))
    return clauses


def range_holds(clauses: tuple[tuple[str, str], ...], found: str) -> bool | None:
    """All clauses of a version range on one version text, three-valued."""
    verdict: bool | None = True
    for operator, bound in clauses:
        holds = _clause_holds(operator, bound, found)
        if holds is False:
            return False
        if holds is None:
            verdict = None
    return verdict


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": lambda a, b: a >= b, "<=": lambda a, b: a <= b, "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b, ">": lambda a, b: a > b, "<": lambda a, b: a < b,
}  # fmt: skip


class Condition:
    """A node of the condition tree."""

    def holds(self, known: Known) -> bool | None:
        """True, False, or None when a needed fact is unknown."""
        raise NotImplementedError  # pragma: no cover - abstract

    def leaves(self) -> Iterator[Leaf]:
        """Every leaf below, left to right."""
        raise NotImplementedError  # pragma: no cover - abstract

    def evidence(self, known: Known) -> Iterator[Evidence]:
        """The leaves that carry the verdict, judged."""
        raise NotImplementedError  # pragma: no cover - abstract


@dataclass(frozen=True)
class Leaf(Condition):
    """One key compared with one wanted value."""

    key: str
    text: str  # the wanted value as the rule writes it
    needs: str  # its opposite, for the reader of a finding
    test: Callable[[Any], bool | None]

    def holds(self, known: Known) -> bool | None:  # noqa: D102
        value = known.look_up(self.key).value
        return None if value is None else self.test(value)

    def leaves(self) -> Iterator[Leaf]:  # noqa: D102
        yield self

    def evidence(self, known: Known) -> Iterator[Evidence]:  # noqa: D102
        found = known.look_up(self.key)
        holds = None if found.value is None else self.test(found.value)
        yield Evidence(self.key, self.text, self.needs, found, holds)


@dataclass(frozen=True)
class All(Condition):
    """Holds when every part does."""

    parts: tuple[Condition, ...]

    def holds(self, known: Known) -> bool | None:  # noqa: D102
        verdict: bool | None = True
        for part in self.parts:
            holds = part.holds(known)
            if holds is False:
                return False
            if holds is None:
                verdict = None
        return verdict

    def leaves(self) -> Iterator[Leaf]:  # noqa: D102
        for part in self.parts:
            yield from part.leaves()

    def evidence(self, known: Known) -> Iterator[Evidence]:  # noqa: D102
        for part in self.parts:
            yield from part.evidence(known)


@dataclass(frozen=True)
class AnyOf(Condition):
    """Holds when one part does."""

    parts: tuple[Condition, ...]

    def holds(self, known: Known) -> bool | None:  # noqa: D102
        verdict: bool | None = False
        for part in self.parts:
            holds = part.holds(known)
            if holds is True:
                return True
            if holds is None:
                verdict = None
        return verdict

    def leaves(self) -> Iterator[Leaf]:  # noqa: D102
        for part in self.parts:
            yield from part.leaves()

    def evidence(self, known: Known) -> Iterator[Evidence]:  # noqa: D102
        verdict = self.holds(known)
        for part in self.parts:
            if part.holds(known) is verdict:  # the parts that decided
                yield from part.evidence(known)


@dataclass(frozen=True)
class Not(Condition):
    """Holds when its part does not."""

    part: Condition

    def holds(self, known: Known) -> bool | None:  # noqa: D102
        holds = self.part.holds(known)
        return None if holds is None else not holds

    def leaves(self) -> Iterator[Leaf]:  # noqa: D102
        yield from self.part.leaves()

    def evidence(self, known: Known) -> Iterator[Evidence]:  # noqa: D102
        for evidence in self.part.evidence(known):
            holds = None if evidence.holds is None else not evidence.holds
            yield Evidence(
                evidence.key, f"not {evidence.condition}", evidence.condition, evidence.fact, holds
            )


def parse_conditions(when: Any) -> Condition:
    """The tree of a `when:` mapping; DoctorError names the key that is wrong."""
    if not isinstance(when, Mapping) or not when:
        raise DoctorError("a condition needs a mapping of fact keys")
    parts: list[Condition] = []
    for key, wanted in when.items():
        if key in ("all", "any"):
            if not isinstance(wanted, list) or not wanted:
                raise DoctorError(f"`{key}:` needs a list of conditions")
            nested = tuple(parse_conditions(item) for item in wanted)
            parts.append(All(nested) if key == "all" else AnyOf(nested))
        elif key == "not":
            parts.append(Not(parse_conditions(wanted)))
        else:
            parts.append(_leaf(str(key), wanted))
    return parts[0] if len(parts) == 1 else All(tuple(parts))


def _leaf(key: str, wanted: Any) -> Leaf:
    kind = term(key).kind
    if isinstance(wanted, list) and kind != WINDOW:
        options = frozenset(ABSENT if item == ABSENT else parse(key, item) for item in map(str, wanted))
        text = "one of " + ", ".join(map(str, wanted))
        return Leaf(key, text, f"none of {', '.join(map(str, wanted))}", lambda value: value in options)
    text = str(wanted).strip() if not isinstance(wanted, (bool, list)) else str(wanted).lower()
    if text == PRESENT:
        return Leaf(key, PRESENT, ABSENT, lambda value: value != ABSENT)
    if text == ABSENT:
        return Leaf(key, ABSENT, PRESENT, lambda value: value == ABSENT)
    clauses = tuple(split_clauses(text))
    if not clauses:
        literal = parse(key, wanted)
        if kind in (VERSION, SM):
            return _range_leaf(key, kind, (("==", str(literal)),), str(literal))
        return Leaf(key, text, f"not {text}", lambda value: value == literal)
    return _range_leaf(key, kind, clauses, text)


def _range_leaf(key: str, kind: str, clauses: tuple[tuple[str, str], ...], text: str) -> Leaf:
    needs = _OPPOSITE[clauses[0][0]] + clauses[0][1] if len(clauses) == 1 and clauses[0][0] != "~=" else f"not {text}"
    if kind in (VERSION, SM):
        for _, bound in clauses:
            parse(key, bound.removesuffix(".*"))

        def in_range(value: Any) -> bool | None:
            return False if value == ABSENT else range_holds(clauses, value)

        return Leaf(key, text, needs, in_range)
    bounds = tuple((_COMPARE[operator], parse(key, bound)) for operator, bound in clauses if operator in _COMPARE)
    if len(bounds) != len(clauses) or (
        kind in (BOOLEAN, WINDOW) and any(operator not in ("==", "!=") for operator, _ in clauses)
    ):
        raise DoctorError(f"`{key}`: `{text}` does not fit a fact of kind {kind}")
    ordered = kind in (INTEGER, NUMBER)
    if not ordered and any(operator not in ("==", "!=") for operator, _ in clauses):
        raise DoctorError(f"`{key}`: `{text}` orders texts; only == and != fit a fact of kind {kind}")
    only_unequal = all(operator == "!=" for operator, _ in clauses)

    def compare(value: Any) -> bool:
        if value == ABSENT and not only_unequal:
            return False
        return all(holds(value, bound) for holds, bound in bounds)

    return Leaf(key, text, needs, compare)
