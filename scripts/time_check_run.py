#!/usr/bin/env python3
"""How long `check --run` takes on this machine, split into start, import, CUDA context and cases.

    python3 scripts/time_check_run.py [--python PATH] [--repeat N] [--trace]

First the floor: starting the interpreter, importing torch, making the context, each in a process of its own. Then
`attn-doctor check` for the example models. The promise is: cases and everything else within 3 s beyond import and
context. `--trace` also prints when each step of the kernels began.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

MODELS = ROOT / "examples" / "models"
JOBS = {
    "Llama-3-8B": ["--model", str(MODELS / "llama-3-8b.json")],
    "DeepSeek-V3": ["--model", str(MODELS / "deepseek-v3.json"), "--set", "workload.seq_len_q=4096"],
    "interleaved GQA": ["--model", str(MODELS / "llama-3-8b.json"), "--set", "workload.qkv_interleaved=true"],
}
FLOOR = """
import time, json
began = time.perf_counter()
import torch
imported = time.perf_counter()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.zeros(1, device=device)
if device == "cuda": torch.cuda.synchronize()
print(json.dumps({"import": imported - began, "context": time.perf_counter() - imported, "device": device}))
"""


def floor(python: str) -> dict[str, float]:
    """Seconds to start the interpreter, to import torch and to make the context."""
    began = time.perf_counter()
    subprocess.run([python, "-c", ""], check=True)
    bare = time.perf_counter() - began
    told = json.loads(subprocess.run([python, "-c", FLOOR], check=True, stdout=subprocess.PIPE).stdout)
    return {"start": bare, **told}


def check(python: str, options: list[str]) -> tuple[float, dict[str, object]]:
    """Wall seconds of one check and its report."""
    command = [sys.executable, "-m", "doctor", "check", "--run", "--python", python, "--format", "json", *options]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    return time.perf_counter() - began, json.loads(done.stdout)


def row(name: str, wall: float, report: dict[str, object]) -> str:
    """One line of the table; `beyond` is all but importing and the context."""
    timing = report["timing"]
    assert isinstance(timing, dict)
    parts = {stage: timing.get(f"kernels.{stage}", 0.0) for stage in ("start", "import", "context", "case")}
    beyond = wall - parts["import"] - parts["context"]
    told = ", ".join(f"{run['kernel']} {run['verdict']}" for run in report["runs"])  # type: ignore[attr-defined]
    numbers = " ".join(f"{parts[stage]:8.2f}" for stage in parts)
    return f"{name:16} {wall:6.2f} {numbers} {beyond:7.2f}   {told or 'no kernel was run'}"


def trace(python: str, report: dict[str, object]) -> None:
    """When each step of the job's kernels began, in seconds from the start of their process."""
    from doctor.assets import kernels_dir
    from doctor.process import Process
    from doctor.target import run_program

    class Told(Process):
        def _record(self, line: bytes) -> None:
            super()._record(line)
            print(f"    {time.monotonic() - began:7.3f}  {self.case}  {line[:110].decode('utf-8', 'replace')}")

    import doctor.target

    began = time.monotonic()
    runs = report["runs"]
    assert isinstance(runs, list)
    cases = [{"kernel": run["kernel"], "request": run["request"]} for run in runs]
    doctor.target.Process, kept = Told, doctor.target.Process  # type: ignore[misc]
    try:
        programs = [kernels_dir() / f"{run['kernel']}.py" for run in runs]
        run_program(python, "several", cases, timeout=120, beside=programs)
    finally:
        doctor.target.Process = kept  # type: ignore[misc]


def main() -> None:
    """Print the floor and the table."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--python", default=sys.executable)
    made.add_argument("--repeat", type=int, default=3)
    made.add_argument("--trace", action="store_true")
    options = made.parse_args()
    for _ in range(2):
        print("floor:", {key: value if isinstance(value, str) else round(value, 3)
                         for key, value in floor(options.python).items()})  # fmt: skip
    print(f"{'seconds':16} {'wall':>6} {'start':>8} {'import':>8} {'context':>8} {'cases':>8} {'beyond':>7}")
    for name, arguments in JOBS.items():
        for _ in range(options.repeat):
            wall, report = check(options.python, arguments)
            print(row(name, wall, report), flush=True)
        for run in report["runs"]:  # type: ignore[attr-defined]
            print(f"    {run['kernel']}: {run['reason']}")
        if options.trace:
            trace(options.python, report)


if __name__ == "__main__":
    main()
