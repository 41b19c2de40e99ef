"""Check jobs on real GPUs, each with one more word, and write down what ran: does the kernel get the word?

    python scripts/gpu/carried_words.py [--only TEXT] [--jobs N] [--output FILE]

Runs from a checkout with its own interpreter as the target; two GPUs for the cases with ranks. Prints a line per case,
and `NOT AS DESCRIBED` where something else ran than the case says; `FILE` gets a JSON line per case. Exit code 1 if any
case is not as described.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE: Mapping[str, Any] = {
    "framework": "torch_sdpa", "dtype": "bfloat16", "head_dim_qk": 128, "num_heads": 8, "num_kv_heads": 8,
    "batch_size": 2, "seq_len_q": 2048, "mask": "causal", "training": True,
}  # fmt: skip
RANKS = {"cp_size": 2}


class Case(NamedTuple):
    """A job, and what its run must show."""

    words: Mapping[str, Any]
    verdict: str | None = None  # of the kernel that runs the job; None: any that names no word
    ran: str | None = None  # the only backend
    named: tuple[str, ...] = ()  # words that did not reach the kernel
    confirms: str | None = None  # a rule

    @property
    def kernel(self) -> str:
        """The kernel that decides."""
        return "context_parallel" if "cp_size" in self.words else "sdpa"


def single() -> list[Case]:
    """Jobs on one GPU."""
    grouped = {"num_kv_heads": 2}
    cases = [Case({"sdpa_backend": name}, "healthy", name) for name in ("flash", "efficient", "cudnn", "math")]
    cases += [Case({}, "healthy"), Case({"training": False}, "healthy"), Case({"qkv_frozen": True}, "healthy")]
    cases += [
        Case({**grouped, "enable_gqa": False, "sdpa_backend": "efficient"}, "healthy", "efficient"),
        Case({**grouped, "enable_gqa": True, "sdpa_backend": "flash"}, "healthy", "flash"),
        Case({"dropout": 0.1, "sdpa_backend": "flash"}, "healthy", "flash"),
        Case({"dropout": 0.1, "sdpa_backend": "efficient"}, "healthy", "efficient"),
        Case({"dropout": 0.125}),
        Case({"deterministic": True, "sdpa_backend": "flash"}, "healthy", "flash"),
        Case({"deterministic": True, "sdpa_backend": "efficient"}),
        Case({"deterministic": True, "sdpa_backend": "cudnn"}),
        Case({"window": [255, 0], "sdpa_backend": "efficient"}, "healthy", "efficient"),
        Case({"mask": "arbitrary", "mask_dtype": "float", "sdpa_backend": "efficient"}, "healthy", "efficient"),
        Case({"mask": "arbitrary", "mask_dtype": "float32"}),
        Case({"mask": "arbitrary", "fully_masked_rows": True, "sdpa_backend": "efficient"}, None, "efficient"),
        Case({"mask": "arbitrary", "fully_masked_rows": True, "sdpa_backend": "cudnn"}, None, "cudnn"),
        Case({"mask": "padding_causal", "sdpa_backend": "efficient"}, "healthy", "efficient"),
        Case({"qkv_layout": "sbhd_sbhd_sbhd", "sdpa_backend": "cudnn"}, "healthy", "cudnn"),
        Case({"qkv_layout": "bs3hd", "sdpa_backend": "flash"}, "healthy", "flash"),
        Case({"qkv_interleaved": True, "sdpa_backend": "cudnn"}, None, "cudnn"),
        Case({"torch_compile": True}, "inconclusive", None, ("torch_compile",)),
        Case({"sdpa_backend": "flash", "packing": True}, "inconclusive", "flash", ("packing",)),
        Case({"sdpa_backend": "cudnn", "softcap": 30.0}, "inconclusive", "cudnn", ("softcap",)),
        Case({"qkv_layout": "thd_thd_thd"}, "inconclusive"),
    ]  # fmt: skip
    return cases


def over_ranks() -> list[Case]:
    """Jobs on two GPUs."""
    efficient = {**RANKS, "sdpa_backend": "efficient"}
    wrong = [{}, {"cp_comm_type": "a2a"}, {"dtype": "float16"}, {"qkv_layout": "bhsd_bhsd_bhsd"}, {"head_dim_qk": 64}]
    cases = [Case({**efficient, **more}, "failed", "efficient", (), "SDPA427") for more in wrong]
    cases += [Case({**RANKS, "sdpa_backend": name}, "healthy", name) for name in ("flash", "cudnn")]
    cases += [
        Case(RANKS, "healthy"),
        Case({**efficient, "num_kv_heads": 2, "enable_gqa": False}, "failed", "efficient", (), "SDPA427"),
        Case({**efficient, "dtype": "float32"}, "healthy", "efficient"),
        Case({**efficient, "mask": "no_mask"}, "healthy", "efficient"),
        Case({**efficient, "training": False}, "healthy", "efficient"),
        Case({**RANKS, "sdpa_backend": "flash", "deterministic": True}, "healthy", "flash"),
        Case({**RANKS, "sdpa_backend": "math"}),
        Case({**efficient, "torch_compile": True}, "inconclusive", "efficient", ("torch_compile",)),
        Case({**efficient, "cp_comm_type": "p2p"}, "inconclusive", "efficient", ("cp_comm_type",)),
    ]
    return cases


def check(case: Case) -> dict[str, Any]:
    """The report of `check` for this job, with its exit code and seconds."""
    command = [sys.executable, "-m", "doctor", "check", "--run", "--no-drift", "--python", sys.executable]
    for word, value in {**BASE, **case.words}.items():
        command += ["--set", f"workload.{word}={json.dumps(value) if not isinstance(value, str) else value}"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--format", "json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ,
    )
    report: dict[str, Any] = {"exit": done.returncode, "seconds": round(time.monotonic() - began, 1)}
    try:
        return {**json.loads(done.stdout), **report}
    except ValueError:
        return {**report, "problem": done.stderr[-2000:]}


def line_of(case: Case, report: Mapping[str, Any]) -> dict[str, Any]:
    """What counts of a report, for the capture."""
    runs = [_run(run) for run in report.get("runs", ())]
    findings = [
        {"id": found["id"], "severity": found["severity"], "message": found["message"],
         **{name: (found.get("confirmation") or {}).get(name) for name in ("verdict", "kernel", "reason")}}
        for found in report.get("findings", ())
    ]  # fmt: skip
    predicted = [
        {name: backend.get(name) for name in ("library", "selected", "could_tell", "fails_at_run")}
        for backend in report.get("backends", ())
    ]
    facts = {key: fact.get("value") for key, fact in report.get("facts", {}).items() if key in KEPT}
    line = {"words": {**BASE, **case.words}, "facts": facts, "exit": report["exit"], "seconds": report["seconds"]}
    line.update(predicted=predicted, findings=findings, runs=runs)
    return {**line, "problem": report["problem"]} if "problem" in report else line


OBSERVED = ("ran", "backend", "gqa", "shrunk", "not_carried", "wrong", "offenders", "ranks")
KEPT = ("torch.version", "torch.cuda", "cudnn.version", "gpu.sm", "gpu.name", "gpu.count", "driver.version")


def _run(run: Mapping[str, Any]) -> dict[str, Any]:
    observed = run["observed"]
    errors = {name: error.get("rel") for name, error in (observed.get("errors") or {}).items()}
    kept = {name: observed[name] for name in OBSERVED if name in observed}
    return {
        "kernel": run["kernel"], "verdict": run["verdict"], "outcome": run["outcome"], "reason": run["reason"],
        "request": run["request"], "errors": errors, **kept,
    }  # fmt: skip


def faults(case: Case, line: Mapping[str, Any]) -> list[str]:
    """What the line shows that the case does not describe."""
    run = next((run for run in line["runs"] if run["kernel"] == case.kernel), None)
    if run is None:
        return [f"`{case.kernel}` did not run: {line.get('problem')}"]
    found = []
    if case.verdict is not None and run["verdict"] != case.verdict:
        found.append(f"verdict {run['verdict']}, not {case.verdict}")
    if case.ran is not None and run.get("ran") != [case.ran]:
        found.append(f"ran {run.get('ran')}, not {case.ran}")
    if set(run.get("not_carried") or ()) != set(case.named):
        found.append(f"named {run.get('not_carried')}, not {list(case.named)}")
    confirmed = [item["id"] for item in line["findings"] if item["verdict"] == "confirmed"]
    if case.confirms is not None and case.confirms not in confirmed:
        found.append(f"{case.confirms} is not confirmed")
    return found


def main() -> int:
    """Run the cases; exit code 1 if one is not as described."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", default="", help="cases whose line contains this text")
    made.add_argument("--jobs", type=int, default=6, help="checks at once")
    made.add_argument("--output", type=pathlib.Path)
    options = made.parse_args()
    cases = [case for case in (*over_ranks(), *single()) if options.only in json.dumps(case.words)]
    bad = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for case, report in zip(cases, pool.map(check, cases), strict=True):
            line = line_of(case, report)
            wrong = faults(case, line)
            bad += bool(wrong)
            print(f"{'NOT AS DESCRIBED' if wrong else 'as described'}: {json.dumps(case.words)} {'; '.join(wrong)}")
            for run in line["runs"]:
                print(f"    {run['kernel']}: {run['verdict']} {run.get('ran')} {run['reason'][:240]}")
            for item in line["findings"]:
                print(f"    {item['id']} {item['severity']} {item['verdict']}: {item['message'][:160]}", flush=True)
            if options.output:
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, default=repr) + "\n")
    print(f"{len(cases)} cases, {bad} not as described")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
