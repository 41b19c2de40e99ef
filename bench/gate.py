"""How long a gate takes: a lock of 400 lines × 6 GPUs × 10 workloads, and twice and four times as many cases.

    python bench/gate.py [--rounds N] [--json FILE]

Wall clock of whole processes, start-up, reading, fixes and report included; the shortest of the rounds counts, as a
busy machine only ever adds to it, and the processor time is next to it. The goal is one second for the 60 cases of
either lock, and the same price for each further case.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from _harness import DOCTOR, arguments, run, write_json

GPUS = ("a100", "h100", "h200", "b200", "l40s", "rtx4090")
CASES = (60, 120, 240)
LINES = 400
GOAL = 1.0
STACK = {
    "torch": "2.6.0", "transformer-engine": "2.3.0", "transformer-engine-torch": "2.3.0", "flash-attn": "2.7.4.post1",
    "transformers": "4.52.4", "megatron-core": "0.12.0", "triton": "3.2.0", "nvidia-cudnn-cu12": "9.1.0.70",
    "nvidia-nccl-cu12": "2.21.5", "accelerate": "1.7.0", "deepspeed": "0.16.9", "peft": "0.15.2",
}  # fmt: skip


def main() -> int:
    """Measure, print a table, and return 1 if the goal is missed."""
    options = read_options()
    rows = []
    with tempfile.TemporaryDirectory(prefix="attn-doctor-gate-") as folder:
        work = Path(folder)
        jobs = workloads(work, max(CASES) // len(GPUS))
        locks = {"requirements.txt": requirements(work), "uv.lock": uv_lock(work)}
        for name, lock in locks.items():
            for cases in (len(GPUS), *CASES):
                rows.append(row(work, name, lock, jobs[: cases // len(GPUS)], options))
    print(f"{'lock':<18}{'cases':>6}{'lines':>7}{'wall':>10}{'processor':>12}{'each further case':>20}")
    for item in rows:
        print(
            f"{item['lock']:<18}{item['cases']:>6}{LINES:>7}{item['wall_ms']:>7.0f} ms{item['cpu_ms']:>9.0f} ms"
            + (f"{item['each_ms']:>17.2f} ms" if item["each_ms"] is not None else "")
        )
    late = [item["lock"] for item in rows if item["cases"] == CASES[0] and item["wall_ms"] > 1000 * GOAL]
    print(f"goal: {CASES[0]} cases in {GOAL:g} s; " + (f"missed by {', '.join(late)}" if late else "held"))
    write_json(options.json, {"rounds": options.rounds, "rows": rows})
    return 1 if late else 0


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--format", default="text", metavar="F", help="the format of the report")
    return parser.parse_args()


_LAST: dict[str, tuple[int, float]] = {}


def row(work: Path, name: str, lock: Path, jobs: list[Path], options: argparse.Namespace) -> dict[str, object]:
    """One line of the table; what each further case costs is the difference to the line before."""
    cases = len(jobs) * len(GPUS)
    wall, cpu = measure(command(lock, jobs, options.format), work, options.rounds)
    before = _LAST.get(name)
    _LAST[name] = cases, cpu
    each = None if before is None else round(1000 * (cpu - before[1]) / (cases - before[0]), 2)
    return {"lock": name, "cases": cases, "wall_ms": 1000 * wall, "cpu_ms": 1000 * cpu, "each_ms": each}


def command(lock: Path, jobs: list[Path], form: str) -> list[str]:
    """The gate of a project as CI runs it."""
    named = [part for job in jobs for part in ("--workload", str(job))]
    gpus = ["--gpu", ",".join(GPUS)]
    return [
        *DOCTOR, "check", "--requirements", str(lock), *gpus, *named, "--format", form,
    ]  # fmt: skip


def measure(gate: list[str], work: Path, rounds: int) -> tuple[float, float]:
    """(shortest wall clock, shortest processor time) of a whole process, in seconds."""
    times = []
    for number in range(rounds + 1):  # the first writes bytecode and caches
        done, took = run(gate, work, cwd=work)
        if done.returncode not in (0, 1):
            sys.exit(f"exit {done.returncode}: {done.stderr.strip()}")
        if number:
            times.append(took)
    return min(took.wall for took in times), min(took.processor for took in times)


def pins() -> list[tuple[str, str]]:
    """As many pins as a lock of `LINES` lines has room for: the attention stack among what else a project pulls in."""
    return [*STACK.items(), *((f"package-{number}", f"1.{number}.0") for number in range(LINES))]


def requirements(work: Path) -> Path:
    """A compiled requirements file: every line a pin."""
    path = work / "requirements.txt"
    path.write_text("".join(f"{name}=={version}\n" for name, version in pins()[:LINES]))
    return path


def uv_lock(work: Path) -> Path:
    """The same as uv writes it."""
    lines = ["version = 1", 'requires-python = ">=3.11, <3.12"']
    for name, version in pins():
        table = [
            "", "[[package]]", f'name = "{name}"', f'version = "{version}"',
            'source = { registry = "https://example.org/simple" }', "wheels = [",
            f'    {{ url = "https://example.org/{name}-{version}-py3-none-any.whl", hash = "sha256:{"0" * 64}" }},',
            "]",
        ]  # fmt: skip
        if len(lines) + len(table) > LINES:
            break
        lines += table
    path = work / "uv.lock"
    path.write_text("\n".join(lines) + "\n")
    return path


def workloads(work: Path, count: int) -> list[Path]:
    """Jobs that differ in model, library and length, as a team's configurations do."""
    shapes = [(128, 32, 32), (128, 32, 8), (64, 64, 8), (192, 128, 128), (256, 16, 8)]
    frameworks = ("megatron", "transformers", "transformer_engine", "torch_sdpa")
    made = []
    for number in range(count):
        head_dim, heads, groups = shapes[number % len(shapes)]
        job = {
            "framework": frameworks[number % len(frameworks)], "dtype": "bfloat16", "head_dim_qk": head_dim,
            "num_heads": heads, "num_kv_heads": groups, "seq_len_q": 2048 * (1 + number), "batch_size": 1,
            "mask": "causal", "training": True, "cp_size": 2 if number % 3 == 0 else 1,
        }  # fmt: skip
        if head_dim == 192:
            job["head_dim_v"] = 128
        path = work / f"job-{number}.json"
        path.write_text(json.dumps(job))
        made.append(path)
    return made


if __name__ == "__main__":
    sys.exit(main())
