#!/usr/bin/env python3
"""Run vLLM's own FlashAttention 3 and FlashMLA kernels on a GPU, case by case, and record what each did.

    python3 scripts/gpu/vllm_kernels.py --sources vllm-0.22.1/ --output answers.jsonl
    python3 scripts/gpu/vllm_kernels.py --dry-run --output answers.jsonl

A dry run needs no GPU: the reference replaces the kernel.

`--sources` holds `vllm/vllm_flash_attn/` and, for FlashMLA, `vllm/_flashmla_C.abi3.so` with
`vllm/third_party/flashmla/`, as the wheel has them; nothing else of vLLM is imported. A line holds the workload and
what happened: `ran`, the relative error against float64, or the first line of the refusal.
`tests/rulebook/test_vllm_kernels.py` compares with the rules.
"""

import argparse
import itertools
import json
import random
import sys
import types
from pathlib import Path

LENGTHS = ((1, 777), (1, 64), (129, 500), (33, 33))  # (queries, keys) of the sequences of one batch


def cases():
    """Workloads around what the rules say of FlashAttention: widths, dtypes, pages, windows, sinks, KV-cache dtypes."""
    plain = {"dtype": "bfloat16", "num_heads": 16, "num_kv_heads": 4, "block_size": 16, "window": None, "softcap": 0.0,
             "sinks": False, "bias": "no_bias", "kv_cache_dtype": "auto", "mla": False}  # fmt: skip
    widths = (8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 120, 128, 136, 160, 192, 200, 224, 256, 264, 288, 320, 36, 100)
    for width, dtype in itertools.product(widths, ("bfloat16", "float16")):
        yield {**plain, "head_dim": width, "dtype": dtype}
    for width in (64, 128, 256):
        yield {**plain, "head_dim": width, "dtype": "float32"}
        yield {**plain, "head_dim": width, "bias": "alibi"}
        for page in (8, 16, 24, 32, 48, 64, 128, 256, 272):
            yield {**plain, "head_dim": width, "block_size": page}
        for kind, dtype in itertools.product(("fp8", "fp8_e5m2"), ("bfloat16", "float16")):
            yield {**plain, "head_dim": width, "kv_cache_dtype": kind, "dtype": dtype}
    draw = random.Random(19)
    for _ in range(140):
        yield {
            **plain, "head_dim": draw.choice((32, 64, 80, 96, 128, 192, 256)),
            "dtype": draw.choice(("bfloat16", "float16")), "block_size": draw.choice((16, 32, 64, 128)),
            "window": draw.choice((None, None, 128, 300)), "softcap": draw.choice((0.0, 0.0, 50.0)),
            "sinks": draw.random() < 0.3, "num_kv_heads": draw.choice((1, 2, 8, 16)),
            "kv_cache_dtype": draw.choice(("auto", "auto", "fp8")),
        }  # fmt: skip
    for dtype, heads, page in itertools.product(("bfloat16", "float16"), (16, 64, 128), (16, 32, 64, 128)):
        yield {**plain, "mla": True, "head_dim": 576, "num_heads": heads, "num_kv_heads": 1, "dtype": dtype,
               "block_size": page}  # fmt: skip


def load(torch, sources):
    """The release's interface modules, below a package that replaces the rest of vLLM."""
    package = types.ModuleType("vllm")
    package.__path__ = [str(sources / "vllm")]
    sys.modules["vllm"] = package
    platforms = types.ModuleType("vllm.platforms")
    found = torch.cuda.get_device_capability()
    platforms.current_platform = types.SimpleNamespace(
        has_device_capability=lambda wanted: found[0] * 10 + found[1] >= wanted,
        is_device_capability_family=lambda wanted: found[0] == wanted // 10,
    )
    sys.modules["vllm.platforms"] = platforms
    from vllm.vllm_flash_attn import flash_attn_interface

    try:
        from vllm.third_party.flashmla import flash_mla_interface
    except Exception as problem:
        print("FlashMLA:", first_line(problem), file=sys.stderr)
        flash_mla_interface = None
    return flash_attn_interface, flash_mla_interface


def first_line(problem):
    """Class and first line of an exception."""
    text = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {text[0] if text else ''}"[:300]


