"""Which parts of which packages a job reaches: what its trainer calls, what that calls, and so on.

`calls` in a library.yaml names what the library itself calls: distributions, or parts of them (`trl.trainers`), each
`always`, `maybe`, or under a condition of the job. A rule concerns a job that reaches one of the rule's parts. Where
the trainer is not known, or a way to the part is open, it concerns the job as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from doctor.model import ABSENT

from .conditions import Condition
from .resolver import FactResolver
from .rule import Library, Rule

TRAINER = "workload.trainer"


class Way(NamedTuple):
    """How a job reaches a part: the callers one after the other, the part last; `open` where a condition is unknown."""

    steps: tuple[str, ...]
    open: bool = False


@dataclass(frozen=True)
class CallGraph:
    """What each library calls, by the names of its distributions and parts."""

    libraries: Mapping[str, Library]

    @cached_property
    def calls(self) -> Mapping[str, Mapping[str, Condition | str]]:
        """Return caller -> what it calls -> when."""
        found: dict[str, Mapping[str, Condition | str]] = {}
        for library in self.libraries.values():
            for caller, callees in library.calls.items():
                found.update(dict.fromkeys(library.distributions if caller == library.name else (caller,), callees))
        return found

    @cached_property
    def judged(self) -> frozenset[str]:
        """Return the names that some `calls` mentions: a name that none mentions is never left out."""
        return frozenset((*self.calls, *(callee for callees in self.calls.values() for callee in callees)))

    def ways(self, known: FactResolver) -> Mapping[str, Way] | None:
        """Return each part that the job reaches, with one way to it; None where the trainer is not known."""
        roots = self._roots(known.value(TRAINER))
        if not roots:
            return None
        found: dict[str, Way] = {}
        for open_too in (False, True):  # ways without an open condition first
            waiting = [*found.values(), *(Way((name,)) for name in roots)]
            while waiting:
                way = waiting.pop(0)
                found.setdefault(way.steps[-1], way)
                for callee, when in self.calls.get(way.steps[-1], {}).items():
                    holds = _is_installed(callee, known) and _holds(when, known)
                    if callee not in found and (holds or (open_too and holds is None)):
                        found[callee] = Way((*way.steps, callee), way.open or holds is None)
                        waiting.append(found[callee])
        return found

    def _roots(self, trainer: object) -> tuple[str, ...]:
        """Return the callers that a trainer names: a library with the part of its rules, or a part by its own name."""
        library = self.libraries.get(str(trainer))
        names = (*library.distributions, *library.reach) if library is not None else (str(trainer),)
        return names if any(name in self.calls for name in names) else ()

    def excludes(self, rule: Rule, ways: Mapping[str, Way] | None) -> bool:
        """Return whether the job reaches none of the parts that a rule is about."""
        if ways is None:
            return False
        parts = self.parts_of(rule)
        return bool(parts) and all(part in self.judged and part not in ways for part in parts)

    def way_to(self, rule: Rule, ways: Mapping[str, Way] | None) -> Way | None:
        """Return the way by which a job reaches what a rule is about; None where no way is known."""
        reached = [ways[part] for part in self.parts_of(rule) if part in ways] if ways else []
        return min(reached, key=lambda way: (way.open, len(way.steps)), default=None)

    def parts_of(self, rule: Rule) -> tuple[str, ...]:
        """Return what a rule is about: as it says, else as its library says, else the library's distributions."""
        library = self.libraries.get(rule.library)
        return rule.reach or (library.reach or library.distributions if library is not None else ())


def _is_installed(name: str, known: FactResolver) -> bool:
    """Return whether a distribution may be there; a part of one is there with its library."""
    return "." in name or known.value(f"{name}.version") != ABSENT


def _holds(when: Condition | str, known: FactResolver) -> bool | None:
    """Return whether a call is made; None where that is not known."""
    if isinstance(when, str):
        return True if when == "always" else None
    return when.holds(known)
