"""Derived facts: what follows from other facts by arithmetic that YAML cannot say.

A derivation is a pure function from values to a value. Versions and limits belong in rules;
a derivation only rearranges what is known (`workload.head_dims_equal`), so that the condition
language needs no second kind of operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from doctor.facts.vocabulary import TERMS, Term, declare
from doctor.model import ABSENT


@dataclass(frozen=True)
class Derivation:
    """How one key follows from others."""

    key: str
    needs: tuple[str, ...]  # all must be known, else the derived fact is unknown
    uses: tuple[str, ...]  # may be unknown: passed as None
    compute: Callable[..., Any]  # values of needs, then of uses -> value; None = could not tell


DERIVATIONS: dict[str, Derivation] = {}


def derived(
    key: str, kind: str, meaning: str, *, needs: tuple[str, ...] = (), uses: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the derivation of `key` and declare the key.

    The values come in canonical form (see `vocabulary`); `absent` is the text `ABSENT`. A key that is in
    the vocabulary already is then derived where it is not given.
    """

    def register(compute: Callable[..., Any]) -> Callable[..., Any]:
        if key not in TERMS:
            declare(Term(key, kind, meaning, derived=True))
        DERIVATIONS[key] = Derivation(key, needs, uses, compute)
        return compute

    return register


def shape(
    key: str, kind: str, meaning: str, *, needs: tuple[str, ...], uses: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`derived`, for arithmetic: a size that is `absent` leaves the derived fact unknown."""

    def register(compute: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(compute)
        def guarded(*values: Any) -> Any:
            return None if ABSENT in values[: len(needs)] else compute(*values)

        return derived(key, kind, meaning, needs=needs, uses=uses)(guarded)

    return register
