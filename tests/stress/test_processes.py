"""A sweep keeps the cores of the host busy: its cases wait for plans that one core builds, and not for the GPU."""

from __future__ import annotations

import os
import threading

import pytest

from doctor.runner.result import KernelResult
from doctor.stress import sweep as module
from doctor.stress.devices import Device, devices_of
from doctor.stress.discovery import SweepOptions
from doctor.stress.plan import plan
from doctor.stress.processes import COMPILE_THREADS, compile_settings, processes_per_device, shares
from doctor.stress.worker import Worker
from doctor.util.machine import Machine

GIB = 2**30


def gpus(count: int, free: int | None = 79, memory: int | None = None) -> list[Device]:
    return [
        Device(f"gpu{number}", f"GPU {number}", memory_bytes=memory and memory * GIB, free_bytes=free and free * GIB)
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("devices", "machine", "expected"),
    [
        (gpus(1), Machine(16, 120 * GIB), 12),
        (gpus(1), Machine(64, 512 * GIB), 16),
        (gpus(8), Machine(128, 1024 * GIB), 12),
        (gpus(2), Machine(16, 120 * GIB), 6),
        (gpus(1), Machine(2, 120 * GIB), 1),
        (gpus(1, free=23), Machine(16, 120 * GIB), 5),
        (gpus(1, memory=8), Machine(16, 120 * GIB), 2),
        (gpus(1), Machine(16, 16 * GIB), 4),
        (gpus(1, free=None), Machine(16), 12),
        (gpus(1), Machine(), 1),
        ([Device("cpu", "the CPU")], Machine(64, 512 * GIB), 1),
    ],
    ids=[
        "H100",
        "most",
        "eight",
        "two",
        "small host",
        "24 GB",
        "--memory 8",
        "little RAM",
        "unknown",
        "no cores",
        "cpu",
    ],
)
def test_cores_and_memory_decide_how_many_processes_share_a_gpu(devices, machine, expected):
    assert processes_per_device(devices, machine) == expected


def test_the_memory_that_others_use_is_not_counted():
    hello = {"devices": [{"index": 0, "name": "A", "memory_bytes": 80 * GIB, "free_bytes": 9 * GIB}]}
    (found,), _ = devices_of(hello, None)
    assert processes_per_device([found], Machine(16, 120 * GIB)) == 2


def test_compilers_of_all_processes_share_the_cores(monkeypatch):
    monkeypatch.delenv(COMPILE_THREADS, raising=False)
    assert compile_settings(12, Machine(16)) == {COMPILE_THREADS: "1"}
    assert compile_settings(4, Machine(16)) == {COMPILE_THREADS: "4"}
    assert compile_settings(1, Machine(16)) == {}
    monkeypatch.setenv(COMPILE_THREADS, "7")
    assert compile_settings(12, Machine(16)) == {}


def test_slow_cases_do_not_keep_a_sweep_waiting():
    """At the end of one process of twelve, a case of 44 s was a third of the whole sweep."""
    cases = plan(["sdpa.default", "sdpa.math", "flex"], "cuda", 600).cases
    parts = shares(cases, 12)
    slow = [[case["backend"] == "flex" for case in part] for part in parts]
    assert sum(map(sum, slow)) > 4
    assert all(part == sorted(part, reverse=True) for part in slow), "slow ones come first"
    loads = [len(part) + 49 * sum(part) for part in slow]
    assert max(loads) <= 1.6 * sum(loads) / 12


@pytest.mark.parametrize("processes", [1, 4, 12])
def test_every_case_is_run_once(processes):
    cases = plan(["sdpa.default", "sdpa.math", "flex"], "cuda", 200).cases
    parts = shares(cases, processes)
    assert sorted(map(str, sum(parts, ()))) == sorted(map(str, cases))
    if processes < 6:
        assert parts[0] == cases[::processes], "few processes keep the order of the plan"


def test_a_sweep_starts_them_all_at_once(monkeypatch):
    monkeypatch.delenv(COMPILE_THREADS, raising=False)
    together, seen = threading.Barrier(12), []

    class Fake(Worker):
        def run(self, requests, heard, until=None, *more, **how):
            if "op" not in requests[0]:
                seen.append((self.env[COMPILE_THREADS], len(requests)))
                together.wait(timeout=30)
            for request in requests:
                heard(request, KernelResult("ran", {"verdict": "ok", "faults": [], "bits": 0}))
            return True

    device = {"index": 0, "name": "NVIDIA H100", "memory_bytes": 80 * GIB, "free_bytes": 79 * GIB, "uuid": "uuid-0"}
    hello = {"torch": "2.11", "cuda": "13.0", "device": "cuda", "devices": [device], "visible": None,
             "backends": {"sdpa.default": None, "sdpa.math": None}}  # fmt: skip
    monkeypatch.setattr(module, "Worker", Fake)
    monkeypatch.setattr(module, "discover", lambda options, tell, until: (hello, []))
    monkeypatch.setattr(module, "this_machine", lambda: Machine(16, 120 * GIB))
    outcome = module.sweep(SweepOptions("python", cases=60, shrink=0.01))
    assert outcome.complete and outcome.processes == 12 and len(seen) == 12
    assert {threads for threads, _ in seen} == {"1"}
    assert max(count for _, count in seen) - min(count for _, count in seen) <= 1, "each has its share of the cases"
    assert COMPILE_THREADS not in os.environ
