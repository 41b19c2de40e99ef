"""A chart of lines on two logarithmic axes: how each of several values grows with a size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 320, 64, 190, 12, 40
_LABEL_ROW = 13
_MOST_TICKS = 7


@dataclass(frozen=True)
class Line:
    """One curve, in units of the picture."""

    name: str
    points: str
    dots: tuple[tuple[float, float, str], ...]
    label_y: float
    number: int  # of its color


@dataclass(frozen=True)
class LineChart:
    """What the page draws, in units of a picture of `width` x `height`."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    lines: tuple[Line, ...]
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]
    summary: str


def line_chart(
    curves: Mapping[str, Mapping[int, float]], summary: str, name_x: Callable[[int], str], unit: str
) -> LineChart | None:
    """Return the chart of curves name -> {x: value}; None where there are not two sizes to connect."""
    sizes = sorted({x for curve in curves.values() for x in curve})
    values = [value for curve in curves.values() for value in curve.values() if value > 0]
    if len(sizes) < 2 or not values:
        return None
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1

    def x(size: float) -> float:
        share = math.log2(size / sizes[0]) / math.log2(sizes[-1] / sizes[0])
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        share = (math.log10(value) - low) / (high - low)
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)

    order = sorted((name for name in curves if curves[name]), key=lambda name: -curves[name][max(curves[name])])
    lines, below = [], _TOP - _LABEL_ROW + 0.0
    for number, name in enumerate(order):
        points = sorted((size, value) for size, value in curves[name].items() if value > 0)
        below = max(below + _LABEL_ROW, y(points[-1][1]) + 4)  # labels do not cover each other
        dots = tuple((x(size), y(value), f"{name}: {value:.3g} {unit} at {name_x(size)}") for size, value in points)
        drawn = " ".join(f"{at_x},{at_y}" for at_x, at_y, _ in dots)
        lines.append(Line(name, drawn, dots, round(below, 1), number % 8))
    step = max(1, math.ceil((high - low) / _MOST_TICKS))
    ticks_y = tuple(
        (y(10.0**power), f"{10.0**power:g} {unit}") for power in range(math.ceil(low), math.floor(high) + 1, step)
    )
    height = max(_HEIGHT, round(below) + _LABEL_ROW)
    return LineChart(
        _WIDTH, height, _LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM, tuple(lines),
        tuple((x(size), name_x(size)) for size in sizes), ticks_y, summary,
    )  # fmt: skip
