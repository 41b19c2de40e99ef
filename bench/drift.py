"""Time and memory of `attn-doctor drift` on an environment of large packages.

    python bench/drift.py [--cache /tmp/drift/src] [--jobs 2] [--compare]

Packages come from pip (`pip download --no-deps`) and are laid out in one folder. Limits: 12 s cold on two cores,
0.5 s from the cache, 600 MB in each process. On a busy machine the processor time divided by the cores counts.

`--compare` also runs mypy, pyright and basedpyright, as far as they are on the PATH, on the files of incident A
(TransformerEngine 1.13 with flash-attn 2.6.3, which broke; and 2.0, which is right) and prints time and diagnostics.
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


#: TransformerEngine omits `softcap` in 1.13 and passes it in 2.0.
INCIDENT = (("1.13", "broken"), ("2.0", "right"))
CHECKERS = {
    "mypy": ["mypy", "--check-untyped-defs", "--ignore-missing-imports", "--follow-imports=silent", "--no-incremental"],
    "pyright": ["pyright"],
    "basedpyright": ["basedpyright"],
}


def compare(cache: Path) -> None:
    """Print what type checkers and the analyzer say of the same files, with the time they need."""
    for version, truth in INCIDENT:
        with tempfile.TemporaryDirectory() as scratch:
            site = Path(scratch) / "site-packages"
            for name, release in (("transformer-engine", version), ("flash-attn", "2.6.3")):
                shutil.copytree(fetch_release(name, release, cache), site, dirs_exist_ok=True)
            files = [
                str(path.relative_to(site)) for path in sorted((site / "transformer_engine" / "pytorch").rglob("*.py"))
                if b"flash_attn" in path.read_bytes()
            ]  # fmt: skip
            drift = [sys.executable, "-m", "doctor", "drift", "--site-packages", str(site), "--no-cache", "--jobs", "1"]
            commands = {"attn-doctor drift": [*drift, "--format", "text"]}
            commands |= {name: [*line, *files] for name, line in CHECKERS.items() if shutil.which(line[0])}
            for name, command in commands.items():
                folder = ROOT if name.startswith("attn") else site
                started = time.perf_counter()
                ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
                took = time.perf_counter() - started
                lines = [line for line in ended.stdout.splitlines() if "error" in line or "warning[" in line]
                hits = sum("softcap" in line for line in lines)
                print(
                    f"TransformerEngine {version} ({truth}), {len(files)} files: {name}: {took:.1f} s, "
                    f"{len(lines)} diagnostics, {hits} of them name softcap"
                )


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
    options.add_argument("--compare", action="store_true")
    chosen = options.parse_args()
    if chosen.compare:
        compare(chosen.cache)
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
