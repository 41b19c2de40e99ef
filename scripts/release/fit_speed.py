#!/usr/bin/env python3
"""Fit the curves of `rules/speed/curves.json` to recorded measurements, and judge them on shapes that were held out.

    python3 scripts/release/fit_speed.py [--records FILE] [--write] [--salt TEXT]

A third of the shapes, chosen by a hash of the shape, is never fitted: the curves that ship are those of the other two
thirds. Records whose spread is above a tenth of the median were disturbed by other work and count for neither.
The fit minimizes the error of the logarithm, beyond a factor of two at a third of its weight.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.facts.measurement import Measurement, read_records  # noqa: E402
from doctor.rulebook.speed.curves import Curve, Machine, Records, held_anyway, load_records, peak, units_of  # noqa: E402
from doctor.rulebook.speed.shape import CallShape, Needs, mask_kind, measured_shape, needs_of  # noqa: E402

CURVES = ROOT / "rules" / "speed" / "curves.json"
RECORDS = ROOT / "tests" / "captures" / "speed" / "h100-torch2.11.jsonl.gz"
MOST_SPREAD = 0.1
MULTIPROCESSORS = {"NVIDIA H100 80GB HBM3": 132}
LIKE = {"NVIDIA H100 80GB HBM3": r"\b(H100|H200|H800|GH200)\b(?!.*(PCIe|NVL))"}
MATRIX = {"NVIDIA H100 80GB HBM3": {"half": 790.0, "float32": 51.6}}  # plain_benchmark.py prints them
SOURCE = "scripts/gpu/plain_benchmark.py"
TERMS = ("fixed", "per_moved", "per_short", "per_repeated", "per_score", "per_bias", "uneven")


class Sample(NamedTuple):
    """One record as the fit sees it."""

    needs: Needs
    rate: str
    mask: str
    target: float  # logarithm of the milliseconds


def records_of(path: Path) -> list[Measurement]:
    """Return the records that were not disturbed."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = [item for item in read_records(file) if item.ran]
    return [item for item in found if item.ms and (item.ms_spread or 0) <= MOST_SPREAD * item.ms]


def held_out(shape: CallShape, salt: str = "") -> bool:
    """Whether a shape is kept for judging; forward and backward of one shape stay together."""
    key = f"{salt}{shape._replace(training=True)}"
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % 3 == 0


def fitted(backend: str, training: bool, items: Sequence[Measurement], traits: Mapping[str, Any]) -> Curve:
    """Return the curve of one backend and direction."""
    wide = bool(traits.get("unfused"))
    samples = []
    for item in items:
        shape = measured_shape(item)
        needs = needs_of(shape, traits, MULTIPROCESSORS[item.gpu])
        rate = shape.precision if wide else f"{shape.precision} {shape.width}"
        samples.append(Sample(needs, rate, f"{shape.precision} {mask_kind(shape, traits)}", math.log(item.ms or 1)))
    least = min(math.exp(sample.target) for sample in samples)
    used = {
        "fixed": True, "per_moved": True, "per_short": any(s.needs.short for s in samples),
        "per_repeated": any(s.needs.repeated for s in samples), "per_score": wide,
        "per_bias": any(s.needs.bias for s in samples), "uneven": not wide,
    }  # fmt: skip
    start = {"fixed": 0.01, "per_moved": 0.4, "per_short": 0.4, "per_repeated": 1.0, "per_score": 4.0, "per_bias": 0.5,
             "uneven": 0.3}  # fmt: skip
    values: dict[str, float] = {name: start[name] if used[name] else 0.0 for name in TERMS}
    values["idle"] = 0.7
    for sample in samples:
        values[f"rate {sample.rate}"] = 3.0 if sample.rate.startswith("half") else 30.0
        values[f"mask {sample.mask}"] = 1.0
    first = {sample.mask.split()[0]: f"mask {sample.mask}" for sample in reversed(samples)}
    free = [name for name in values if values[name] > 0 and name not in first.values()]
    _descend(values, free, samples, lambda: _curve(backend, training, least, values), bool(traits.get("splits")))
    return _curve(backend, training, least, values)


