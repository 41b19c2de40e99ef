"""Merge what several inputs say: a stated precedence decides, and what they state differently is named.

The environment comes from facts in files, then from what is installed, then from what files declare. The job, its
variables and its GPU come from `--set`, then from a script, the command that starts it, a trainer's config, the model,
and facts, in this order.
An assumption replaces nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from doctor.facts.workload import PREFIX
from doctor.model import ABSENT, Fact, Facts
from doctor.sources.attention_options import KEY, joined
from doctor.sources.workload.defaults import lay_over

_OF_JOB = (PREFIX, "env.", "gpu.")
_COMPARED = (".version", "gpu.sm")
MOST_NAMED = 3  # contradictions in one note


class Contradiction(NamedTuple):
    """Two inputs state different values of one key."""

    key: str
    taken: Fact
    left: Fact

    @property
    def text(self) -> str:
        """Return the contradiction as a part of a sentence."""
        name = self.key.removesuffix(".version").removeprefix(PREFIX)
        return f"{name} {_shown(self.taken)} and not {_shown(self.left)}"


def of_job(key: str) -> bool:
    """Return whether a key describes the job, its variables or the GPU it runs on."""
    return key.startswith(_OF_JOB)


def over(base: Facts, more: Facts) -> tuple[Facts, tuple[Contradiction, ...]]:
    """Return the facts with those of a stronger input on top, and what both state differently."""
    found = []
    if KEY in base and KEY in more:
        more = more.with_(*joined((base[KEY], more[KEY])))
    for key, fact in more.items():
        before = base.get(key) if key != KEY else None
        if before is not None and _contradicts(before, fact):
            found.append(Contradiction(key, fact, before))
    return lay_over(base, more), tuple(found)


def under(base: Facts, more: Facts) -> tuple[Facts, tuple[Contradiction, ...]]:
    """Return the facts with what a weaker input adds: keys that are not known yet.

    It adds no package that is absent, and nothing in place of what was found and cannot be read.
    """
    if base.value("distributions.complete") is True:
        more = Facts(fact for key, fact in more.items() if key in base or not key.endswith(".version"))
    known = Facts(fact for fact in base.values() if fact.known or fact.raw is not None)
    merged, _ = over(more, known)
    unknown = (fact for key, fact in base.items() if not fact.known and merged.value(key) is None)
    left = []
    for key, fact in more.items():
        before = base.get(key)
        if before is not None and key.endswith(_COMPARED) and _contradicts(before, fact):
            left.append(Contradiction(key, before, fact))
    return merged.with_(*unknown), tuple(left)


def notes_of(contradictions: Iterable[Contradiction], more: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the contradictions as one note."""
    texts = list(dict.fromkeys((*(item.text for item in contradictions), *more)))
    if not texts:
        return ()
    rest = f"; and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return (f"the inputs differ, taken are: {'; '.join(texts[:MOST_NAMED])}{rest}",)


def _contradicts(one: Fact, other: Fact) -> bool:
    if one.assumed or other.assumed or not (one.known and other.known) or one.value == other.value:
        return False
    if one.key.startswith("env."):
        return ABSENT not in (one.value, other.value)
    return bool(_plain(one.value) != _plain(other.value))


def _plain(value: Any) -> Any:
    """Return a version without the label of its build: a line that pins 2.6.0 admits 2.6.0+cu124."""
    return value.partition("+")[0] if isinstance(value, str) else value


def _shown(fact: Fact) -> str:
    value = "none" if fact.value == ABSENT else fact.value
    return f"{value} ({fact.source})"
