#!/usr/bin/env python3
"""Query an installed torch which SDPA backend runs for many random workloads, on a real GPU.

For each workload: `torch._fused_sdp_choice` (the default's own choice), the kernel that really ran by
default (profiler), and a forced run of each backend, forward and, in training, backward.
One JSON line per workload in the form that `scripts/oracles/score_backends.py` reads.

    python scripts/oracles/ask_sdpa.py --count 400 --seed 1 --output answers.jsonl
"""

import argparse
import json
import os
import random
import warnings
from pathlib import Path

FAMILIES = (
    ("cudnn", "sdpa.cudnn"),
    ("fmha_cutlass", "sdpa.efficient"),
    ("flash", "sdpa.flash"),
    ("AttentionKernel", "sdpa.efficient"),
)


def draw(rng):
    """One random workload."""
    head_dim = rng.choice([32, 40, 64, 64, 72, 80, 96, 100, 128, 128, 128, 160, 192, 224, 256, 264, 36])
    heads = rng.choice([4, 8, 16])
    kv_heads = rng.choice([heads, heads, heads, heads // 4])
    q = rng.choice([1, 64, 65, 128, 200, 512, 1000, 1024])
    kv = q if rng.random() < 0.7 else rng.choice([64, 128, 130, 512, 1024])
    mask = rng.choice(["no_mask", "causal", "causal", "causal", "arbitrary", "arbitrary", "causal_bottom_right"])
    workload = {
        "framework": "torch_sdpa",
        "dtype": rng.choice(["bfloat16", "bfloat16", "float16", "float32"]),
        "batch_size": rng.choice([1, 2, 4]),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim_qk": head_dim,
        "head_dim_v": 128 if head_dim == 192 and rng.random() < 0.5 else head_dim,
        "seq_len_q": q,
        "seq_len_kv": kv,
        "mask": mask,
        "dropout": rng.choice([0.0, 0.0, 0.0, 0.1]),
        "training": rng.random() < 0.7,
        "deterministic": rng.random() < 0.1,
        "enable_gqa": kv_heads != heads,
    }
    if mask == "arbitrary":
        workload["mask_dtype"] = rng.choice(["boolean", "float"])
    return workload


def main():
    """Draw, query, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="answers.jsonl")
    args = parser.parse_args()
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    warnings.simplefilter("ignore")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else deterministic math attention is refused
    names = {
        "sdpa.flash": SDPBackend.FLASH_ATTENTION,
        "sdpa.efficient": SDPBackend.EFFICIENT_ATTENTION,
        "sdpa.cudnn": SDPBackend.CUDNN_ATTENTION,
        "sdpa.math": SDPBackend.MATH,
    }
    by_value = {int(value.value): name for name, value in names.items()}
    major, minor = torch.cuda.get_device_capability()
    cudnn = torch.backends.cudnn.version()
    facts = {
        "torch.version": torch.__version__.split("+")[0],
        "torch.cuda": torch.version.cuda,
        "gpu.sm": "%d.%d" % (major, minor),
        "cudnn.version": "%d.%d.%d" % (cudnn // 10000, cudnn // 100 % 100, cudnn % 100),
    }
    for name in ("TORCH_CUDNN_SDPA_DEPRIORITIZED",):
        if name in os.environ:
            facts["env." + name] = os.environ[name]
    rng = random.Random(args.seed)

    def call(w, q, k, v, bias, enable_gqa):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=w["dropout"], is_causal=w["mask"] == "causal", enable_gqa=enable_gqa
        )

    with Path(args.output).open("w") as output:
        for index in range(args.count):
            w = draw(rng)
            dtype = getattr(torch, w["dtype"])

            def make(heads, length, width, dtype=dtype, w=w):
                shape = (w["batch_size"], heads, length, width)
                return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=w["training"])

            q = make(w["num_heads"], w["seq_len_q"], w["head_dim_qk"])
            k = make(w["num_kv_heads"], w["seq_len_kv"], w["head_dim_qk"])
            v = make(w["num_kv_heads"], w["seq_len_kv"], w["head_dim_v"])
            bias = None
            if w["mask"] == "arbitrary":
                bias = torch.ones(w["seq_len_q"], w["seq_len_kv"], dtype=torch.bool, device="cuda")
                if w["mask_dtype"] == "float":
                    bias = torch.zeros(w["seq_len_q"], w["seq_len_kv"], dtype=dtype, device="cuda")
            elif w["mask"] == "causal_bottom_right":
                bias = causal_lower_right(w["seq_len_q"], w["seq_len_kv"])
            torch.use_deterministic_algorithms(w["deterministic"])
            expect = {"available": {}, "log": {}}
            for name, backend in names.items():
                try:
                    with sdpa_kernel([backend]):
                        out = call(w, q, k, v, bias, w["enable_gqa"])
                        if w["training"]:
                            out.sum().backward()
                        torch.cuda.synchronize()
                    expect["available"][name] = True
                except Exception as problem:
                    expect["available"][name] = False
                    expect["log"][name] = str(problem)[:200]
                q.grad = k.grad = v.grad = None
            if not isinstance(bias, torch.Tensor) or type(bias) is torch.Tensor:
                try:
                    choice = torch._fused_sdp_choice(
                        q,
                        k,
                        v,
                        attn_mask=bias,
                        dropout_p=w["dropout"],
                        is_causal=w["mask"] == "causal",
                        enable_gqa=w["enable_gqa"],
                    )
                    expect["choice"] = by_value.get(int(choice), str(choice))
                except Exception as problem:
                    expect["choice_error"] = str(problem)[:200]
            try:
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                    call(w, q, k, v, bias, w["enable_gqa"])
                    torch.cuda.synchronize()
                kernels = [event.key for event in profile.key_averages()]
                ran = next((name for word, name in FAMILIES for kernel in kernels if word in kernel), "sdpa.math")
                expect["kernels"] = [kernel[:80] for kernel in kernels][:4]
                expect["ran"] = ran
            except Exception as problem:
                expect["error"] = str(problem)[:200]
                expect["ran"] = None
            expect["selected"] = expect.get("ran")
            output.write(
                json.dumps({"id": str(index), "group": "h200", "facts": facts, "workload": w, "expect": expect}) + "\n"
            )


if __name__ == "__main__":
    main()
