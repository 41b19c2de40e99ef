"""The registry of derived facts: what follows from other facts by arithmetic that YAML cannot express.

A derivation is a pure function from values to a value. Versions and limits belong in rules; a derivation only
rearranges what is known (`workload.head_dims_equal`), so that the condition language needs no further operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import Any, NamedTuple

from doctor.facts.kinds import BOOLEAN, FactKind
from doctor.facts.vocabulary import TERMS, Term, declare
from doctor.model import ABSENT


class Derivation(NamedTuple):
    """How one key follows from others."""

    key: str
    needs: tuple[str, ...]  # all must be known, else the derived fact is unknown
    uses: tuple[str, ...]  # may be unknown: passed as None
    compute: Callable[..., Any]  # values of needs, then of uses -> value; None = unknown


DERIVATIONS: dict[str, Derivation] = {}
_JOB = "workload."

#: Facts that some packages have alike: name -> what registers them for one package. Library files say which it has.
TEMPLATES: dict[str, Callable[[str], None]] = {}
_DECLARED: set[tuple[str, str]] = set()


def of_packages(name: str) -> Callable[[Callable[[str], None]], Callable[[str], None]]:
    """Register the decorated function, which registers facts of one package, as a template."""

    def register(function: Callable[[str], None]) -> Callable[[str], None]:
        TEMPLATES[name] = function
        return function

    return register


def declare_facts_of(package: str, templates: Iterable[str]) -> None:
    """Register the facts that a library file says this package has; a second time changes nothing."""
    for name in templates:
        if (package, name) not in _DECLARED:
            _DECLARED.add((package, name))
            TEMPLATES[name](package)


def derived(
    key: str, kind: FactKind, meaning: str, *, needs: tuple[str, ...] = (), uses: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the derivation of `key` and declare the key.

    Values are in canonical form (see `vocabulary`); `absent` is the text `ABSENT`. A key of the vocabulary is derived
    only where it is not given.
    """

    def register(compute: Callable[..., Any]) -> Callable[..., Any]:
        if key not in TERMS:
            declare(Term(key, kind, meaning, derived=True))
        DERIVATIONS[key] = Derivation(key, needs, uses, compute)
        return compute

    return register


@cache
def follows_from_job(key: str) -> bool:
    """Return whether a fact outside the workload is computed from words of the workload."""
    derivation = DERIVATIONS.get(key)
    if derivation is None or key.startswith(_JOB):
        return False
    sources = (*derivation.needs, *derivation.uses)
    return any(source.startswith(_JOB) or follows_from_job(source) for source in sources)


def shape(
    key: str, kind: FactKind, meaning: str, *, needs: tuple[str, ...], uses: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register like `derived`, for arithmetic: where a size or release is `absent`, the derived fact is unknown."""

    def register(compute: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(compute)
        def guarded(*values: Any) -> Any:
            return None if ABSENT in values[: len(needs)] else compute(*values)

        return derived(key, kind, meaning, needs=needs, uses=uses)(guarded)

    return register


def computed(key: str, kind: FactKind, meaning: str, function: Callable[..., Any], *needs: str) -> None:
    """Register `function` of the needed sizes as the derivation of `key`."""
    shape(key, kind, meaning, needs=needs)(function)


def multiple_of(key: str, meaning: str, number: int, *needs: str) -> None:
    """Register the fact that every needed size is a multiple of `number`."""
    computed(key, BOOLEAN, meaning, lambda *sizes: all(size % number == 0 for size in sizes), *needs)


def alias(key: str, kind: FactKind, meaning: str, of: str) -> None:
    """Register `key` as having the value of another key."""
    derived(key, kind, meaning, needs=(of,))(lambda value: value)
