"""Derived facts: what follows from other facts by arithmetic that YAML cannot say.

A derivation is a pure function from values to a value. Versions and limits belong in rules;
a derivation only rearranges what is known (`workload.head_dims_equal`), so that the condition
language needs no second kind of operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..records import dataclass
from ..vocabulary import Term, declare


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
        from ..vocabulary import TERMS

        if key not in TERMS:
            declare(Term(key, kind, meaning, derived=True))
        DERIVATIONS[key] = Derivation(key, needs, uses, compute)
        return compute

    return register


from . import (  # noqa: E402  (registers their derivations)
    environment,  # noqa: F401
    serving,  # noqa: F401
    te,  # noqa: F401
    te_bias,  # noqa: F401
    te_dims,  # noqa: F401
    te_steps,  # noqa: F401
    torch,  # noqa: F401
    transformers,  # noqa: F401
    vllm,  # noqa: F401
    vllm_flash_attn,  # noqa: F401
    workload,  # noqa: F401
)