def _curve(backend: str, training: bool, least: float, values: Mapping[str, float]) -> Curve:
    def table(kind: str) -> dict[str, float]:
        return {name.partition(" ")[2]: float(f"{v:.4g}") for name, v in values.items() if name.startswith(f"{kind} ")}

    terms = {name: float(f"{values[name]:.4g}") for name in (*TERMS, "idle")}
    return Curve(backend, training, round(least, 4), per_tflop=table("rate"), per_mask=table("mask"), **terms)


def _descend(
    values: dict[str, float], free: Sequence[str], samples: Sequence[Sample], curve: Any, splits: bool
) -> None:
    """Change one value at a time while the error falls, in steps that halve."""

    def loss() -> float:
        now, total = curve(), 0.0
        for sample in samples:
            rate = now.per_tflop[sample.rate] * now.per_mask[sample.mask]
            error = abs(math.log(now.of(sample.needs, rate, splits)) - sample.target)
            total += min(error, 0.7) + 0.3 * max(0.0, error - 0.7)
        return total

    best, step = loss(), 0.5
    while step > 0.01:
        moved = False
        for name in free:
            for sign in (-1, 1):
                before = values[name]
                scaled = (
                    min(1.2, max(0.0, before + sign * step / 2)) if name == "idle" else before * math.exp(sign * step)
                )
                values[name] = scaled
                now = loss()
                if now < best - 1e-9:
                    best, moved = now, True
                else:
                    values[name] = before
        step = step if moved else step / 2


def memory_rows(items: Iterable[Measurement]) -> dict[str, dict[str, dict[str, float]]]:
    """Return what each backend holds by part, in units of tensors; unfused backends by precision."""
    by_backend: dict[str, list[tuple[CallShape, Measurement]]] = defaultdict(list)
    for item in items:
        if item.bytes_peak and item.bytes_peak > 16e6 and item.seq_len_q > 1:
            by_backend[item.backend].append((measured_shape(item), item))
    found: dict[str, dict[str, dict[str, float]]] = {}
    for backend, pairs in sorted(by_backend.items()):
        unfused = backend in ("sdpa.math", "hf.eager")
        rows: dict[str, dict[str, float]] = {}
        for precision in ("half", "float32") if unfused else ("",):
            own = [pair for pair in pairs if not precision or pair[0].precision == precision]
            rows.update({f"{part} {precision}".strip(): row for part, row in _parts(own, unfused).items() if row})
        found[backend] = rows
    return found


def _parts(pairs: Sequence[tuple[CallShape, Measurement]], unfused: bool) -> dict[str, dict[str, float]]:
    units = ("scores", "expanded") if unfused else ("logsumexp", "repeated", "queries", "output", "queries_float32")
    saved, forward, backward = [], [], []
    for shape, item in pairs:
        anyway, sizes = held_anyway(shape), units_of(shape)
        row = [float(sizes[unit]) for unit in units]
        most = item.bytes_peak or 0
        if not shape.training:
            forward.append((row, most - anyway["output"]))
        elif "saved" in item.memory:
            saved.append((row, item.memory["saved"]))
            backward.append((row, most - anyway["output"] - item.memory["saved"] - anyway["gradients"]))
    return {
        name: _rounded(units, rows)
        for name, rows in (("saved", saved), ("forward_workspace", forward), ("backward_workspace", backward))
    }


def _rounded(units: Sequence[str], rows: Sequence[tuple[list[float], int]]) -> dict[str, float]:
    """Return the least squares of the relative error with values of at least 0, in quarters."""
    kept = [([x / target for x in row], 1.0) for row, target in rows if target > 1e5]
    if len(kept) < len(rows) / 3 or not kept:
        return {}
    n = len(units)
    left = [[sum(row[i] * row[j] for row, _ in kept) for j in range(n)] for i in range(n)]
    right = [sum(row[i] for row, _ in kept) for i in range(n)]
    x = [0.0] * n
    for _ in range(3000):
        for i in range(n):
            if left[i][i] > 0:
                x[i] = max(0.0, (right[i] - sum(left[i][j] * x[j] for j in range(n) if j != i)) / left[i][i])
    return {unit: round(4 * value) / 4 for unit, value in zip(units, x, strict=True) if round(4 * value)}


