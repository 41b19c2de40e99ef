#!/usr/bin/env python3
"""How long `check --run` takes on this machine, and what the time goes to.

    python3 scripts/gpu/time_check_run.py [--python PATH] [--job NAME ...] [--repeat N] [--json FILE] [--trace]
                                          [--limit S]

First the floor, each in a process of its own: starting the interpreter, importing torch, making the context, importing
the libraries. Then `attn-doctor check` for the jobs whose library is installed. The promise: all that is neither the
import of torch nor the CUDA context takes 3 s at most; `beyond` is that, and `of it library` what the import of
TransformerEngine or flash-attn has in it. With `--limit`, the exit code says whether it held in every run but a job's
first, which reads files that no one has read since the machine started. `--trace` prints when each step began.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time
from typing import Any
from unittest import mock

from doctor.runner import run as run_module
from doctor.runner.process import KernelProcess

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

MODELS = ROOT / "examples" / "models"
LLAMA = ["--model", str(MODELS / "llama-3-8b.json")]
DEEPSEEK = ["--model", str(MODELS / "deepseek-v3.json"), "--set", "workload.seq_len_q=4096"]
INTERLEAVED = ["--set", "workload.qkv_interleaved=true"]
TE = ["--set", "workload.framework=transformer_engine"]
FLASH = ["--set", "workload.framework=flash_attn"]
#: Name → (the library it needs next to torch, options of `check`).
JOBS: dict[str, tuple[str | None, list[str]]] = {
    "llama": (None, LLAMA),
    "deepseek": (None, DEEPSEEK),
    "interleaved": (None, LLAMA + INTERLEAVED),
    "te-llama": ("transformer_engine", LLAMA + TE),
    "te-deepseek": ("transformer_engine", DEEPSEEK + TE),
    "te-interleaved": ("transformer_engine", LLAMA + INTERLEAVED + TE),
    "flash-llama": ("flash_attn", LLAMA + FLASH),
    # Its views of one projection go through every backend here.
    "flash-interleaved": ("flash_attn", LLAMA + INTERLEAVED + FLASH),
}
IMPORTS = {"transformer_engine": "transformer_engine.pytorch", "flash_attn": "flash_attn"}
FLOOR = """
import importlib, importlib.util, json, time
began = time.perf_counter()
import torch
told = {"import": time.perf_counter() - began}
began = time.perf_counter()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.zeros(1, device=device)
if device == "cuda": torch.cuda.synchronize()
told.update(context=time.perf_counter() - began, device=device, torch=torch.__version__, libraries={})
for name, module in %r.items():
    if importlib.util.find_spec(name) is None: continue
    began = time.perf_counter()
    try: importlib.import_module(module)
    except BaseException as error: told["libraries"][name] = "%%s: %%s" %% (type(error).__name__, str(error)[:200])
    else: told["libraries"][name] = time.perf_counter() - began
print("\\n" + json.dumps(told))
"""


def floor(python: str) -> dict[str, Any]:
    """Seconds to start the interpreter, to import torch, to make the context, and to import each library behind it."""
    began = time.perf_counter()
    subprocess.run([python, "-c", ""], check=True)
    bare = time.perf_counter() - began
    done = subprocess.run([python, "-c", FLOOR % IMPORTS], check=True, stdout=subprocess.PIPE)
    return {"start": bare, **json.loads(done.stdout.decode().strip().rsplit("\n", 1)[-1])}


def check(python: str, options: list[str]) -> tuple[float, dict[str, Any]]:
    """Wall seconds of one check and its report."""
    command = [sys.executable, "-m", "doctor", "check", "--run", "--python", python, "--format", "json", *options]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    wall = time.perf_counter() - began
    if done.returncode > 1:
        raise SystemExit(f"`{' '.join(command)}` ended with {done.returncode}")
    return wall, json.loads(done.stdout)


def split(job: str, wall: float, report: dict[str, Any]) -> dict[str, Any]:
    """One run as a flat record; the rest is the doctor's own."""
    timing: dict[str, float] = report["timing"]
    stages = {stage: timing.get(f"kernels.{stage}", 0.0) for stage in ("start", "import", "library", "context", "case")}
    # Torch is imported while the doctor reads the facts: its own time is that of its stages, and not the rest.
    own = sum(timing.get(stage, 0.0) for stage in ("rules", "facts", "evaluate", "fixes"))
    return {
        "job": job,
        "wall": round(wall, 3),
        **stages,
        "doctor": round(own, 3),
        "beyond": round(wall - stages["import"] - stages["context"], 3),
        "total": timing.get("total"),
        "runs": [f"{run['kernel']} {run['verdict']}" for run in report["runs"]],
        "reasons": [run["reason"] for run in report["runs"]],
    }


