"""Derivations that calculate: what `derived` registers, guarded against sizes that are not there."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from doctor.model import ABSENT

from .registry import derived


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
