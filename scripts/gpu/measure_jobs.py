#!/usr/bin/env python3
"""Measure the attention backends of known jobs on this machine's GPU, and how far two runs of a job differ.

    python scripts/gpu/measure_jobs.py --output records.jsonl [--only NAME …] [--again NAME …] [--alone NAME …]

A line of the output is a record of `doctor/facts/measurement.py` with its job and its run. Jobs share a process: first
what needs no compiler, then flex_attention, then the jobs of `--again` in a new process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from doctor.diagnosis.request import Request
from doctor.diagnosis.speed import SpeedPlan, measure_speed, plan_speed, run_plans
from doctor.report.formats import renderer
from doctor.report.speed_model import Speed
from doctor.report.style import Style

GQA = {"num_heads": 32, "num_kv_heads": 8, "head_dim_qk": 128}
DECODE = {"seq_len_q": 1, "training": False, "inference_kv_cache": True, "mask": "no_mask"}
JOBS: dict[str, dict[str, Any]] = {
    "llama-3-8b 4k": {**GQA, "batch_size": 4, "seq_len_q": 4096},
    "llama-3-70b 8k": {**GQA, "num_heads": 64, "seq_len_q": 8192},
    "llama-2-7b 2k": {"num_heads": 32, "head_dim_qk": 128, "batch_size": 8, "seq_len_q": 2048},
    "gemma-2 4k": {"num_heads": 16, "num_kv_heads": 8, "head_dim_qk": 256, "seq_len_q": 4096, "softcap": 50.0},
    "gemma-3 window 8k": {
        "num_heads": 16, "num_kv_heads": 8, "head_dim_qk": 256, "seq_len_q": 8192, "window": [1023, 0],
    },
    "gemma-4 wide 4k": {"num_heads": 16, "num_kv_heads": 4, "head_dim_qk": 512, "seq_len_q": 4096},
    "deepseek mla 4k": {"num_heads": 128, "head_dim_qk": 192, "head_dim_v": 128, "seq_len_q": 4096},
    "mistral window 16k": {**GQA, "seq_len_q": 16384, "window": [4095, 0]},
    "packed 8k": {**GQA, "seq_len_q": 8192, "packing": True},
    "padding 4k": {**GQA, "batch_size": 4, "seq_len_q": 4096, "mask": "padding_causal"},
    "decode 16x4096": {**GQA, **DECODE, "batch_size": 16, "seq_len_kv": 4096},
    "alibi 4k": {"num_heads": 32, "head_dim_qk": 128, "seq_len_q": 4096, "bias": "alibi"},
    "float32 2k": {"num_heads": 12, "head_dim_qk": 64, "batch_size": 4, "seq_len_q": 2048, "dtype": "float32"},
    "llama-3-8b 128k": {**GQA, "seq_len_q": 131072},
    "vit 1k": {"num_heads": 16, "head_dim_qk": 80, "batch_size": 16, "seq_len_q": 1024, "mask": "no_mask"},
}  # fmt: skip
SHARED = {"framework": "torch_sdpa", "dtype": "bfloat16", "mask": "causal", "batch_size": 1, "training": True}


@contextlib.contextmanager
def job_file(name: str) -> Iterator[Request]:
    """Give a request for a job, in the interpreter that runs this script."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps({**SHARED, **JOBS[name]}))
        yield Request(python=sys.executable, workload=str(file), fixes=False, run=False)


def plan_of(name: str, *, compiled: bool = False) -> SpeedPlan:
    """Return what is measured of a job."""
    with job_file(name) as request:
        return plan_speed(request, (), "cuda", compiled)


def differences(first: Speed, second: Speed) -> dict[str, float]:
    """Return |t2 - t1| / t1 for each backend that ran twice."""
    again = {row.name: row.measurement.ms for row in second.rows}
    return {
        row.name: abs(again[row.name] - row.measurement.ms) / row.measurement.ms  # type: ignore[operator]
        for row in first.rows
        if row.measurement.ran and again.get(row.name)
    }


