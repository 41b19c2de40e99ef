"""What is said of a judged rule: its message with the values filled in, and the facts it lacks."""

from __future__ import annotations

import re
from typing import Any

from packaging.version import InvalidVersion

from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT
from doctor.util.units import human_bytes

from .resolver import FactResolver
from .rule import Rule

PLACEHOLDER = re.compile(r"\{([a-z0-9][A-Za-z0-9._-]*)\}")
_GROUP = re.compile(r" \(([^()]*\{[^()]*)\)")
#: With the unit that a message may write after a number of bytes: sizes bring their own.
_WITH_UNIT = re.compile(rf"{PLACEHOLDER.pattern}( bytes\b)?")


def missing_keys(rule: Rule, known: FactResolver) -> tuple[str, ...]:
    """The missing facts, of those a user can give, that leave the rule undetermined."""
    keys: dict[str, None] = {}
    for key in rule.when.open_keys(known):
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
    stated = rule.body.get("examined_to")
    if not stated:
        return ""
    later = [f"{name} {newest}" for name, newest in stated.items() if _is_later(known.value(f"{name}.version"), newest)]
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

    def known_items(match: re.Match[str]) -> str:
        items = match[1].split(", ")
        kept = [
            item for item in items if all(known.look_up(key).value is not None for key in PLACEHOLDER.findall(item))
        ]
        if not any(PLACEHOLDER.search(item) for item in kept):
            return ""
        found = "found " if items[0].startswith("found ") and not kept[0].startswith("found ") else ""
        return f" ({found}{', '.join(kept)})"

    def replace(match: re.Match[str]) -> str:
        value = known.look_up(match[1]).value
        if value is None:
            return "(unknown)"
        if match[1].endswith("_bytes") and isinstance(value, (int, float)) and not isinstance(value, bool):
            return human_bytes(int(value))
        return _text_of(value, match[1]) + (match[2] or "")

    return _WITH_UNIT.sub(replace, _GROUP.sub(known_items, message)) if "{" in message else message


def _text_of(value: Any, key: str) -> str:
    if value == ABSENT and key.endswith(".version"):
        return "not installed"
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
