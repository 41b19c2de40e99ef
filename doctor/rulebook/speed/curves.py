"""The recorded curves of `rules/speed/`: time by backend, GPU and direction, and memory by part."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from doctor.errors import DoctorError
from doctor.util.resources import rules_dir

from .shape import CallShape, Needs, mask_kind, needs_of

#: As `MEMORY_PARTS` of measurements has them; a command that measures nothing need not import that.
_PARTS = ("inputs", "mask", "output", "saved", "forward_workspace", "gradients", "backward_workspace")


class Curve(NamedTuple):
    """How long one backend takes on one GPU in one direction: milliseconds, and milliseconds per unit of `Needs`."""

    backend: str
    training: bool
    at_least: float
    fixed: float
    per_moved: float
    per_short: float
    per_repeated: float
    per_score: float
    per_bias: float
    idle: float  # exponent of the loss where blocks are fewer than multiprocessors
    uneven: float  # loss in the last wave of blocks
    per_tflop: Mapping[str, float]  # "half 128x128", or "half" for all widths
    per_mask: Mapping[str, float]  # "half causal": how much slower than `per_tflop`

    def milliseconds(self, shape: CallShape, traits: Mapping[str, Any], multiprocessors: int) -> float | None:
        """Return the time of a call; None where no recorded call is like it."""
        rate = self.per_tflop.get(f"{shape.precision} {shape.width}", self.per_tflop.get(shape.precision))
        factor = self.per_mask.get(f"{shape.precision} {mask_kind(shape, traits)}")
        if rate is None or factor is None:
            return None
        return self.of(needs_of(shape, traits, multiprocessors), rate * factor, bool(traits.get("splits")))

    def of(self, needs: Needs, rate: float, splits: bool) -> float:
        """Return the time for these needs at this rate; `splits`: short queries still fill the GPU."""
        written = self.per_repeated * needs.repeated + self.per_score * needs.scores
        idle = needs.waves**-self.idle if needs.waves < 1 else 1.0
        if needs.short:
            time = self.fixed + self.per_short * needs.moved * (1.0 if splits else idle) + written
        else:
            time = self.fixed + self.per_moved * needs.moved + written + self.per_bias * needs.bias
            time += rate * needs.tflop * (idle + self.uneven / needs.waves)
        return max(time, self.at_least)


class Machine(NamedTuple):
    """One GPU on which curves were recorded."""

    gpu: str
    sm: str
    like: str  # regular expression of the names of GPUs with the same multiprocessors
    multiprocessors: int
    torch: str
    source: str
    matrix_tflops: Mapping[str, float]  # 10^12 operations per second of a large matrix product
    curves: tuple[Curve, ...]


class Records(NamedTuple):
    """All that is recorded about speed and memory."""

    machines: tuple[Machine, ...]
    traits: Mapping[str, Mapping[str, Any]]
    same_kernel: Mapping[str, str]  # backend -> the recorded one whose kernels it has
    memory: Mapping[str, Mapping[str, Mapping[str, float]]]
    figures: tuple[Mapping[str, Any], ...]  # published by others, for GPUs or backends without a curve
    holds_for: Mapping[str, Mapping[str, str]]  # backend -> releases for which its curve counts
    select: Mapping[str, str]  # backend -> what the user writes to select it
    own_choice: Mapping[str, Mapping[str, Any]]  # backend -> the same as facts of the workload
    other_calls: tuple[Mapping[str, Any], ...]  # other calls that a framework can make for the same attention

    def machine(self, sm: str | None, name: str | None) -> Machine | None:
        """Return the recorded GPU that is like this one."""
        for machine in self.machines:
            if machine.sm == sm and (not name or re.search(machine.like, name)):
                return machine
        return None

    def milliseconds(self, machine: Machine, backend: str, shape: CallShape) -> float | None:
        """Return the predicted time of a backend; None where it was not measured."""
        curve = self.curve_of(machine, backend, shape.training)
        return None if curve is None else curve.milliseconds(shape, self.traits_of(backend), machine.multiprocessors)

    def curve_of(self, machine: Machine, backend: str, training: bool) -> Curve | None:
        """Return the curve of a backend in one direction; None where it was not measured."""
        recorded = self.same_kernel.get(backend, backend)
        found = (item for item in machine.curves if item.backend == recorded and item.training == training)
        return next(found, None)

    def traits_of(self, backend: str) -> Mapping[str, Any]:
        """Return what a backend does with masks and heads; its own words go before those of the kernel it has."""
        return self.traits.get(backend) or self.traits.get(self.same_kernel.get(backend, backend), {})

    def memory_of(self, backend: str, shape: CallShape) -> Mapping[str, int] | None:
        """Return the bytes of a call by part (`MEMORY_PARTS`); None where the backend was not measured."""
        rows = self.memory.get(self.same_kernel.get(backend, backend))
        if rows is None or (shape.training and not any(name.startswith("backward") for name in rows)):
            return None
        parts = {**dict.fromkeys(_PARTS, 0), **held_anyway(shape)}
        units = units_of(shape)
        if shape.written_mask and "masks" not in self.traits_of(backend).get("skips", ()):
            parts["mask"] = shape.batch_size * shape.seq_len_q * shape.seq_len_kv
            if shape.bias:
                parts["mask"] = shape.num_heads * shape.seq_len_q * shape.seq_len_kv * shape.size
        for part in ("saved", "forward_workspace", "backward_workspace"):
            if shape.training or part == "forward_workspace":
                row = rows.get(f"{part} {shape.precision}", rows.get(part, {}))
                parts[part] = round(sum(units[unit] * times for unit, times in row.items()))
        return parts


def units_of(shape: CallShape) -> dict[str, int]:
    """Return the sizes in bytes of which workspaces are made."""
    rows = shape.batch_size * shape.num_heads
    wide = shape.head_dim_qk + shape.head_dim_v
    return {
        "queries": rows * shape.seq_len_q * shape.head_dim_qk * shape.size,
        "output": rows * shape.seq_len_q * shape.head_dim_v * shape.size,
        "repeated": rows * shape.seq_len_kv * wide * shape.size if shape.grouped else 0,
        "expanded": rows * shape.seq_len_kv * wide * shape.size,
        "logsumexp": rows * shape.seq_len_q * 4,
        "queries_float32": rows * -(-shape.seq_len_q // 128) * 128 * -(-shape.head_dim_qk // 32) * 32 * 4,
        "scores": shape.pairs * shape.size,
    }


def held_anyway(shape: CallShape) -> dict[str, int]:
    """Return the tensors that every backend holds: inputs, output, gradients."""
    units = units_of(shape)
    wide = shape.head_dim_qk + shape.head_dim_v
    keys = shape.batch_size * shape.num_kv_heads * shape.seq_len_kv * wide * shape.size
    inputs = units["queries"] + keys
    gradients = inputs if shape.training else 0
    return {
        "inputs": inputs + (units["output"] if shape.training else 0),
        "output": units["output"],
        "gradients": gradients,
    }


def peak(parts: Mapping[str, int]) -> int:
    """Return the most that a step holds besides inputs and mask: in forward or in backward."""
    forward = parts["output"] + max(parts["forward_workspace"], parts["saved"])
    backward = parts["output"] + parts["saved"] + parts["gradients"] + parts["backward_workspace"]
    return max(forward, backward)


@functools.cache
def load_records(folder: Path | None = None, curves: str | None = "curves.json") -> Records:
    """Return the records that ship with the rulebook, or those of another folder; without `curves`, no GPU is known."""
    folder = folder or rules_dir() / "speed"
    backends = _read(folder / "backends.json")
    measured = {"machines": [], "memory": {}} if curves is None else _read(folder / curves)
    try:
        machines = tuple(
            Machine(**{**row, "curves": tuple(Curve(**curve) for curve in row["curves"])})
            for row in measured["machines"]
        )
        return Records(
            machines, backends["traits"], backends["same_kernel"], measured["memory"], tuple(backends["figures"]),
            backends["holds_for"], backends["select"], backends["own_choice"], tuple(backends["other_calls"]),
        )  # fmt: skip
    except (KeyError, TypeError) as problem:
        raise DoctorError(f"the records of speed in `{folder}` lack {problem}") from None


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise DoctorError(f"cannot read the records of speed `{file}`: {problem}") from None
