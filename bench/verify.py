"""Fixes installed for real: each case's recommended fix goes through `fix --verify` on this machine.

    python bench/verify.py [--only NAME …] [--timeout SECONDS] [--json FILE]

Needs the network, uv or pip, Python 3.11, and about 30 GB for the packages of a few torch releases (uv links them).
What needs a CUDA compiler or a GPU is reported as not proven. Nothing of an environment is left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _harness import DOCTOR, ROOT, arguments, run, write_json

BASE = {"python.version": "3.11.7", "platform.system": "Linux", "platform.machine": "x86_64", "platform.glibc": "2.35"}
A100 = {"gpu.sm": "8.0", "gpu.name": "NVIDIA A100-SXM4-80GB", "driver.version": "580.65.06"}
QWEN = {"framework": "xtuner", "model_type": "qwen2", "use_varlen_attn": False, "pack_to_max_length": False}

#: Name → (facts, workload): what is broken, as a user would have it installed.
CASES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "xtuner beside transformers 4.44": (
        {"torch.version": "2.4.0", "xtuner.version": "0.1.23", "transformers.version": "4.44.2",
         "accelerate.version": "0.33.0", "peft.version": "0.12.0", "datasets.version": "2.21.0",
         "flash-attn.version": "2.6.3", **A100}, QWEN),
    "xtuner 0.2 beside transformers 4.44": (
        {"torch.version": "2.4.0", "xtuner.version": "0.2.0", "transformers.version": "4.44.2", **A100}, QWEN),
    "xtuner beside transformers 4.38": (
        {"torch.version": "2.4.0", "xtuner.version": "0.1.23", "transformers.version": "4.38.2",
         "flash-attn.version": "2.6.3", **A100}, QWEN),
    "deepspeed beside torch 2.4": (
        {"torch.version": "2.4.0", "deepspeed.version": "0.14.2", "transformers.version": "4.44.2", **A100}, {}),
    "xformers beside another torch": (
        {"torch.version": "2.8.0", "xformers.version": "0.0.35", **A100}, {"framework": "xformers"}),
    "megatron-core beside torch 2.5": (
        {"torch.version": "2.5.1", "megatron-core.version": "0.16.0", **A100}, {"framework": "megatron"}),
    "transformers 5 beside torch 2.5": (
        {"torch.version": "2.5.1", "transformers.version": "5.20.0", "accelerate.version": "1.12.0", **A100},
        {"framework": "transformers"}),
    "torch 2.6 on an RTX 5090": (
        {"torch.version": "2.6.0", "torchvision.version": "0.21.0", "torchaudio.version": "2.6.0",
         "gpu.sm": "12.0", "gpu.name": "NVIDIA GeForce RTX 5090", "driver.version": "580.65.06"},
        {"framework": "torch_sdpa"}),
    "torch 2.7 for CUDA 12.6 on a B200": (
        {"torch.version": "2.7.1", "torch.cuda": "12.6", "triton.version": "3.3.1", "gpu.sm": "10.0",
         "gpu.name": "NVIDIA B200", "driver.version": "580.65.06"}, {"framework": "torch_sdpa"}),
    "a driver too old for CUDA 13": (
        {"torch.version": "2.11.0", "torch.cuda": "13.0", "gpu.sm": "9.0", "driver.version": "570.86.10"},
        {"framework": "torch_sdpa"}),
    "a stray nvidia-cudnn-cu13": (
        {"torch.version": "2.8.0", "torch.cuda": "12.8", "nvidia-cudnn-cu12.version": "9.10.2.21",
         "nvidia-cudnn-cu13.version": "9.19.0.56", **A100}, {"framework": "torch_sdpa"}),
    "transformers 4.52 asked for flash_attention_3": (
        {"torch.version": "2.8.0", "transformers.version": "4.52.4", "tokenizers.version": "0.21.1",
         "gpu.sm": "9.0", "driver.version": "580.65.06"},
        {"framework": "transformers", "attn_implementation": "flash_attention_3"}),
    "transformers 4.35 asked for sdpa": (
        {"torch.version": "2.4.0", "transformers.version": "4.35.2", "tokenizers.version": "0.15.0",
         "huggingface-hub.version": "0.19.4", **A100},
        {"framework": "transformers", "attn_implementation": "sdpa"}),
    "TransformerEngine 1.13 beside flash-attn 2.6": (
        {"torch.version": "2.4.1", "transformer-engine.version": "1.13.0", "transformer-engine-cu12.version": "1.13.0",
         "transformer-engine-torch.version": "1.13.0", "flash-attn.version": "2.6.3", "megatron-core.version": "0.9.0",
         **A100, "gpu.count": 8},
        {"framework": "megatron", "dtype": "bfloat16", "cp_size": 2, "cp_comm_type": "p2p", "training": True,
         "head_dim_qk": 128, "head_dim_v": 128, "num_heads": 32, "num_kv_heads": 32, "seq_len_q": 4096,
         "mask": "causal", "qkv_layout": "sbhd_sbhd_sbhd"}),
    "ring-flash-attn before 0.1.3": (
        {"torch.version": "2.8.0", "ring-flash-attn.version": "0.1.2", "flash-attn.version": "2.7.4.post1", **A100},
        {"framework": "flash_attn"}),
}  # fmt: skip


def main() -> int:
    """Print the table; 1 if a step of a proof says no."""
    options = _options()
    results = []
    for name, (facts, workload) in CASES.items():
        if options.only and name not in options.only:
            continue
        result = verify(name, facts, workload, options.timeout)
        results.append(result)
        print(_line(result), flush=True)
    proven = [result for result in results if result["outcome"].get("installs") == "yes"]
    silent = [result for result in proven if result["outcome"].get("check") == "yes"]
    print(f"{len(results)} cases, {len(proven)} installed, {len(silent)} of them silent")
    write_json(options.json, results)
    return int(any("no" in result["outcome"].values() for result in results))


def verify(name: str, facts: Mapping[str, Any], workload: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """One case through the command line."""
    content = {"facts": {**BASE, **facts}, "workload": dict(workload)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "facts.json"
        path.write_text(json.dumps(content))
        command = [*DOCTOR, "fix", "--facts", str(path), "--verify", "--format", "json",
                   "--proof-timeout", f"{timeout:g}"]  # fmt: skip
        done, took = run(command, Path(folder), cwd=ROOT, env=os.environ)  # with the user's package caches
    result: dict[str, Any] = {"case": name, "seconds": round(took.wall, 1), "exit": done.returncode,
                              "fix": None, "outcome": {}, "steps": []}  # fmt: skip
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return {**result, "problem": done.stderr.strip()[-400:]}
    result["errors"] = [item["id"] for item in report["findings"] if item["severity"] == "error"]
    proof = report.get("proof")
    if proof:
        result |= {"fix": proof["fix"], "steps": proof["steps"]}
        result["outcome"] = {step["name"]: step["outcome"] for step in proof["steps"]}
    return result


def _line(result: Mapping[str, Any]) -> str:
    lines = [f"{result['case']} ({', '.join(result.get('errors', ()))}; {result['seconds']:.0f} s)",
             f"    {result['fix'] or result.get('problem') or 'no fix that changes a package'}"]  # fmt: skip
    lines += [f"    {step['outcome']:8}{step['name']}: {step['reason']}" for step in result["steps"]]
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    made = arguments(__doc__)
    made.add_argument("--only", action="append", default=[], metavar="NAME", choices=list(CASES))
    made.add_argument("--timeout", type=float, default=1200, help="longest wait for one program")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
