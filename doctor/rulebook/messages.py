"""What is said of a judged rule: its message with the values filled in, and the facts it lacks."""

from __future__ import annotations

import re

from doctor.model import ABSENT

from .resolver import FactResolver
from .rule import Rule

PLACEHOLDER = re.compile(r"\{([a-z0-9][A-Za-z0-9._-]*)\}")


def missing_keys(rule: Rule, known: FactResolver) -> tuple[str, ...]:
    """The given-able facts for want of which the rule is undetermined."""
    keys: dict[str, None] = {}
    for evidence in rule.when.evidence(known):
        if evidence.holds is None:
            keys.update(dict.fromkeys(known.missing(evidence.key)))
    if rule.fails_at_run and not keys:
        keys[f"{rule.fails_at_run[0].split('.')[0]}.selected"] = None
    return tuple(sorted(keys))


def interpolate(message: str, known: FactResolver) -> str:
    """`{fact.key}` replaced by the value; an unknown one reads `(unknown)`."""

    def replace(match: re.Match[str]) -> str:
        value = known.look_up(match[1]).value
        if value is None:
            return "(unknown)"
        if value == ABSENT and match[1].endswith(".version"):
            return "not installed"
        if isinstance(value, bool):
            return "true" if value else "false"
        return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    return PLACEHOLDER.sub(replace, message)
