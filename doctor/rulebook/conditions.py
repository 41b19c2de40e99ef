"""The one condition language of rules: few operators, three outcomes (True, False, None = unknown).

A mapping of fact keys means *all hold*; `all:`, `any:` and `not:` nest. A wanted value is
a version or number range (`">=2.1,<2.9"`), a literal, a list of literals, `present` or `absent`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from operator import eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple, Protocol

from doctor.errors import DoctorError
from doctor.facts.kinds import BOOLEAN, INTEGER, NUMBER, SM, VERSION, WINDOW
from doctor.facts.versions import clause_holds, range_holds, split_clauses
from doctor.facts.vocabulary import parse, parse_version, term
from doctor.model import ABSENT, Evidence, Fact

PRESENT = "present"
_REMEMBERED = 64  # verdicts on versions, of one condition: many cases have few versions
_OPPOSITE = {">=": "<", "<": ">=", "<=": ">", ">": "<=", "==": "!=", "!=": "=="}


class FactLookup(Protocol):
    """What a condition reads of the facts: a fact for every key, unknown ones with a problem."""

    def look_up(self, key: str) -> Fact:
        """The fact of `key`; never raises for a key of the vocabulary."""


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": ge, "<=": le, "==": eq, "!=": ne, ">": gt, "<": lt,
}  # fmt: skip


class Condition(ABC):
    """A node of the condition tree."""

    @abstractmethod
    def holds(self, known: FactLookup) -> bool | None:
        """True, False, or None when a needed fact is unknown."""

    @abstractmethod
    def leaves(self) -> Iterator[Leaf]:
        """Every leaf below, left to right."""

    @abstractmethod
    def evidence(self, known: FactLookup) -> Iterator[Evidence]:
        """The leaves that carry the verdict, judged."""

    @abstractmethod
    def open_keys(self, known: FactLookup) -> Iterator[str]:
        """The keys that leave this condition undetermined; none if it is determined."""


class Meaning(NamedTuple):
    """What a wanted value says."""

    text: str  # as the rule writes it
    needs: str  # its opposite, for the reader of a finding
    test: Callable[[Any], bool | None]


class _Remembered(dict[Any, "bool | None"]):
    """The last verdicts of a test: conditions are many, and `lru_cache` takes five times as long to make."""

    __slots__ = ("_test",)

    def __init__(self, test: Callable[[Any], bool | None]) -> None:
        super().__init__()
        self._test = test

    def __missing__(self, value: Any) -> bool | None:
        if len(self) >= _REMEMBERED:
            self.clear()
        found = self[value] = self._test(value)
        return found


class Leaf(Condition):
    """One key compared with one wanted value, whose meaning is worked out when a known fact is tested."""

    def __init__(self, key: str, work_out: Callable[[], Meaning]) -> None:
        """`work_out` raises DoctorError for a value that does not fit the key."""
        self.key = key
        self._work_out = work_out
        self._meaning: Meaning | None = None  # thousands are made: a cached property takes longer

    @property
    def meaning(self) -> Meaning:
        """What the wanted value says; DoctorError if it does not fit the key."""
        if self._meaning is None:
            self._meaning = self._work_out()
        return self._meaning

    def test(self, value: Any) -> bool | None:
        """Whether a value is as wanted."""
        return (self._meaning or self.meaning).test(value)

    @property
    def text(self) -> str:
        """The wanted value as the rule writes it."""
        return self.meaning.text

    def holds(self, known: FactLookup) -> bool | None:  # noqa: D102
        value = known.look_up(self.key).value
        return None if value is None else (self._meaning or self.meaning).test(value)

    def leaves(self) -> Iterator[Leaf]:  # noqa: D102
        yield self

    def evidence(self, known: FactLookup) -> Iterator[Evidence]:  # noqa: D102
        found = known.look_up(self.key)
        holds = None if found.value is None else self.test(found.value)
        yield Evidence(self.key, self.meaning.text, self.meaning.needs, found, holds)

    def open_keys(self, known: FactLookup) -> Iterator[str]:  # noqa: D102
        if self.holds(known) is None:
            yield self.key


class _Several(Condition):
    """What has parts."""

    def __init__(self, parts: tuple[Condition, ...]) -> None:
        self.parts = parts

    def leaves(self) -> Iterator[Leaf]:
        for part in self.parts:
            yield from part.leaves()

    def open_keys(self, known: FactLookup) -> Iterator[str]:
        if self.holds(known) is None:
            for part in self.parts:
                yield from part.open_keys(known)


class All(_Several):
    """Holds when every part does."""

    def holds(self, known: FactLookup) -> bool | None:  # noqa: D102
        verdict: bool | None = True
        for part in self.parts:
            holds = part.holds(known)
            if holds is False:
                return False
            if holds is None:
                verdict = None
        return verdict

    def evidence(self, known: FactLookup) -> Iterator[Evidence]:  # noqa: D102
        for part in self.parts:
            yield from part.evidence(known)


class AnyOf(_Several):
    """Holds when one part does."""

    def holds(self, known: FactLookup) -> bool | None:  # noqa: D102
        verdict: bool | None = False
        for part in self.parts:
            holds = part.holds(known)
            if holds is True:
                return True
            if holds is None:
                verdict = None
        return verdict

    def evidence(self, known: FactLookup) -> Iterator[Evidence]:  # noqa: D102
        verdict = self.holds(known)
        for part in self.parts:
            if part.holds(known) is verdict:  # the parts that decided
                yield from part.evidence(known)


class Not(Condition):
    """Holds when its part does not."""

    def __init__(self, part: Condition) -> None:
        self.part = part

    def holds(self, known: FactLookup) -> bool | None:  # noqa: D102
        holds = self.part.holds(known)
        return None if holds is None else not holds

    def leaves(self) -> Iterator[Leaf]:  # noqa: D102
        yield from self.part.leaves()

    def evidence(self, known: FactLookup) -> Iterator[Evidence]:  # noqa: D102
        for evidence in self.part.evidence(known):
            holds = None if evidence.holds is None else not evidence.holds
            yield Evidence(evidence.key, f"not {evidence.condition}", evidence.condition, evidence.fact, holds)

    def open_keys(self, known: FactLookup) -> Iterator[str]:  # noqa: D102
        yield from self.part.open_keys(known)


class Deferred(Condition):
    """A conjunction whose parts are parsed when they are reached: most rules are silent by their first part."""

    def __init__(self, when: Mapping[str, Any]) -> None:
        self._items = tuple(when.items())
        self._parsed: list[Condition] = []

    @property
    def parts(self) -> Iterable[Condition]:
        """The parts in order; one that is not reached is not parsed."""
        return self._parsed if len(self._parsed) == len(self._items) else self._parse()

    def _parse(self, start: int = 0) -> Iterator[Condition]:
        for position, (key, wanted) in enumerate(self._items[start:], start):
            if position == len(self._parsed):
                self._parsed.append(parse_conditions({key: wanted}))
            yield self._parsed[position]

    def holds(self, known: FactLookup) -> bool | None:  # noqa: D102
        verdict: bool | None = True
        for part in self._parsed:
            holds = part.holds(known)
            if holds is False:
                return False
            if holds is None:
                verdict = None
        if len(self._parsed) == len(self._items):
            return verdict
        left = _all_hold(self._parse(len(self._parsed)), known)
        return left if left is False else verdict and left

    def leaves(self) -> Iterator[Leaf]:  # noqa: D102
        return All(tuple(self.parts)).leaves()

    def evidence(self, known: FactLookup) -> Iterator[Evidence]:  # noqa: D102
        return All(tuple(self.parts)).evidence(known)

    def open_keys(self, known: FactLookup) -> Iterator[str]:  # noqa: D102
        return All(tuple(self.parts)).open_keys(known)


def _all_hold(parts: Iterable[Condition], known: FactLookup) -> bool | None:
    verdict: bool | None = True
    for part in parts:
        holds = part.holds(known)
        if holds is False:
            return False
        if holds is None:
            verdict = None
    return verdict


def parse_conditions(when: Any, leaf: Callable[[str, Any], Leaf] | None = None) -> Condition:
    """Return the tree of a `when:` mapping; DoctorError for one that is no tree.

    A value that does not fit its key is found when its leaf is first tested, or by `check_conditions`.
    `leaf` makes the condition on one key: by default on a fact of the vocabulary, `observation` on what a kernel saw.
    """
    leaf = leaf or _fact_leaf
    if not isinstance(when, (dict, Mapping)) or not when:  # nearly all are a dict, which is seen at once
        raise DoctorError("a condition needs a mapping of fact keys")
    parts: list[Condition] = []
    for key, wanted in when.items():
        if key in ("all", "any"):
            if not isinstance(wanted, list) or not wanted:
                raise DoctorError(f"`{key}:` needs a list of conditions")
            nested = tuple(parse_conditions(item, leaf) for item in wanted)
            parts.append(All(nested) if key == "all" else AnyOf(nested))
        elif key == "not":
            parts.append(Not(parse_conditions(wanted, leaf)))
        else:
            parts.append(leaf(str(key), wanted))
    return parts[0] if len(parts) == 1 else All(tuple(parts))


def written_keys(when: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fact keys of a `when:` mapping, which is not parsed for that."""
    for key, wanted in when.items():
        if key in ("all", "any"):
            for item in wanted:
                yield from written_keys(item)
        elif key == "not":
            yield from written_keys(wanted)
        else:
            yield key


