"""How much room a renderer has, and what it may show."""

from __future__ import annotations

from typing import NamedTuple


class Style(NamedTuple):
    """How much room there is, and whether colour is wanted."""

    color: bool = False
    width: int = 100
    verbose: bool = False  # all evidence, sources, unavailable backends, skipped checks by name
    quiet: bool = False  # errors only