HEAD = ("job", "wall", "start", "import", "library", "context", "case", "doctor", "beyond")


def row(record: dict[str, Any]) -> str:
    """One line of the table."""
    numbers = " ".join(f"{record[name]:7.2f}" for name in HEAD[1:])
    return f"{record['job']:18} {numbers}   {', '.join(record['runs']) or 'no kernel was run'}"


def trace(python: str, report: dict[str, Any]) -> list[dict[str, Any]]:
    """When each step of the job's kernels began, in seconds from the start of their process, by the process's clock."""
    steps: list[dict[str, Any]] = []

    class Recording(KernelProcess):
        def _record(self, line: bytes) -> None:
            super()._record(line)
            if b'"contract"' not in line:
                return
            record = json.loads(line)
            what = record.get("progress", {}).get("step") or f"answered: {record.get('outcome')}"
            steps.append({"at": round(record.get("at", time.monotonic()) - began, 3), "case": self.case, "step": what})

    runs = report["runs"]
    cases = [{"kernel": run["kernel"], "request": run["request"]} for run in runs]
    began = time.monotonic()
    with mock.patch.object(run_module, "KernelProcess", Recording):
        run_module.run_program(python, "dispatch", cases, timeout=120)
    return [*steps, {"at": round(time.monotonic() - began, 3), "case": None, "step": "process ended"}]


def main() -> int:
    """Print the floor and the table, write the records."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--python", default=sys.executable, help="the interpreter that has torch")
    made.add_argument("--job", action="append", choices=list(JOBS), help="this job; repeat for several (default: all)")
    made.add_argument("--repeat", type=int, default=3, help="runs of each job")
    made.add_argument("--json", metavar="FILE", help="write every run there, `-` for standard output")
    made.add_argument("--trace", action="store_true", help="also when each step began")
    made.add_argument("--limit", type=float, metavar="S", help="exit 1 if `beyond` less `library` is more in a run")
    options = made.parse_args()
    say = sys.stderr if options.json == "-" else sys.stdout
    least = floor(options.python)
    told: dict[str, Any] = {"floor": [least, floor(options.python)], "runs": [], "traces": {}, "skipped": {}}
    for one in told["floor"]:
        print("floor:", json.dumps(one), file=say)
    print(f"{HEAD[0]:18} " + " ".join(f"{name:>7}" for name in HEAD[1:]), file=say)
    late = []
    for name in options.job or JOBS:
        library, arguments = JOBS[name]
        if library is not None and library not in least["libraries"]:
            told["skipped"][name] = f"{library} is not installed"
            print(f"{name:18} {library} is not installed", file=say)
            continue
        report: dict[str, Any] = {"runs": []}
        for number in range(options.repeat):
            wall, report = check(options.python, arguments)
            record = split(name, wall, report)
            told["runs"].append(record)
            print(row(record), file=say, flush=True)
            if number and options.limit is not None and record["beyond"] - record["library"] > options.limit:
                late.append(f"{name}: {record['beyond'] - record['library']:.2f} s")
        for run in report["runs"]:
            print(f"    {run['kernel']}: {run['reason']}", file=say)
        if options.trace and report["runs"]:
            told["traces"][name] = trace(options.python, report)
            for step in told["traces"][name]:
                print(f"    {step['at']:7.3f}  {step['step']}", file=say)
    if options.json == "-":
        print(json.dumps(told, indent=1))
    elif options.json:
        pathlib.Path(options.json).write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    if late:
        print(f"beyond {options.limit:g} s: {', '.join(late)}", file=say)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
