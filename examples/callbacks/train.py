"""A plain training script under `torchrun`: every rank diagnoses its own environment before anything is built.

torchrun --nproc-per-node 2 examples/callbacks/train.py examples/models/llama-3-8b.json
"""

from __future__ import annotations

import sys

import torch
import torch.distributed

from doctor import diagnose_ranks, render


def main() -> int:
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    report = diagnose_ranks(sys.argv[1], workload={"framework": "torch_sdpa", "dtype": "bfloat16"})
    if torch.distributed.get_rank() == 0:
        print(render(report))
    bad = torch.tensor(int(any(finding.severity == "error" for finding in report.findings)))
    if torch.cuda.is_available():
        bad = bad.cuda()
    torch.distributed.all_reduce(bad)  # all ranks end together
    torch.distributed.destroy_process_group()
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
