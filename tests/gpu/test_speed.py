"""`backends --run` on a real GPU: the time of the whole, repeatability, and an order that makes sense."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from doctor.diagnosis.speed import measure_speed, run_plans
from doctor.runner.run import run_program
from scripts.gpu.measure_jobs import JOBS, SHARED, differences, job_file, plan_of

pytestmark = pytest.mark.gpu
SECONDS = 30.0  # of one job, beyond importing torch
REPEATABLE = 0.05


def test_a_job_takes_half_a_minute_and_repeats() -> None:
    began = time.monotonic()
    with job_file("llama-3-8b 4k") as request:
        first = measure_speed(request)
    wall = time.monotonic() - began - first.timing.get("kernels.import", 0.0)
    assert wall <= SECONDS, first.timing
    again = differences(first, run_plans([plan_of("llama-3-8b 4k")])[0])
    assert sorted(again.values())[len(again) // 2] <= REPEATABLE, again
    names = [row.measurement.backend for row in first.rows if row.usable]
    assert names.index("sdpa.flash") < names.index("sdpa.math"), "fused attention is faster than written-out scores"
    assert first.selected in names


@pytest.mark.parametrize("job", ["packed 8k", "padding 4k", "gemma-3 window 8k", "decode 16x4096", "alibi 4k"])
def test_every_backend_that_runs_is_right(job: str) -> None:
    (speed,) = run_plans([plan_of(job)])
    ran = [row.measurement for row in speed.rows if row.measurement.ran]
    assert len(ran) >= 3
    assert all(one.right for one in ran), [(one.backend, one.max_error) for one in ran]
    assert all(one.bytes_peak and one.ms and one.ms_spread is not None for one in ran)


def test_a_job_without_memory_is_a_result() -> None:
    case: dict[str, Any] = {**SHARED, **JOBS["llama-3-8b 128k"], "measured": "sdpa.math"}
    (answer,) = run_program(sys.executable, "measure", [case], timeout=120)
    assert answer.outcome == "refused" and "out of memory" in answer.reason
