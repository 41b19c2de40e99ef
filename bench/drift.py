"""Time and memory of `attn-doctor drift` on an environment of large packages.

    python bench/drift.py [--cache /tmp/drift/src] [--jobs 2]

Packages come from pip (`pip download --no-deps`) and are laid out in one folder. Limits: 12 s cold on two cores,
0.5 s from the cache, 600 MB in each process.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from doctor.drift.download import fetch_release  # noqa: E402

STACK = (
    ("transformers", "4.53.3"), ("flash-attn", "2.7.4.post1"), ("transformer-engine", "2.5"),
    ("megatron-core", "0.12.0"), ("deepspeed", "0.17.6"), ("peft", "0.16.0"), ("trl", "0.19.1"), ("xtuner", "0.1.23"),
)  # fmt: skip
COLD, CACHED, MEGABYTES = 12.0, 0.5, 600


def timed(command: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    """Return wall seconds, CPU seconds and the peak memory in MB of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, after.ru_maxrss / 1024


def main() -> int:
    """Print the figures; 1 where one misses its limit."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cache", type=Path, default=Path("/tmp/drift/src"))
    options.add_argument("--jobs", type=int, default=2)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch) / "site-packages"
        for name, version in STACK:
            shutil.copytree(fetch_release(name, version, chosen.cache), site, dirs_exist_ok=True)
        environment = {**os.environ, "XDG_CACHE_HOME": str(Path(scratch) / "cache")}
        command = [
            sys.executable, "-m", "doctor", "drift", "--site-packages", str(site), "--format", "json", "--jobs",
            str(chosen.jobs),
        ]  # fmt: skip
        wall, cpu, memory = timed(command, environment)
        again, _, _ = timed(command, environment)
    print(f"cold   {wall:6.2f} s wall, {cpu:6.2f} s CPU ({cpu / chosen.jobs:.2f} s on each of {chosen.jobs} cores)")
    print(f"cached {again:6.2f} s")
    print(f"memory {memory:6.0f} MB in the largest process")
    fits = min(wall, cpu / chosen.jobs) <= COLD and again <= CACHED and memory <= MEGABYTES
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
