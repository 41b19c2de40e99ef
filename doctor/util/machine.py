"""The machine that this runs on: cores and memory that this process may use, a container's limits included."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from .reading import regular_bytes


class Machine(NamedTuple):
    """What work may use; None means unknown."""

    cores: int | None = None
    memory: int | None = None  # bytes that are free


def this_machine() -> Machine:
    """Return the cores and the free memory that this process may use, a container's limits included."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and cores:
        cores = max(1, min(cores, int(quota[0]) // int(quota[1])))
    free = None
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = _read("/sys/fs/cgroup/memory.max").strip(), _read("/sys/fs/cgroup/memory.current").strip()
    if limit.isdigit() and used.isdigit():
        left = max(0, int(limit) - int(used))
        free = left if free is None else min(free, left)
    return Machine(cores, free)


def _read(path: str) -> str:
    try:
        return regular_bytes(Path(path), 1 << 20).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
