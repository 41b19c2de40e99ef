"""One measured attention call, as every record of speed and memory states it: on one GPU, by one backend, of one shape.

A record is one JSON object, and a file of records is JSON Lines. `kernels/programs/measure.py` measures,
`attn-doctor backends --run` prints, and the prediction without a GPU reads them. Field names are those of the workload
where it has the same word. A value that is unknown, or that does not exist for this call, is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

#: Changes when a field is renamed or gets another meaning; a new field needs no new number.
SCHEMA = 1

#: The parts of `memory`, in bytes. Together with `inputs` they explain the peak of a step.
MEMORY_PARTS: Mapping[str, str] = {
    "inputs": "q, k and v, and in training the incoming gradient; of a decoding job k and v are the KV cache",
    "mask": "a mask or bias that is held as a tensor, or the block mask of flex_attention",
    "output": "the output",
    "saved": "what the forward pass holds for the backward pass, besides inputs and output",
    "forward_workspace": "what the forward pass holds only while it runs: scores, copies of repeated heads",
    "gradients": "the gradients of q, k and v",
    "backward_workspace": "what the backward pass holds only while it runs",
}


#: How many times slower than another backend, or how many times its memory, is worth a warning.
SLOWER, MORE_MEMORY = 1.3, 2.0
#: Two runs of one call in two processes differ by up to this share of its time (0.6 % seen on an H100).
REPEATABLE = 0.01


@dataclass(frozen=True)
class Measurement:
    """One backend on one shape.

    Times are of the GPU (`clock: cuda`) with a cold L2 cache, or of the host where there is no GPU (`clock: host`).
    """

    # where
    gpu: str  # "NVIDIA H100 80GB HBM3"; "cpu" without a GPU
    sm: str | None  # "9.0"; null on a CPU
    torch: str  # "2.11.0+cu130"
    backend: str  # as in `backends`: sdpa.flash, hf.eager, flex.triton, fa.flash2, te.fused …
    library: str | None  # distribution and release of the backend where it is not torch: "flash-attn 2.8.3"
    # what
    dtype: str
    batch_size: int
    num_heads: int
    num_kv_heads: int
    head_dim_qk: int
    head_dim_v: int
    seq_len_q: int
    seq_len_kv: int
    mask: str  # no_mask, causal, causal_bottom_right, padding, padding_causal, arbitrary …
    window: tuple[int, int] | None = None  # (left, right), -1 for unlimited
    bias: str = "no_bias"  # alibi, post_scale_bias …
    softcap: float = 0.0
    dropout: float = 0.0
    packed: bool = False  # several sequences share a row and do not see each other
    training: bool = True  # `ms` is of forward and backward; else of forward alone
    compiled: bool = False  # the call was compiled by torch.compile
    words: Mapping[str, Any] = field(default_factory=dict)  # other words of the job that reached the call
    assumed: Mapping[str, str] = field(default_factory=dict)  # what the job does not say and the call needs
    shrunk: Mapping[str, Any] = field(default_factory=dict)  # word -> [the job's value, what was run]
    # result
    outcome: str = "ran"  # ran, refused, unavailable, failed, crashed, timeout
    reason: str = ""  # why it did not run, in the library's own words
    kernels: tuple[str, ...] = ()  # whose kernels ran (flash, cudnn, efficient, math), where a profiler shows them
    ms: float | None = None  # median of a step: forward, and in training backward
    ms_spread: float | None = None  # between the first and the third quartile
    ms_forward: float | None = None  # median of the forward pass alone
    ms_launch: float | None = None  # what the CPU needs to start a step; above `ms` the CPU limits an eager job
    seconds_first: float | None = None  # of the first call, in which plans are built and code is compiled
    repeats: int | None = None
    clock: str = "cuda"
    tflops: float | None = None  # 10^12 operations per second that the mask leaves; backward counts 2.5 times forward
    peak_share: float | None = None  # of the rate of a matrix product in this dtype, measured in the same process
    bytes_peak: int | None = None  # the most that the step held besides its inputs
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes by part, see MEMORY_PARTS
    max_error: float | None = None  # the largest ||x - ref|| / ||ref|| of output and gradients, against float64
    right: bool | None = None  # the error is one that rounding explains
    checked: str | None = None  # what was compared, where it is not everything
    deterministic: bool | None = None  # two runs were equal, bit by bit

    @property
    def ran(self) -> bool:
        """Whether there is a time."""
        return self.outcome == "ran" and self.ms is not None

    def ties(self, other: Measurement) -> bool:
        """Whether the times of two measurements differ by no more than what one of them varies by."""
        if self.ms is None or other.ms is None:
            return False
        varies = max(self.ms_spread or 0.0, other.ms_spread or 0.0, REPEATABLE * max(self.ms, other.ms))
        return abs(self.ms - other.ms) <= varies

    def as_record(self) -> dict[str, Any]:
        """Return the JSON object of this measurement, without fields at their default."""
        record: dict[str, Any] = {"schema": SCHEMA}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _ALWAYS or value != _default(item):
                record[item.name] = list(value) if isinstance(value, tuple) else value
        return record


def from_record(record: Mapping[str, Any]) -> Measurement:
    """Return the measurement of a JSON object; ValueError where it is none of this schema."""
    if not isinstance(record, Mapping) or record.get("schema") != SCHEMA:
        raise ValueError(f"no measurement of schema {SCHEMA}")
    known = {item.name for item in fields(Measurement)}
    values = {name: value for name, value in record.items() if name in known}
    for name in ("window", "kernels"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    try:
        return Measurement(**values)
    except TypeError as problem:
        raise ValueError(f"not a measurement: {problem}") from None


def read_records(lines: Iterable[str]) -> Iterator[Measurement]:
    """Yield the measurements of a file of records; empty lines count for nothing."""
    for line in lines:
        if line.strip():
            yield from_record(json.loads(line))


_ALWAYS = frozenset(
    (
        "gpu", "sm", "torch", "backend", "dtype", "batch_size", "num_heads", "num_kv_heads", "head_dim_qk",
        "head_dim_v", "seq_len_q", "seq_len_kv", "mask", "window", "training", "compiled", "outcome", "ms",
    )
)  # fmt: skip


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()
