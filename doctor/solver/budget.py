"""Bounds of the search for fixes, and the events by which it can be traced.

An exhausted bound changes the answer. `SearchBudget.trace` reports each one, and what was tried before it.
"""

# No postponed annotations: a named tuple would compile each of them again, at every start.

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

LOGGER = logging.getLogger("doctor.solver")


class CandidateTried(NamedTuple):
    """A set of changes that was evaluated by the rulebook."""

    packages: Mapping[str, str]
    env: Mapping[str, str]
    firing: frozenset[str] | None  # error rules left; None: a library would lose its last backend

    def __str__(self) -> str:
        left = "leaves no backend" if self.firing is None else f"leaves {sorted(self.firing) or 'no error'}"
        return f"tried {dict(self.packages)} {dict(self.env)}: {left}"


class RemedyRejected(NamedTuple):
    """A remedy that a rule names and that cannot be applied."""

    rule: str
    reason: str

    def __str__(self) -> str:
        return f"rejected a remedy of {self.rule}: {self.reason}"


class BudgetExhausted(NamedTuple):
    """A bound that ended a search."""

    search: str
    bound: str

    def __str__(self) -> str:
        return f"{self.search}: `{self.bound}` is exhausted"


Event = CandidateTried | RemedyRejected | BudgetExhausted
Trace = Callable[[Event], None]


def log_event(event: Event) -> None:
    """Write an event to the log of `doctor.solver`, at level DEBUG."""
    LOGGER.debug("%s", event)


class Effort(NamedTuple):
    """Bounds of one search among all releases."""

    packages: int  # changed
    evaluations: int  # of the rulebook
    nodes: int  # of the search tree


class SearchBudget(NamedTuple):
    """All bounds of one call of `solve`. The measured worst cases stay an order of magnitude below most of them."""

    fixes: int = 3  # offered
    warnings_searched: int = 3  # warnings for which all releases are searched
    suspicious_size: int = 4  # changed packages from which on a smaller fix is always searched

    # Remedies that rules name (repair.py)
    evaluations: int = 240
    nodes: int = 15_000  # of the search for sets of releases
    versions: int = 24  # sets of releases tried per plan
    depth: int = 4  # findings fixed one after the other
    deepened: int = 3  # partial outcomes that are continued

    # Sets of releases that fit together (resolve.py)
    set_nodes: int = 6000
    sets: int = 400
    extra_packages: int = 6  # that change because of a requirement
    dead_end_nodes: int = 8  # of a dead end from which on releases of its class are skipped

    # All releases (search.py)
    settings: int = 3  # variables and settings changed
    full: Effort = Effort(packages=6, evaluations=260, nodes=4000)
    smaller: Effort = Effort(packages=6, evaluations=250, nodes=2500)  # where a complete fix is known
    continued: Effort = Effort(packages=2, evaluations=80, nodes=800)  # from a fix that leaves errors
    from_opening: Effort = Effort(packages=4, evaluations=80, nodes=800)  # from a change that fixes the first error
    warning: Effort = Effort(packages=1, evaluations=60, nodes=200)
    backend: Effort = Effort(packages=2, evaluations=80, nodes=800)  # to keep an attention backend that a fix disables
    opening_cases: int = 90
    openings: int = 12

    # Infeasibility (infeasibility.py, infeasibility_text.py)
    cases: int = 130  # evaluated in full for one backend
    all_cases: int = 300  # for all errors together
    recent_limits: int = 4  # tried on a case before it is evaluated in full
    sentences: int = 5

    trace: Trace = log_event


@dataclass
class Allowance:
    """What is left of one bound, shared by the searches that spend it; reports once when it is exhausted."""

    search: str
    bound: str
    left: int
    trace: Trace = log_event
    _reported: bool = False

    def spend(self, amount: int = 1) -> None:
        """Count down; the first call that reaches zero is reported."""
        self.left -= amount
        if self.left <= 0 and not self._reported:
            self._reported = True
            self.trace(BudgetExhausted(self.search, self.bound))

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0
