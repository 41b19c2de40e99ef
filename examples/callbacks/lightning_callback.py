"""A Lightning `Callback` that stops a run whose attention cannot work, before its first step.

trainer = Trainer(callbacks=[AttentionCheck({"head_dim_qk": 128, "num_heads": 32, "mask": "causal"})])
"""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import Callback

from doctor import diagnose_ranks, render

_DTYPES = {"bf16": "bfloat16", "16": "float16", "32": "float32"}


class AttentionCheck(Callback):
    """Diagnoses the workload it is given, or the Hugging Face config of the module's `model`."""

    def __init__(self, workload: dict[str, Any] | None = None, *, stop: bool = True, run: bool = False) -> None:
        self.workload = workload or {}
        self.stop = stop  # end the run at an error; otherwise say so and go on
        self.run = run  # also run small kernels on the GPU, in processes of their own

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        config = getattr(getattr(pl_module, "model", None), "config", None)
        precision = str(trainer.precision).partition("-")[0]
        workload = {"dtype": _DTYPES.get(precision, "float32"), **self.workload}
        report = diagnose_ranks(config if hasattr(config, "to_dict") else None, workload=workload, run=self.run)
        if not report.findings:
            return
        if trainer.is_global_zero:
            print(render(report), file=sys.stderr)
        if self.stop and any(finding.severity == "error" for finding in report.findings):
            raise RuntimeError(f"attention will not work here: {report.findings[0].message}")