def inputs(torch, case, device):
    """Queries (tokens, heads, width), paged keys and values (pages, page, heads, width), block table, descales."""
    dtype, page, width = getattr(torch, case["dtype"]), case["block_size"], case["head_dim"]
    torch.manual_seed(case["head_dim"] * 1000 + page)
    per_sequence = -(-max(keys for _, keys in LENGTHS) // page)
    pages = per_sequence * len(LENGTHS)
    table = torch.randperm(pages, device=device, dtype=torch.int64).to(torch.int32).view(len(LENGTHS), per_sequence)
    made = {"table": table, "descale": None}
    total = sum(queries for queries, _ in LENGTHS)
    made["q"] = torch.randn(total, case["num_heads"], width, device=device, dtype=torch.float32).to(dtype)
    shape = (pages, page, case["num_kv_heads"], width)
    keys = torch.randn(shape, device=device, dtype=torch.float32).to(dtype)
    values = keys[..., :512] if case["mla"] else torch.randn(shape, device=device, dtype=torch.float32).to(dtype)
    if case["kv_cache_dtype"] != "auto":
        kind = torch.float8_e5m2 if case["kv_cache_dtype"] == "fp8_e5m2" else torch.float8_e4m3fn
        keys, values, made["q"] = keys.to(kind), values.to(kind), made["q"].to(kind)
        made["descale"] = torch.ones(len(LENGTHS), case["num_kv_heads"], device=device)
    made["k"], made["v"] = keys, values
    made["sinks"] = torch.randn(case["num_heads"], device=device).to(dtype) if case["sinks"] else None
    made["slopes"] = torch.rand(case["num_heads"], device=device) if case["bias"] == "alibi" else None
    return made


def reference(torch, case, made):
    """The output in float64, sequence by sequence: (tokens, heads, width of v)."""
    scale, rows, start = case["head_dim"] ** -0.5, [], 0
    for number, (queries, keys) in enumerate(LENGTHS):
        q = made["q"][start : start + queries].double()
        start += queries
        index = made["table"][number].long()
        k, v = (made[name][index].flatten(0, 1)[:keys].double() for name in ("k", "v"))
        k, v = (item.repeat_interleave(case["num_heads"] // case["num_kv_heads"], dim=1) for item in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        if case["softcap"]:
            scores = case["softcap"] * torch.tanh(scores / case["softcap"])
        distance = (
            torch.arange(queries, device=q.device)[:, None] + keys - queries - torch.arange(keys, device=q.device)
        )
        hidden = distance < 0
        if case["window"]:
            hidden |= distance > case["window"] - 1
        scores = scores.masked_fill(hidden, float("-inf"))
        if made["sinks"] is not None:
            extra = made["sinks"].double()[:, None, None].expand(-1, queries, 1)
            weights = torch.softmax(torch.cat((scores, extra), dim=-1), dim=-1)[..., :-1]
        else:
            weights = torch.softmax(scores, dim=-1)
        rows.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(rows)


def flash_attention(torch, interface, case, made):
    """The release's FlashAttention 3, called as vLLM's backends call it."""
    device = made["q"].device
    starts = [0, *itertools.accumulate(queries for queries, _ in LENGTHS)]
    q, extra = made["q"], {}
    k, v = made["k"], made["v"]
    if case["mla"]:
        q, extra = made["q"][..., 512:], {"q_v": made["q"][..., :512]}
        k, v = made["k"][..., 512:], made["k"][..., :512]
    if made["descale"] is not None:
        extra |= dict.fromkeys(("q_descale", "k_descale", "v_descale"), made["descale"])
    return interface.flash_attn_varlen_func(
        q=q, k=k, v=v, cu_seqlens_q=torch.tensor(starts, device=device, dtype=torch.int32),
        max_seqlen_q=max(queries for queries, _ in LENGTHS), max_seqlen_k=max(keys for _, keys in LENGTHS),
        seqused_k=torch.tensor([keys for _, keys in LENGTHS], device=device, dtype=torch.int32),
        block_table=made["table"], softmax_scale=case["head_dim"] ** -0.5, causal=True, softcap=case["softcap"],
        window_size=[case["window"] - 1, 0] if case["window"] else None, alibi_slopes=made["slopes"],
        s_aux=made["sinks"], fa_version=3, **extra,
    )  # fmt: skip


def flash_mla(torch, interface, case, made):
    """The release's FlashMLA for sequences of one query each; the others are left out of the comparison."""
    metadata = interface.get_mla_metadata()[0]
    starts = [0, *itertools.accumulate(queries for queries, _ in LENGTHS)][:-1]
    out, _ = interface.flash_mla_with_kvcache(
        q=made["q"][starts][:, None], k_cache=made["k"], block_table=made["table"],
        cache_seqlens=torch.tensor([keys for _, keys in LENGTHS], device=made["q"].device, dtype=torch.int32),
        head_dim_v=512, tile_scheduler_metadata=metadata, softmax_scale=case["head_dim"] ** -0.5, causal=False,
    )  # fmt: skip
    return out[:, 0], [number for number, (queries, _) in enumerate(LENGTHS) if queries == 1]


def judge(torch, name, run, case, made):
    """What one kernel did with one case."""
    try:
        out = run()
        expected = reference(torch, case, made)
        if name == "flashmla":
            out, kept = out
            starts = [0, *itertools.accumulate(queries for queries, _ in LENGTHS)]
            out, expected = out[kept], expected[[starts[number] for number in kept]]
        error = float((out.double() - expected).norm() / expected.norm())
        return {"backend": name, **case, "ran": True, "error": round(error, 6), "message": None}
    except Exception as problem:
        return {"backend": name, **case, "ran": False, "error": None, "message": first_line(problem)}


def main():
    """Run every case; one that breaks the CUDA context ends the run, and the lines before it are kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    import torch

    device = "cpu" if options.dry_run else "cuda"
    attention, latent = (None, None) if options.dry_run else load(torch, options.sources.resolve())
    if attention is not None and not attention.FA3_AVAILABLE:
        sys.exit(f"FlashAttention 3 cannot be loaded: {attention.FA3_UNAVAILABLE_REASON}")
    with options.output.open("w") as output:
        for case in list(cases())[:: 12 if options.dry_run else 1]:
            made = inputs(torch, case, device)
            kernels = {"flash_attn": lambda c=case, m=made: flash_attention(torch, attention, c, m)}
            if case["mla"] and latent is not None:
                kernels["flashmla"] = lambda c=case, m=made: flash_mla(torch, latent, c, m)
            if options.dry_run:
                kernels = {"flash_attn": lambda c=case, m=made: reference(torch, c, m).float()}
            for name, run in kernels.items():
                output.write(json.dumps(judge(torch, name, run, case, made)) + "\n")
                output.flush()
    print("cases written:", sum(1 for _ in options.output.open()))


if __name__ == "__main__":
    main()