def check_conditions(when: Any) -> None:
    """Raise DoctorError for a `when:` mapping with an unknown key, or a value that does not fit its key."""
    for leaf in parse_conditions(when).leaves():
        _ = leaf.meaning


def _fact_leaf(key: str, wanted: Any) -> Leaf:
    """Return the condition on one fact; rules share most of them, so each is made once."""
    if isinstance(wanted, (str, bool, int, float)):
        return _shared_leaf(key, wanted)
    if isinstance(wanted, list) and all(isinstance(item, str) for item in wanted):
        return _shared_leaf(key, tuple(wanted))
    return Leaf(key, partial(_meaning, key, wanted))


@lru_cache(maxsize=16384, typed=True)
def _shared_leaf(key: str, wanted: str | float | tuple[str, ...]) -> Leaf:
    return Leaf(key, partial(_meaning, key, list(wanted) if isinstance(wanted, tuple) else wanted))


def _meaning(key: str, wanted: Any) -> Meaning:
    kind = term(key).kind
    if wanted is None or isinstance(wanted, dict) or wanted == []:
        raise DoctorError(f"`{key}`: needs a value, a range or a list of values")
    if isinstance(wanted, list) and kind != WINDOW:
        return _list_meaning(key, kind, [str(item) for item in wanted])
    text = str(wanted).strip() if not isinstance(wanted, (bool, list)) else str(wanted).lower()
    if text == PRESENT:
        return Meaning(PRESENT, ABSENT, partial(ne, ABSENT))
    if text == ABSENT:
        return Meaning(ABSENT, PRESENT, partial(eq, ABSENT))
    clauses = tuple(split_clauses(text))
    if not clauses:
        literal = parse(key, wanted)
        if kind in (VERSION, SM):
            return _range_meaning(key, kind, (("==", str(literal)),), str(literal))
        return Meaning(text, f"not {text}", partial(eq, literal))
    return _range_meaning(key, kind, clauses, text)


