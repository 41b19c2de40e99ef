#!/usr/bin/env python3
"""Measure the attention backends of known jobs on this machine's GPU, and how far two runs of a job differ.

    python scripts/gpu/measure_jobs.py --output records.jsonl [--only NAME …] [--again NAME …] [--tables DIR]

A line of the output is a record of `doctor/facts/measurement.py` with the name of its job and the number of the run.
`--again`: these jobs are measured a second time in a new process, without torch.compile. `--tables`: a page per job.
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
from doctor.diagnosis.speed import measure_speed
from doctor.report.formats import renderer
from doctor.report.speed_model import Speed
from doctor.report.style import Style

GQA = {"num_heads": 32, "num_kv_heads": 8, "head_dim_qk": 128}
DECODE = {"seq_len_q": 1, "training": False, "inference_kv_cache": True, "mask": "no_mask"}
JOBS: dict[str, dict[str, Any]] = {
    "llama-3-8b 4k": {**GQA, "batch_size": 4, "seq_len_q": 4096},
    "llama-3-70b 8k": {**GQA, "num_heads": 64, "seq_len_q": 8192},
    "llama-2-7b 2k": {"num_heads": 32, "head_dim_qk": 128, "batch_size": 8, "seq_len_q": 2048},
    "gemma-2 soft cap 4k": {"num_heads": 16, "num_kv_heads": 8, "head_dim_qk": 256, "seq_len_q": 4096, "softcap": 50.0},
    "gemma-3 window 8k": {
        "num_heads": 16, "num_kv_heads": 8, "head_dim_qk": 256, "seq_len_q": 8192, "window": [1023, 0],
    },
    "gemma-4 wide 4k": {"num_heads": 16, "num_kv_heads": 4, "head_dim_qk": 512, "seq_len_q": 4096},
    "deepseek mla 4k": {"num_heads": 128, "head_dim_qk": 192, "head_dim_v": 128, "seq_len_q": 4096},
    "mistral window 16k": {**GQA, "seq_len_q": 16384, "window": [4095, 0]},
    "packed 8k": {**GQA, "seq_len_q": 8192, "packing": True},
    "padding 4k": {**GQA, "batch_size": 4, "seq_len_q": 4096, "mask": "padding_causal"},
    "decode 16 x 8k": {**GQA, **DECODE, "batch_size": 16, "seq_len_kv": 8192},
    "alibi 4k": {"num_heads": 32, "head_dim_qk": 128, "seq_len_q": 4096, "bias": "alibi"},
    "float32 4k": {"num_heads": 16, "head_dim_qk": 64, "batch_size": 4, "seq_len_q": 4096, "dtype": "float32"},
    "llama-3-8b 128k": {**GQA, "seq_len_q": 131072},
    "vit 1k": {"num_heads": 16, "head_dim_qk": 80, "batch_size": 16, "seq_len_q": 1024, "mask": "no_mask"},
}  # fmt: skip
SHARED = {"framework": "torch_sdpa", "dtype": "bfloat16", "mask": "causal", "batch_size": 1, "training": True}


def measured(job: dict[str, Any], lengths: tuple[int, ...], *, compiled: bool) -> Speed:
    """Measure one job through the interpreter that runs this script."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps({**SHARED, **job}))
        request = Request(python=sys.executable, workload=str(file), fixes=False, run=False)
        return measure_speed(request, lengths, compiled=compiled)


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
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--lengths", default="", help="of the first job: numbers of tokens")
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    differ: list[float] = []
    with given.output.open("w") as file:
        for number, name in enumerate(given.only):
            lengths = tuple(map(int, given.lengths.split(","))) if given.lengths and number == 0 else ()
            began = time.monotonic()
            speed = measured(JOBS[name], lengths, compiled=not given.no_compile)
            wall = time.monotonic() - began
            print(
                f"== {name}: {wall:.1f} s, {wall - speed.timing.get('kernels.import', 0.0):.1f} s beyond torch's import"
            )
            print(renderer("text", "speed")(speed, Style()), flush=True)
            if given.tables:
                page = given.tables / f"{name.replace(' ', '-')}.html"
                page.write_text(renderer("html", "speed")(speed, Style()))
            runs = [speed]
            if name in given.again:
                runs.append(measured(JOBS[name], lengths, compiled=False))
                found = differences(*runs)
                differ += found.values()
                print("second run:", ", ".join(f"{backend} {100 * part:.1f} %" for backend, part in found.items()))
            for run, one in enumerate(runs, 1):
                for row in one.rows:
                    file.write(json.dumps({"job": name, "run": run, **row.measurement.as_record()}) + "\n")
            file.flush()
    if differ:
        print(f"two runs differ by {100 * statistics.median(differ):.1f} % (median), {100 * max(differ):.1f} % at most")
    return 0


if __name__ == "__main__":
    sys.exit(main())
