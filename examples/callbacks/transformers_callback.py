"""A `TrainerCallback` that stops a run whose attention cannot work, before its first step.

trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[AttentionCheck()])
"""

from __future__ import annotations

import sys
from typing import Any

from transformers import TrainerCallback

from doctor import diagnose_ranks, render


class AttentionCheck(TrainerCallback):
    """Diagnoses the model that is about to be trained; every rank takes part, rank 0 prints."""

    def __init__(self, *, stop: bool = True, run: bool = False) -> None:
        self.stop = stop  # end the run at an error; otherwise say so and go on
        self.run = run  # also run small kernels on the GPU, in processes of their own

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        workload = {"framework": "transformers", "dtype": _dtype(args), "batch_size": args.per_device_train_batch_size}
        implementation = getattr(model.config, "_attn_implementation", None)
        if implementation:
            workload["attn_implementation"] = implementation
        report = diagnose_ranks(model.config, workload=workload, run=self.run)
        if not report.findings:
            return
        if state.is_world_process_zero:
            print(render(report), file=sys.stderr)
        if self.stop and any(finding.severity == "error" for finding in report.findings):
            raise RuntimeError(f"attention will not work here: {report.findings[0].message}")


def _dtype(args: Any) -> str:
    if args.bf16:
        return "bfloat16"
    return "float16" if args.fp16 else "float32"