def _list_meaning(key: str, kind: str, items: list[str]) -> Meaning:
    text = ", ".join(items)
    options = frozenset(parse(key, item) for item in items)
    if kind != VERSION:
        return Meaning(f"one of {text}", f"none of {text}", options.__contains__)

    def is_one(value: Any) -> bool | None:  # 2.6 is 2.6.0, and 2.6.0+cu124 is one too
        if value == ABSENT or value in options:
            return value in options
        verdicts = [clause_holds("==", option, value) for option in options if option != ABSENT]
        return True if True in verdicts else None if None in verdicts else False

    return Meaning(f"one of {text}", f"none of {text}", _Remembered(is_one).__getitem__)


def _range_meaning(key: str, kind: str, clauses: tuple[tuple[str, str], ...], text: str) -> Meaning:
    needs = _OPPOSITE[clauses[0][0]] + clauses[0][1] if len(clauses) == 1 and clauses[0][0] != "~=" else f"not {text}"
    for operator, bound in clauses:
        if bound == ABSENT and (kind in (VERSION, SM) or operator not in ("==", "!=")):
            raise DoctorError(f"`{key}`: `{text}` compares with {ABSENT}", f"write `{ABSENT}` or `{PRESENT}` alone")
    if kind in (VERSION, SM):
        clauses = tuple((operator, _version_bound(key, kind, operator, bound)) for operator, bound in clauses)

        def in_range(value: Any) -> bool | None:
            return False if value == ABSENT else range_holds(clauses, value)

        return Meaning(text, needs, _Remembered(in_range).__getitem__)
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
        return all([holds(value, bound) for holds, bound in bounds])  # few: a generator costs more than all of them

    return Meaning(text, needs, compare)


