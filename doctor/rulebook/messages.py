"""What is said of a judged rule: its message with the values filled in, and the facts it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from packaging.version import InvalidVersion

from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT
from doctor.util.patterns import pattern
from doctor.util.units import human_bytes

from .conditions import All
from .resolver import FactResolver
from .rule import Rule

PLACEHOLDER = pattern(r"\{([a-z0-9][A-Za-z0-9._-]*)\}")
_GROUP = pattern(r" \(([^()]*\{[^()]*)\)")
#: With the unit that a message may write after a number of bytes: sizes bring their own.
_WITH_UNIT = pattern(rf"{PLACEHOLDER.pattern}( bytes\b)?")


def missing_keys(rule: Rule, known: FactResolver) -> tuple[str, ...]:
    """The missing facts, of those a user can give, that leave the rule undetermined."""
    keys: dict[str, None] = {}
    when = rule.when  # it is not false, so that no part is
    for part in when.parts if isinstance(when, All) else (when,):
        for key in part.open_keys(known):
            keys.update(dict.fromkeys(known.missing(key)))
    if rule.fails_at_run and not keys:
        keys.update(dict.fromkeys(known.missing(f"{rule.fails_at_run[0].split('.')[0]}.selected")))
    return tuple(sorted(keys))


def message_of(rule: Rule, known: FactResolver) -> str:
    """Return the message of a rule, which names the newest release that was examined where a later one is found."""
    later = unexamined(rule, known)
    return interpolate(rule.message, known) + (f" ({later})" if later else "")


def unexamined(rule: Rule, known: FactResolver) -> str:
    """Say to which release the rule's claim was examined, where a later one is found; empty otherwise."""
    if not rule.examined_to:
        return ""
    stated = rule.examined_to.items()
    later = [f"{name} {newest}" for name, newest in stated if _is_later(known.value(f"{name}.version"), newest)]
    return f"not examined after {', '.join(later)}" if later else ""


def _is_later(version: Any, examined: str) -> bool:
    """Whether a version is behind the one that was examined; a build of that one is not (0.33.0+cu129)."""
    if not isinstance(version, str) or version == ABSENT:
        return False
    try:
        return parse_version(parse_version(version).public) > parse_version(examined)
    except InvalidVersion:
        return False


def interpolate(message: str, known: FactResolver) -> str:
    """Replace `{fact.key}` by the value, bytes by a size such as `80 GiB`, an unknown one by `(unknown)`.

    In parentheses, as in `sm 9.0 ({gpu.name})` or `(found triton 3.3.0, triton-windows {...})`, an item of the list
    whose value is unknown is left out.
    """

    if "{" not in message:
        return message
    return "".join([piece if isinstance(piece, str) else piece.filled(known) for piece in _pieces(message)])


class _Value(NamedTuple):
    """One placeholder."""

    key: str
    unit: str  # " bytes" after it, which a size brings itself

    def filled(self, known: FactResolver) -> str:
        value = known.look_up(self.key).value
        if value is None:
            return "(unknown)"
        if self.key.endswith("_bytes") and isinstance(value, (int, float)) and not isinstance(value, bool):
            return human_bytes(int(value))
        return _text_of(value, self.key) + self.unit


class _Item(NamedTuple):
    """One item of a list in parentheses."""

    keys: tuple[str, ...]
    pieces: tuple[str | _Value, ...]
    has_found: bool  # it begins with this word

    def filled(self, known: FactResolver) -> str:
        return "".join([piece if isinstance(piece, str) else piece.filled(known) for piece in self.pieces])


class _Items(NamedTuple):
    """A list in parentheses, of which only items with known values are shown."""

    items: tuple[_Item, ...]

    def filled(self, known: FactResolver) -> str:
        kept = [item for item in self.items if all([known.look_up(key).value is not None for key in item.keys])]
        if not any(item.keys for item in kept):
            return ""
        found = "found " if self.items[0].has_found and not kept[0].has_found else ""
        return f" ({found}{', '.join([item.filled(known) for item in kept])})"


@lru_cache(maxsize=8192)
def _pieces(message: str) -> tuple[str | _Value | _Items, ...]:
    """Return what a message consists of: the same for all facts."""
    pieces: list[str | _Value | _Items] = []
    done = 0
    for group in _GROUP.finditer(message):
        pieces += _values(message[done : group.start()])
        pieces.append(_Items(tuple(_item(text) for text in group[1].split(", "))))
        done = group.end()
    return (*pieces, *_values(message[done:]))


def _item(text: str) -> _Item:
    return _Item(tuple(PLACEHOLDER.findall(text)), tuple(_values(text)), text.startswith("found "))


def _values(text: str) -> Iterator[str | _Value]:
    done = 0
    for found in _WITH_UNIT.finditer(text):
        yield text[done : found.start()]
        yield _Value(found[1], found[2] or "")
        done = found.end()
    yield text[done:]


def _text_of(value: Any, key: str) -> str:
    if value == ABSENT and key.endswith(".version"):
        return "not installed"
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
