"""How many processes share a GPU, which cases each of them runs, and how many threads it may start to compile."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from doctor.util.machine import Machine

from .axes import domain
from .devices import Device

#: Most of the time of a case is spent on one core of the host: cuDNN builds a plan for each new shape (0.4 to 4 s),
#: inductor compiles. The GPU is idle then. One H100 with 16 cores, torch 2.11: 4 processes do 12 cases per second,
#: 12 processes 39. A quarter of the cores is left to the drivers' own threads and to this program.
SHARE_OF_CORES = 0.75
MOST = 16
#: Memory of the GPU for one process: its context, the case, and the float64 reference of it.
GPU_BYTES = 4 * 2**30
#: Memory of the host for one process: torch, its CUDA libraries, and a library under test.
HOST_BYTES = 4 * 2**30
COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
#: A case of a slow backend takes as long as this many others: 7 to 44 s against 0.3 s on one H100.
SLOW_WEIGHT = 50
#: With so many processes, some begin with the slow cases: at the end, a single one would keep the sweep waiting.
MANY = 6


def processes_per_device(devices: Sequence[Device], machine: Machine) -> int:
    """Return how many processes share each device; one on a CPU, whose cases use all cores."""
    if devices[0].name == "cpu":
        return 1
    limits = [MOST, int((machine.cores or 1) * SHARE_OF_CORES) // len(devices)]
    limits += [one.usable_bytes // GPU_BYTES for one in devices if one.usable_bytes is not None]
    if machine.memory is not None:
        limits.append(machine.memory // HOST_BYTES // len(devices))
    return max(1, min(limits))


def compile_settings(processes: int, machine: Machine) -> Mapping[str, str]:
    """Return variables for `processes` processes: inductor would start as many compilers as there are cores in each."""
    if processes < 2 or COMPILE_THREADS in os.environ:
        return {}
    return {COMPILE_THREADS: str(max(1, (machine.cores or 1) // processes))}


def shares(cases: Sequence[dict[str, Any]], processes: int) -> list[tuple[dict[str, Any], ...]]:
    """Return the cases of each process, of about equal duration; slow cases come first where there are many processes.

    Otherwise every process keeps the order of the plan, so that a short budget covers all backends.
    """
    slow = [case for case in cases if domain(case["backend"]).slow] if processes >= MANY else []
    made: list[list[dict[str, Any]]] = [[] for _ in range(processes)]
    loads = [0] * processes
    even = (len(cases) + (SLOW_WEIGHT - 1) * len(slow)) / processes
    for number, case in enumerate(slow):
        place = number % max(1, round(SLOW_WEIGHT * len(slow) / even))
        made[place].append(case)
        loads[place] += SLOW_WEIGHT
    for case in cases:
        if not slow or not domain(case["backend"]).slow:
            place = loads.index(min(loads))
            made[place].append(case)
            loads[place] += 1
    return [tuple(part) for part in made]