def _version_bound(key: str, kind: str, operator: str, bound: str) -> str:
    """The bound in canonical form, fit for its operator under PEP 440."""
    plain = bound.removesuffix(".*")
    version = parse_version(canonical := str(parse(key, plain)))
    if plain != bound and (operator not in ("==", "!=") or kind == SM or plain != version.base_version):
        raise DoctorError(f"`{key}`: `{operator}{bound}`: only == and != take `.*`, after plain numbers")
    if version.local is not None and operator not in ("==", "!="):
        raise DoctorError(f"`{key}`: `{operator}{bound}`: only == and != take a local label such as +{version.local}")
    if operator == "~=" and len(version.release) < 2:
        raise DoctorError(f"`{key}`: `{operator}{bound}` needs two numbers at least, as ~=2.1")
    return canonical + bound[len(plain) :]


def observation(key: str, wanted: Any) -> Leaf:
    """Return the condition on one value that a kernel observed; its kind is that of the value.

    A range (`">0.01"`) compares numbers and is unknown for anything else. A not-a-number is beyond every upper bound.
    A literal equals a value with the same text, and a list that contains it. DoctorError for `~=`.
    """
    meaning = _observed_meaning(key, wanted)
    return Leaf(key, lambda: meaning)


def _observed_meaning(key: str, wanted: Any) -> Meaning:
    if isinstance(wanted, (list, tuple)):
        options = list(wanted)
        text = ", ".join(map(str, options))
        return Meaning(f"one of {text}", f"none of {text}", lambda value: any(_same(value, item) for item in options))
    text = str(wanted).lower() if isinstance(wanted, bool) else str(wanted)
    clauses = split_clauses(text)
    if not clauses:
        return Meaning(text, f"not {text}", lambda value: _same(value, wanted))
    if any(operator not in _COMPARE for operator, _ in clauses):
        raise DoctorError(f"`{key}`: `{text}`: only >=, <=, ==, !=, > and < compare what a kernel observed")
    try:
        bounds = [(operator, float(bound)) for operator, bound in clauses]
    except ValueError:
        raise DoctorError(f"`{key}`: `{text}` does not compare with a number") from None

    def compare(value: Any) -> bool | None:
        try:
            number = float(value)  # JSON has no infinity: the protocol sends `inf` and `nan` as text
        except (TypeError, ValueError):
            return None
        if number != number:
            return all(operator in (">", ">=", "!=") for operator, _ in bounds)
        return all(_COMPARE[operator](number, bound) for operator, bound in bounds)

    return Meaning(text, f"not {text}", compare)


def _same(value: Any, wanted: Any) -> bool:
    """Equal as a YAML author means it; a list equals what it contains."""
    if isinstance(value, (list, tuple)):
        return any(_same(item, wanted) for item in value)
    return str(value).lower() == str(wanted).lower()


class Observations:
    """What a kernel observed, as facts by dotted name (`errors.out.rel`)."""

    def __init__(self, observed: Mapping[str, Any]) -> None:
        self._observed = observed

    def look_up(self, key: str) -> Fact:
        """Return the observation; its value is None where the kernel reported none."""
        return Fact(key, _dotted(self._observed, key), "kernel")


def _dotted(observed: Any, key: str) -> Any:
    """Return the value under a dotted name; a name that contains dots itself (`sdpa.flash`) is found too."""
    if not isinstance(observed, Mapping):
        return None
    if key in observed:
        return observed[key]
    parts = key.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        head = ".".join(parts[:cut])
        if head in observed:
            return _dotted(observed[head], ".".join(parts[cut:]))
    return None
