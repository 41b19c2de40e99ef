"""Results of a sweep, made without torch: right ones with errors, refusals, a fault and a lost GPU."""

from __future__ import annotations

from doctor.runner.result import KernelOutcome, KernelResult
from doctor.stress.devices import Device
from doctor.stress.failures import Failure
from doctor.stress.plan import plan
from doctor.stress.sweep import SweepResult

BACKENDS = ("sdpa.math", "sdpa.flash")
EVIL = "<script>alert(1)</script>\"'--><img src=x onerror=alert(1)>"


def sweep_result(*, bad: bool = True, reached: int | None = None) -> SweepResult:
    """Return a result on one GPU; `reached`: how many of its cases were run."""
    planned = plan(BACKENDS, "cpu", 24)
    records = []
    for number, case in enumerate(planned.cases[:reached]):
        relative = 0.001 * (1 + number % 8)
        observed = {
            "verdict": "ok", "faults": [], "run_seconds": 0.002, "bytes": 2 << 20, "peak_bytes": 3 << 20,
            "errors": {"out": {"rel": relative, "row": 2 * relative, "nonfinite": 0}}, "bound": {"out": 0.01},
        }  # fmt: skip
        refused = case["backend"] == "sdpa.flash" and number % 5 == 0
        outcome = KernelOutcome.REFUSED if refused else KernelOutcome.RAN
        records.append(
            ("gpu-0", case, KernelResult(outcome, {} if refused else observed, "no flash" if refused else ""))
        )
    hello = {
        "torch": "2.11.0", "device": "cuda", "versions": {"cudnn": "9.19.0", "triton": None},
        "backends": {"sdpa.math": None, "sdpa.flash": None, "xformers": f"not installed {EVIL}"},
    }  # fmt: skip
    result = SweepResult(hello, planned, [Device("gpu-0", "GPU 0 (NVIDIA H200)")], records, notes=[EVIL])
    if bad:
        case, answer = records[0][1], records[0][2]
        result.failures.append(
            Failure(
                "sdpa.math",
                ("out", "dq"),
                case,
                f"wrong {EVIL}",
                answer,
                small=case,
                errors={"out": {"rel": 0.2, "row": 0.4, "nonfinite": 1}},
                script=f"import torch\n# {EVIL}",
                shown=True,
                rules=("SDPA001",),
            )
        )
        result.vanished.append(("GPU 1 (NVIDIA H200)", "CUDA error: unspecified launch failure"))
    return result
