#!/usr/bin/env python3
"""Measure the attention backends of known jobs on this machine's GPU, and how far two runs of a job differ.

    python scripts/gpu/measure_jobs.py --output records.jsonl [--only NAME …] [--again NAME …] [--alone NAME …]

A line of the output is a record of `doctor/facts/measurement.py` with the name of its job and the number of the run.
The jobs share a process. `--again`: these are measured a second time in a new one. `--compiled`: these through
torch.compile, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from doctor.diagnosis.request import Request
from doctor.diagnosis.speed import SpeedPlan, plan_speed, run_plans
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


def plan_of(name: str, lengths: tuple[int, ...] = (), *, compiled: bool = True) -> SpeedPlan:
    """Return what is measured of a job, in the interpreter that runs this script."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps({**SHARED, **JOBS[name]}))
        request = Request(python=sys.executable, workload=str(file), fixes=False, run=False)
        return plan_speed(request, lengths, "cuda", compiled)


def differences(first: Speed, second: Speed) -> dict[str, float]:
    """Return |t2 - t1| / t1 for each backend that ran twice."""
    again = {row.name: row.measurement.ms for row in second.rows}
    return {
        row.name: abs(again[row.name] - row.measurement.ms) / row.measurement.ms  # type: ignore[operator]
        for row in first.rows
        if row.measurement.ran and again.get(row.name)
    }


def main() -> int:
    """Measure; print a table per job, the seconds, and the differences between two runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--only", nargs="*", default=list(JOBS))
    parser.add_argument("--again", nargs="*", default=[])
    parser.add_argument("--compiled", nargs="*", default=[])
    parser.add_argument("--alone", nargs="*", default=[], help="these jobs first, each in a process of its own")
    parser.add_argument("--lengths", default="", help="of the jobs that run alone: numbers of tokens")
    parser.add_argument("--tables", type=Path, help="write a page per job into this folder")
    given = parser.parse_args()
    lengths = tuple(map(int, given.lengths.split(","))) if given.lengths else ()
    runs: list[tuple[str, int, Speed]] = []
    for name in given.alone:
        began = time.monotonic()
        (speed,) = run_plans([plan_of(name, lengths)])
        wall = time.monotonic() - began
        beyond = wall - speed.timing.get("kernels.import", 0.0)
        print(f"alone: {name}: {wall:.1f} s, {beyond:.1f} s beyond the import of torch", flush=True)
        runs.append((name, 0, speed))
    for run, names in ((1, given.only), (2, given.again)):
        if names:
            speeds = run_plans([plan_of(name, compiled=run == 1 and name in given.compiled) for name in names])
            runs += [(name, run, speed) for name, speed in zip(names, speeds, strict=True)]
    with given.output.open("w") as file:
        for name, run, speed in runs:
            for row in speed.rows:
                file.write(json.dumps({"job": name, "run": run, **row.measurement.as_record()}) + "\n")
    for name, run, speed in runs:
        print(f"== {name}, run {run}")
        if run < 2:
            print(renderer("text", "speed")(speed, Style()))
        if given.tables and run < 2:
            page = given.tables / f"{name.replace(' ', '-')}-{run}.html"
            page.write_text(renderer("html", "speed")(speed, Style()))
    _compare({(name, run): speed for name, run, speed in runs})
    return 0


def _compare(runs: dict[tuple[str, int], Speed]) -> None:
    differ: list[float] = []
    for (name, run), speed in runs.items():
        if run == 2 and (name, 1) in runs:
            found = differences(runs[name, 1], speed)
            differ += found.values()
            print(f"again: {name}:", ", ".join(f"{backend} {100 * part:.1f} %" for backend, part in found.items()))
    if differ:
        print(f"two runs differ by {100 * statistics.median(differ):.1f} % (median), {100 * max(differ):.1f} % at most")


if __name__ == "__main__":
    sys.exit(main())