def judged(records: Records, machine: Machine, items: Iterable[Measurement]) -> dict[str, Any]:
    """Return how well the curves rank the backends of these records, and how far off they are."""
    by_shape: dict[CallShape, dict[str, tuple[float, float]]] = defaultdict(dict)
    errors: dict[str, list[float]] = defaultdict(list)
    memory: dict[str, list[float]] = defaultdict(list)
    for item in items:
        shape = measured_shape(item)
        predicted = records.milliseconds(machine, item.backend, shape)
        parts = records.memory_of(item.backend, shape)
        if item.bytes_peak and item.bytes_peak > 16e6 and parts is not None:
            memory[item.backend].append(abs(peak(parts) / item.bytes_peak - 1))
        if predicted is not None and item.ms:
            by_shape[shape][item.backend] = (item.ms, predicted)
            errors[f"{item.backend} {'training' if item.training else 'forward'}"].append(
                abs(math.log(predicted / item.ms))
            )
    ranked = [found for found in by_shape.values() if len(found) > 1]
    best = [min(found.values())[0] == min(found.values(), key=lambda pair: pair[1])[0] for found in ranked]
    near = [min(found.values(), key=lambda pair: pair[1])[0] <= 1.1 * min(found.values())[0] for found in ranked]
    return {
        "shapes": len(ranked),
        "best": sum(best) / len(best),
        "within_tenth": sum(near) / len(near),
        "tau": sum(_tau(list(found.values())) for found in ranked) / len(ranked),
        "factor": {name: _quantiles([math.exp(error) for error in found]) for name, found in sorted(errors.items())},
        "memory": {name: _quantiles(found) for name, found in sorted(memory.items())},
    }


def _tau(pairs: Sequence[tuple[float, float]]) -> float:
    signs = [(one[0] - two[0]) * (one[1] - two[1]) for one, two in combinations(pairs, 2)]
    return sum((sign > 0) - (sign < 0) for sign in signs) / len(signs)


def _quantiles(values: Sequence[float]) -> tuple[int, float, float]:
    ordered = sorted(values)
    return len(ordered), round(ordered[len(ordered) // 2], 3), round(ordered[int(0.9 * len(ordered))], 3)


def content_of(items: Sequence[Measurement], base: Records, salt: str) -> dict[str, Any]:
    """Return the content of the file of curves."""
    fit = [item for item in items if not held_out(measured_shape(item), salt)]
    groups: dict[tuple[str, str, str, bool], list[Measurement]] = defaultdict(list)
    for item in fit:
        groups[item.gpu, item.torch, item.backend, item.training].append(item)
    machines = []
    for gpu, torch in sorted({key[:2] for key in groups}):
        own = {key[2:]: found for key, found in sorted(groups.items()) if key[:2] == (gpu, torch)}
        machines.append(
            {
                "gpu": gpu, "sm": next(iter(own.values()))[0].sm, "like": LIKE[gpu],
                "multiprocessors": MULTIPROCESSORS[gpu], "torch": torch, "source": SOURCE, "matrix_tflops": MATRIX[gpu],
                "curves": [
                    fitted(backend, training, found, base.traits[backend])._asdict()
                    for (backend, training), found in own.items()
                ],
            }
        )  # fmt: skip
    return {"machines": machines, "memory": memory_rows(fit)}


def text_of(content: Mapping[str, Any]) -> str:
    """Return JSON with one curve a line."""
    text = json.dumps(content, indent=1)
    one_line = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
    return one_line.sub(lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text) + "\n"


def main() -> int:
    """Fit, judge, and with `--write` write the curves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--salt", default="", help="another choice of the shapes that are held out; not to be written")
    given = parser.parse_args()
    items = records_of(given.records)
    base = load_records(curves=None)
    content = content_of(items, base, given.salt)
    machines = tuple(
        Machine(**{**row, "curves": tuple(Curve(**c) for c in row["curves"])}) for row in content["machines"]
    )
    records = base._replace(machines=machines, memory=content["memory"])
    kept = [item for item in items if held_out(measured_shape(item), given.salt)]
    for machine in machines:
        found = judged(records, machine, [item for item in kept if item.gpu == machine.gpu])
        for name in ("factor", "memory"):
            for key, value in found.pop(name).items():
                print(f"{name} {key}: {value}")
        print(machine.gpu, {key: round(value, 3) for key, value in found.items()})
    if given.write and not given.salt:
        CURVES.write_text(text_of(content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
