"""A chart of bars against a limit: how near each of several values comes to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _LABELS, _VALUES, _ROW, _TOP, _BOTTOM = 640, 250, 48, 20, 8, 26
_LONGEST = 34  # characters of a label
_NEAR = 0.8  # share of the limit from which a bar has another color


@dataclass(frozen=True)
class Bar:
    """One value, in units of the picture."""

    label: str
    value: str
    y: float
    length: float
    near: bool


@dataclass(frozen=True)
class BarChart:
    """What the page draws, in units of a picture of `width` x `height`."""

    width: int
    height: int
    left: int
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]
    limit_x: float
    bottom: float
    summary: str


def bar_chart(values: Sequence[tuple[str, float]], summary: str) -> BarChart | None:
    """Return the chart of values between 0 and their limit of 1; None where there are none."""
    if not values:
        return None
    longest = max(1.0, *(value for _, value in values))
    room = _WIDTH - _LABELS - _VALUES

    def x(value: float) -> float:
        return round(_LABELS + value / longest * room, 1)

    bars = tuple(
        Bar(_short(label), f"{value:.2f}", _TOP + number * _ROW, round(x(value) - _LABELS, 1), value >= _NEAR)
        for number, (label, value) in enumerate(values)
    )
    bottom = _TOP + len(bars) * _ROW
    ticks = tuple((x(share), f"{share:g}") for share in (0.0, 0.25, 0.5, 0.75, 1.0))
    return BarChart(_WIDTH, bottom + _BOTTOM, _LABELS, bars, ticks, x(1.0), bottom, summary)


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST else f"…{label[1 - _LONGEST :]}"
