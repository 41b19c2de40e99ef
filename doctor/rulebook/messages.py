"""What is said of a judged rule: its message with the values filled in, and the facts it lacks."""

from __future__ import annotations

import re
from typing import Any

from doctor.model import ABSENT
from doctor.util.units import human_bytes

from .resolver import FactResolver
from .rule import Rule

PLACEHOLDER = re.compile(r"\{([a-z0-9][A-Za-z0-9._-]*)\}")
#: With the unit that a message may write after a number of bytes: sizes bring their own.
_WITH_UNIT = re.compile(rf"{PLACEHOLDER.pattern}( bytes\b)?")


def missing_keys(rule: Rule, known: FactResolver) -> tuple[str, ...]:
    """The missing facts, of those a user can give, that leave the rule undetermined."""
    keys: dict[str, None] = {}
    for key in rule.when.open_keys(known):
        keys.update(dict.fromkeys(known.missing(key)))
    if rule.fails_at_run and not keys:
        keys[f"{rule.fails_at_run[0].split('.')[0]}.selected"] = None
    return tuple(sorted(keys))


def interpolate(message: str, known: FactResolver) -> str:
    """Replace `{fact.key}` by the value, bytes by a size such as `80 GiB`, an unknown one by `(unknown)`.

    An unknown value in parentheses, as in `sm 9.0 ({gpu.name})`, is left out with them.
    """

    def replace(match: re.Match[str]) -> str:
        value = known.look_up(match[1]).value
        if value is None:
            return "(unknown)"
        if match[1].endswith("_bytes") and isinstance(value, (int, float)) and not isinstance(value, bool):
            return human_bytes(int(value))
        return _text_of(value, match[1]) + (match[2] or "")

    return _WITH_UNIT.sub(replace, message).replace(" ((unknown))", "")


def _text_of(value: Any, key: str) -> str:
    if value == ABSENT and key.endswith(".version"):
        return "not installed"
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
