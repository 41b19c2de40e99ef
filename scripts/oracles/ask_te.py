#!/usr/bin/env python3
"""Query an installed TransformerEngine which backend it takes for many random workloads, on a real GPU.

Writes one JSON line per workload in the form that `scripts/oracles/score_backends.py` reads, so that predictions
can be compared later and elsewhere. Each workload goes through `DotProductAttention.forward` itself (its own
normalisation of window, lengths and layout); the call is stopped right after the selection.
A crash of the library costs the workload it happened in: the parent restarts behind it.

    python scripts/oracles/ask_te.py --count 600 --seed 1 --output answers.jsonl
"""

import argparse
import json
import logging
import os
import random
import subprocess
import sys
from pathlib import Path


class Selected(Exception):
    """Carries the answer out of the forward pass."""


def draw(rng):
    """One random workload, leaning towards ordinary life."""
    fmt = rng.choice(["bshd", "sbhd", "bshd", "sbhd", "thd"])
    heads = rng.choice([8, 16, 32, 64])
    kv_heads = rng.choice([heads, heads, heads // 4, heads // 8])
    qk, v = rng.choice(
        [(64, 64), (80, 80), (96, 96), (128, 128), (128, 128), (128, 128), (160, 160), (192, 192), (256, 256)]
        + [(192, 128), (192, 128), (128, 64), (72, 72), (100, 100), (512, 512), (264, 264), (64, 128)]
    )
    training = rng.random() < 0.8
    seq_q = rng.choice([128, 512, 1000, 1024, 2048, 4096, 8192])
    seq_kv = seq_q if rng.random() < 0.75 else rng.choice([128, 512, 1024, 2048, 4096])
    if fmt == "thd":
        mask = rng.choice(["padding", "padding_causal", "padding_causal", "padding_causal_bottom_right"])
    else:
        mask = rng.choice(
            ["no_mask", "causal", "causal", "causal", "padding", "padding_causal", "causal_bottom_right"]
            + ["padding_causal_bottom_right", "arbitrary"]
        )
    causal = "causal" in mask
    window = None
    if rng.random() < 0.25:
        window = [rng.choice([16, 128, 1024]), 0 if causal else rng.choice([0, 0, 64])]
    bias, bias_shape, slopes = "no_bias", None, None
    if fmt != "thd" and rng.random() < 0.15:
        bias = rng.choice(["post_scale_bias", "alibi", "pre_scale_bias"])
        bias_shape = rng.choice(["1hss", "11ss", "b1ss", "bhss"]) if bias != "alibi" else None
    same = seq_q == seq_kv
    layouts = [f"{fmt}_{fmt}_{fmt}"] * 3
    if same and heads == kv_heads and qk == v:
        layouts += {"bshd": ["bs3hd", "bsh3d"], "sbhd": ["sb3hd", "sbh3d"], "thd": ["t3hd", "th3d"]}[fmt]
    if qk == v:
        layouts += {"bshd": ["bshd_bs2hd"], "sbhd": ["sbhd_sb2hd"], "thd": ["thd_t2hd"]}[fmt]
    env = {}
    for name, odds in (("NVTE_FLASH_ATTN", 0.05), ("NVTE_FUSED_ATTN", 0.12), ("NVTE_UNFUSED_ATTN", 0.1)):
        if rng.random() < odds:
            env[name] = "0"
    workload = {
        "framework": "transformer_engine",
        "dtype": rng.choice(["bfloat16"] * 6 + ["float16"] * 3 + ["float32"]),
        "qkv_layout": rng.choice(layouts),
        "batch_size": rng.choice([1, 2, 4]),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim_qk": qk,
        "head_dim_v": v,
        "seq_len_q": seq_q,
        "seq_len_kv": seq_kv,
        "mask": mask,
        "window": window,
        "bias": bias,
        "dropout": rng.choice([0.0] * 5 + [0.1]),
        "training": training,
        "deterministic": rng.random() < 0.15,
        "cp_size": 1,
        "softmax_type": rng.choice(["vanilla"] * 12 + ["off-by-one", "learnable"]),
        "pad_between_seqs": False,
    }
    if bias_shape:
        workload["bias_shape"] = bias_shape
        workload["bias_requires_grad"] = training and rng.random() < 0.5
    if slopes:
        workload["alibi_slopes"] = slopes
    return workload, env


def tensors(torch, w, device="cuda"):
    """q, k, v in the wanted memory layout; values do not matter, only shapes and strides do."""
    dtype = getattr(torch, w["dtype"])
    b, sq, skv = w["batch_size"], w["seq_len_q"], w["seq_len_kv"]
    h, hk, qk, v = w["num_heads"], w["num_kv_heads"], w["head_dim_qk"], w["head_dim_v"]
    layout = w["qkv_layout"]
    fmt = "".join(c for c in layout.split("_")[0] if c in "bsthd")

    def lead(s):
        return {"bshd": (b, s), "sbhd": (s, b), "thd": (b * s,)}[fmt]

    def make(*shape):
        return torch.empty(*shape, dtype=dtype, device=device)

    if "3" in layout:
        if layout.endswith("3hd"):
            packed = make(*lead(sq), 3, h, qk)
            return [packed.select(len(lead(sq)), i) for i in range(3)]
        packed = make(*lead(sq), h, 3, qk)
        return [packed.select(len(lead(sq)) + 1, i) for i in range(3)]
    q = make(*lead(sq), h, qk)
    if "2" in layout:
        packed = make(*lead(skv), 2, hk, qk)
        return [q, packed.select(len(lead(skv)), 0), packed.select(len(lead(skv)), 1)]
    return [q, make(*lead(skv), hk, qk), make(*lead(skv), hk, v)]


def ask(torch, dpa_module, utils, w):
    """TE's own answer for one workload: selected backend, available ones, first log line of each."""
    fmt = "".join(c for c in w["qkv_layout"].split("_")[0] if c in "bsthd")
    records = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    real = utils.get_attention_backend

    def stop(params=None):
        raise Selected(real(params), params)

    module = dpa_module.DotProductAttention(
        w["num_heads"],
        (w["head_dim_qk"], w["head_dim_v"]),
        num_gqa_groups=w["num_kv_heads"],
        attention_dropout=w["dropout"],
        qkv_format=fmt,
        attn_mask_type=w["mask"],
        window_size=tuple(w["window"]) if w["window"] else None,
        softmax_type=w["softmax_type"],
        attention_type="self" if w["seq_len_q"] == w["seq_len_kv"] else "cross",
        layer_number=1,
    ).cuda()
    module.train(w["training"])
    logger = logging.getLogger("DotProductAttention")
    logger.handlers = [Keep()]
    logger.setLevel(logging.DEBUG)
    utils.AttentionLogging._log_level = logging.DEBUG
    dpa_module._attention_backends["backend_selection_requires_update"] = True
    dpa_module._attention_backends["attention_params"] = None
    q, k, v = tensors(torch, w)
    b, sq, skv = w["batch_size"], w["seq_len_q"], w["seq_len_kv"]
    extra = {"max_seqlen_q": sq, "max_seqlen_kv": skv}
    if fmt == "thd" or "padding" in w["mask"]:
        extra["cu_seqlens_q"] = torch.arange(0, (b + 1) * sq, sq, dtype=torch.int32, device="cuda")
        extra["cu_seqlens_kv"] = torch.arange(0, (b + 1) * skv, skv, dtype=torch.int32, device="cuda")
    if w["mask"] == "arbitrary":
        extra["attention_mask"] = torch.zeros(1, 1, sq, skv, dtype=torch.bool, device="cuda")
    if w.get("bias", "no_bias") in ("post_scale_bias", "pre_scale_bias"):
        shape = {"1": 1, "b": b, "h": w["num_heads"]}
        dims = (shape[w["bias_shape"][0]], shape[w["bias_shape"][1]], sq, skv)
        grad = w["bias_requires_grad"]
        extra["core_attention_bias"] = torch.zeros(*dims, dtype=q.dtype, device="cuda", requires_grad=grad)
    extra["core_attention_bias_type"] = w["bias"]
    torch.use_deterministic_algorithms(False)
    module.deterministic = w["deterministic"]
    dpa_module.dpa_utils.get_attention_backend = stop
    try:
        module(q, k, v, qkv_format=fmt, attn_mask_type=w["mask"], **extra)
    except Selected as answer:
        (flash, flash_version, fused, _, unfused, available), params = answer.args
    finally:
        dpa_module.dpa_utils.get_attention_backend = real
    generation = str(flash_version).split(".")[0] if flash_version is not None else None
    selected = "te.fused" if fused else "te.unfused" if unfused else None
    if flash:
        selected = "te.flash" + {"2": "2", "3": "3", "4": "4"}[generation]
    log = {}
    for line in records:
        for word, backend in (("Flash", "te.flash2"), ("Fused", "te.fused"), ("Unfused", "te.unfused")):
            if line.startswith("Disabling " + word) and backend not in log:
                log[backend] = line
    found = {"te.fused": bool(available[1]), "te.unfused": bool(available[2])}
    for backend in ("te.flash2", "te.flash3", "te.flash4"):
        found[backend] = bool(available[0]) and backend[-1] == generation
    return {"selected": selected, "available": found, "log": log, "layout": str(params.qkv_layout)}


def child(args):
    """Answer workloads `start`… in this process; a line `start i` goes out before each."""
    from importlib import metadata

    import torch
    import transformer_engine.pytorch  # noqa: F401
    import transformer_engine.pytorch.attention.dot_product_attention.dot_product_attention as dpa_module
    import transformer_engine.pytorch.attention.dot_product_attention.utils as utils
    from transformer_engine.pytorch.utils import get_cudnn_version

    def version(name):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return "absent"

    major, minor = torch.cuda.get_device_capability()
    facts = {
        "transformer-engine.version": version("transformer-engine"),
        "gpu.sm": "%d.%d" % (major, minor),
        "cudnn.version": ".".join(map(str, get_cudnn_version())),
    }
    for name in ("flash-attn", "flashattn-hopper", "flash-attn-3", "flash-attn-4", "nvidia-cutlass-dsl"):
        facts[name + ".version"] = version(name)
    rng = random.Random(args.seed)
    for index in range(args.count):
        workload, env = draw(rng)
        if index < args.start:
            continue
        print(json.dumps({"begin": index}), flush=True)
        for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
            os.environ.pop(name, None)
        os.environ.update(env)
        case = {"id": str(index), "group": "h200", "facts": dict(facts), "workload": workload}
        case["facts"].update({"env." + key: value for key, value in env.items()})
        try:
            case["expect"] = ask(torch, dpa_module, utils, workload)
        except Exception as problem:  # the library's own refusal is an answer too
            case["expect"] = {"error": type(problem).__name__ + ": " + str(problem)[:300]}
        print(json.dumps(case), flush=True)
        torch.cuda.empty_cache()


def main():
    """Run children until every workload is answered."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--output", default="answers.jsonl")
    args = parser.parse_args()
    if args.child:
        return child(args)
    start, crashes = 0, 0
    with Path(args.output).open("w") as output:
        while start < args.count and crashes < 20:
            command = [sys.executable, __file__, "--child", "--start", str(start)]
            command += ["--count", str(args.count), "--seed", str(args.seed)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            for line in process.stdout:
                if not line.startswith("{"):
                    continue
                record = json.loads(line)
                if "begin" in record:
                    start = record["begin"]
                else:
                    output.write(line)
                    output.flush()
                    start += 1
            if process.wait() != 0:
                crashes += 1
                print("process ended with", process.returncode, "in workload", start, file=sys.stderr)
                start += 1
            else:
                break
    print("asked", start, "workloads,", crashes, "crashes", file=sys.stderr)


if __name__ == "__main__":
    main()
