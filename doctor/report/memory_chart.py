"""Chart of attention's memory against the sequence length: fused kernels, plain math, and what the GPU has."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from doctor.model import Facts
from doctor.util.units import human_bytes

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}
_WIDTH, _HEIGHT = 640, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 40  # margins
_OCTAVES = 3  # on each side of the job's sequence length
_LONGEST = 1 << 40  # tokens; keeps the numbers printable


@dataclass(frozen=True)
class Curve:
    """Memory of one kind of backend; `points` are (x, y) in the picture, `at_job` the bytes at the job's length."""

    name: str
    kind: str
    points: str
    at_job: str


@dataclass(frozen=True)
class MemoryChart:
    """What the page draws, in units of a picture of `width` x `height`."""

    width: int
    height: int
    left: int
    right: int
    bottom: int
    curves: tuple[Curve, ...]
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]
    job_x: float
    job: str
    gpu_y: float | None
    gpu: str
    summary: str


def memory_chart(facts: Facts) -> MemoryChart | None:
    """Return the chart of one layer and one forward (with backward in training); None where sizes are unknown.

    Plain math holds scores and probabilities in float32, 8 bytes per score and 16 in training (measured on an H200, as
    the fact `workload.sdpa_math_bytes`). A fused kernel holds q, k, v, the output and a float32 logsumexp per query, in
    training their gradients too.
    """
    tokens, heads, width_qk = (_size(facts, key) for key in ("seq_len_q", "num_heads", "head_dim_qk"))
    element = _DTYPE_BYTES.get(str(facts.value("workload.dtype")))
    if tokens is None or heads is None or width_qk is None or element is None or tokens > _LONGEST:
        return None
    batch = _size(facts, "batch_size") or 1
    kv_heads = _size(facts, "num_kv_heads") or heads
    width_v = _size(facts, "head_dim_v") or width_qk
    passes = 1 if facts.value("workload.training") is False else 2

    def fused(length: float) -> float:
        tensors = batch * length * (heads + kv_heads) * (width_qk + width_v) * element
        return passes * tensors + 4 * batch * heads * length

    def plain(length: float) -> float:
        return 8 * passes * batch * heads * length * length + fused(length)

    memory = facts.value("gpu.memory_bytes")
    return _drawn(tokens, fused, plain, memory if isinstance(memory, int) and memory > 0 else None, batch)


def _drawn(
    tokens: int, fused: Callable[[float], float], plain: Callable[[float], float], memory: int | None, batch: int
) -> MemoryChart:
    lengths = [tokens * 2.0**step for step in range(-_OCTAVES, _OCTAVES + 1)]
    values = [fused(lengths[0]), plain(lengths[-1]), *([memory] if memory else [])]
    low, high = math.log2(min(values)) - 0.5, math.log2(max(values)) + 0.5

    def x(length: float) -> float:
        share = math.log2(length / lengths[0]) / (2 * _OCTAVES)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(size: float) -> float:
        return round(_HEIGHT - _BOTTOM - (math.log2(size) - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM), 1)

    def curve(name: str, kind: str, sizes: Callable[[float], float]) -> Curve:
        points = " ".join(f"{x(length)},{y(sizes(length))}" for length in lengths)
        return Curve(name, kind, points, human_bytes(round(sizes(tokens))))

    curves = (
        curve("plain math, eager: the whole score matrix", "plain", plain),
        curve("fused kernels: flash, memory-efficient, cuDNN", "fused", fused),
    )
    step = max(1, round((high - low) / 5))
    ticks = range(math.ceil(low), math.floor(high) + 1, step)
    gpu = human_bytes(memory) if memory else ""
    return MemoryChart(
        _WIDTH, _HEIGHT, _LEFT, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, curves,
        tuple((x(length), _tokens(length)) for length in lengths),
        tuple((y(2.0**power), human_bytes(2**power)) for power in ticks if power >= 0),
        x(tokens), f"{tokens} tokens", y(memory) if memory else None, gpu,
        f"At {tokens} tokens and a batch of {batch}, one layer needs {curves[1].at_job} with a fused kernel and "
        f"{curves[0].at_job} with plain math" + (f"; the GPU has {gpu}." if gpu else "."),
    )  # fmt: skip


def _size(facts: Facts, key: str) -> int | None:
    value = facts.value(f"workload.{key}")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _tokens(length: float) -> str:
    return f"{length / 1024:g}k" if length >= 1024 else f"{length:g}"
