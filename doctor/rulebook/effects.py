"""The keys of the facts that follow from what a library file says, so that the file need not be read for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .conditions import Condition, written_keys

#: What implies one fact: (version key of a library, {version: {key: value}}) by release, or, for what a whole range of
#: releases does alike, (condition, {key: value}).
Sources = list[tuple["str | Condition", Mapping[str, Any]]]
Implications = Mapping[str, Sources]  # by fact key


class Effects(NamedTuple):
    """The keys of the facts that follow from a library file."""

    released: Sequence[str] = ()  # from its release alone
    conditional: Mapping[str, Sequence[str]] = {}  # key that a condition reads -> keys of what follows

    @property
    def concluded(self) -> frozenset[str]:
        """Return the keys of all that follows from conditions."""
        return frozenset(key for keys in self.conditional.values() for key in keys)


def effects_of(stated: Mapping[str, Any]) -> Effects:
    """Return the keys of what follows from the content of a library file."""
    released = {key for implied in (stated.get("releases") or {}).values() for key in implied}
    conditional: dict[str, set[str]] = {}
    for item in stated.get("implies") or ():
        for key in written_keys(item["when"]):
            conditional.setdefault(key, set()).update(item["facts"])
    ordered = {key: sorted(found) for key, found in sorted(conditional.items())}
    return Effects(sorted(released) if stated.get("distributions") else [], ordered)
