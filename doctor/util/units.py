"""Numbers with units that people read."""

from __future__ import annotations

_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def human_bytes(size: int) -> str:
    """Return a size in bytes as `80 GiB`, `1.5 MiB`."""
    for step, unit in _STEPS:
        if abs(size) >= step:
            number = f"{size / step:.1f}".removesuffix(".0")
            return f"{number} {unit}"
    return f"{size} bytes"
