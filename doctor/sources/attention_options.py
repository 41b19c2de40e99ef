"""Options that bear on attention by their name, and that no reader understands: they are named, and not dropped.

`rules/index/attention_options.json` has the options of trainers and servers from their own sources: default and choices
of each, and the first and last release that was read with it. `without_effect` marks those that change no kernel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from doctor.model import Fact
from doctor.util.patterns import pattern
from doctor.util.resources import rules_dir

KEY = "workload.not_understood"
#: Words of attention in the name of an option.
ATTENTION = pattern(
    r"(?:^|[_.])(?:\w*attn\w*|\w*attention\w*|sdpa?|xformers|flash\w*|flex|sage_?att\w*|flashinfer\w*|fa[234]|mla)(?=[_.]|$)"
)
_OFF = ("", "false", "none", "null", "no", "off", "auto", "0")
_DEEPEST = 4  # tables inside tables


def not_understood(
    given: Mapping[str, Any], understood: Iterable[str], place: str, values: Iterable[Any] = ()
) -> list[Fact]:
    """Return the fact that names the options of a job that bear on attention and of which nothing was read.

    `understood`: the options that became words of the job, and `values` those words, as `attn_implementation: xformers`
    says who computes attention. An option at its default, or switched off, changes nothing.
    """
    known = " ".join(str(name).replace("-", "_") for name in understood)
    said = {str(value) for value in values if isinstance(value, str)}
    names = [
        f"{name}={value}"
        for name, value in _flat(given, "", 0)
        if ATTENTION.search(name) and not (_is_off(value) or value in said)
        if not (_is_in(name, known) or _is_usual(name, value))
    ]
    return unread(names, place)


def unread(names: Iterable[str], place: str) -> list[Fact]:
    """Return the fact that these parts of a job are not understood."""
    kept = tuple(names)
    return [Fact(KEY, kept, place)] if kept else []


def joined(facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts of several places as one."""
    found = [fact for fact in facts if fact.value]
    if len(found) < 2:
        return found
    names = dict.fromkeys(name for fact in found for name in fact.value)
    return [Fact(KEY, tuple(names), ", ".join(dict.fromkeys(fact.source for fact in found)))]


def _flat(given: Mapping[str, Any], start: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in given.items():
        name = f"{start}{str(key).lstrip('-').replace('-', '_')}"
        if isinstance(value, Mapping) and depth < _DEEPEST:
            yield from _flat(value, f"{name}.", depth + 1)
        elif isinstance(value, (str, int, float, bool)):
            yield name, value


def _is_off(value: Any) -> bool:
    return str(value).lower() in _OFF


def _is_in(name: str, known: str) -> bool:
    return re.search(rf"(?:^|[^\w.]){re.escape(name)}(?:$|[^\w.])", known) is not None


def _is_usual(name: str, value: Any) -> bool:
    """Return whether the option changes no kernel: at its default in some library, or of no effect in all."""
    last = name.rpartition(".")[2]
    rows = [table[key] for table in _table().values() for key in (name, last) if key in table]
    at_default = any(str(row.get("default")).lower() == str(value).lower() for row in rows)
    return at_default or (bool(rows) and all(row.get("without_effect") for row in rows))


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    found: dict[str, Any] = json.loads((rules_dir() / "index" / "attention_options.json").read_text("utf-8"))
    return found