class Records:
    """The runs so far, written as they come: a machine may be taken back."""

    def __init__(self, output: Path, tables: Path | None) -> None:
        self.output, self.tables = output, tables
        self.runs: dict[tuple[str, str], Speed] = {}
        output.write_text("")

    def add(self, name: str, run: str, speed: Speed) -> None:
        """Write the records of one run, and print what took how long."""
        self.runs[name, run] = speed
        with self.output.open("a") as file:
            for row in speed.rows:
                record = {"job": name, "run": run, **row.measurement.as_record(), "seconds": row.seconds}
                file.write(json.dumps(record) + "\n")
        took = ", ".join(
            f"{row.name} {row.seconds:.1f} ({row.measurement.seconds_first or 0:.1f})" for row in speed.rows
        )
        print(f"{run}: {name}: {sum(row.seconds for row in speed.rows):.1f} s: {took}", flush=True)
        if self.tables:
            page = self.tables / f"{name.replace(' ', '-')}-{run}"
            page.with_suffix(".html").write_text(renderer("html", "speed")(speed, Style()))

    def joined(self) -> dict[str, Speed]:
        """Return each job with the backends of all first runs."""
        found: dict[str, Speed] = {}
        for (name, run), speed in self.runs.items():
            if run in ("main", "flex"):
                before = found.get(name)
                rows = (*(before.rows if before else ()), *speed.rows)
                ordered = sorted(rows, key=lambda row: (row.measurement.ms is None, row.measurement.ms or 0.0))
                found[name] = replace(speed, rows=tuple(ordered))
        return found

    def compare(self) -> None:
        """Print how far the second runs differ from the first."""
        differ: list[float] = []
        for (name, run), speed in self.runs.items():
            if run == "again" and (name, "main") in self.runs:
                found = differences(self.runs[name, "main"], speed)
                differ += found.values()
                print(f"again: {name}:", ", ".join(f"{key} {100 * part:.1f} %" for key, part in found.items()))
        if differ:
            median, most = statistics.median(differ), max(differ)
            print(f"two runs differ by {100 * median:.1f} % (median of {len(differ)}), {100 * most:.1f} % at most")


def main() -> int:
    """Measure; print a table per job, the seconds, and the differences between two runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--only", nargs="*", default=list(JOBS))
    parser.add_argument("--again", nargs="*", default=[], help="these a second time, in a new process")
    parser.add_argument("--alone", nargs="*", default=[], help="these first, as a user runs them: with torch.compile")
    parser.add_argument("--limit", type=float, default=100.0, help="seconds for each pass over the jobs")
    parser.add_argument("--tables", type=Path, help="write a page per job into this folder")
    given = parser.parse_args()
    records = Records(given.output, given.tables)
    for name in given.alone:
        began = time.monotonic()
        with job_file(name) as request:
            speed = measure_speed(request)
        wall = time.monotonic() - began
        print(f"alone: {name}: {wall:.1f} s, timing {dict(speed.timing)}")
        records.add(name, "alone", speed)
    plans = {name: plan_of(name) for name in dict.fromkeys((*given.only, *given.again))}
    for run, names, limit in (
        ("main", given.only, given.limit), ("flex", given.only, given.limit), ("again", given.again, given.limit / 2),
    ):  # fmt: skip
        chosen = [_part(plans[name], flex=run == "flex") for name in names]
        if chosen:
            for name, speed in zip(names, run_plans(chosen, limit=limit), strict=True):
                records.add(name, run, speed)
    for name, speed in records.joined().items():
        print(f"== {name}")
        print(renderer("text", "speed")(speed, Style()), flush=True)
    records.compare()
    return 0


def _part(plan: SpeedPlan, *, flex: bool) -> SpeedPlan:
    """Return the plan of what compiles for seconds, or of the rest."""
    wanted = ("flex.triton",) if flex else tuple(call.id for call in plan.calls if not call.id.startswith("flex"))
    return replace(plan, calls=tuple(call for call in plan.calls if call.id in wanted))


if __name__ == "__main__":
    sys.exit(main())
