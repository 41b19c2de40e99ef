"""What vLLM 0.22.1's own attention kernels did on an H200, next to what the rules say of them.

`captures/h200-vllm0.22.1-kernels.jsonl` was written by `scripts/gpu/vllm_kernels.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doctor.diagnosis.batch import answer, read_case
from doctor.rulebook.evaluate import evaluate
from tests.helpers.rulebook import builtin_rulebook

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "captures" / "h200-vllm0.22.1-kernels.jsonl")
    .read_text("utf-8")
    .splitlines()
]
#: relative error against float64 that a right kernel keeps, by dtype of the cache
BOUNDS = {"auto": 3e-3, "fp8": 2e-2}


def case_of(row):
    latent = row["mla"]
    window = [row["window"] - 1, 0] if row["window"] else "absent"
    workload = {
        "framework": "vllm", "dtype": row["dtype"], "num_heads": row["num_heads"], "num_kv_heads": row["num_kv_heads"],
        "head_dim_qk": 192 if latent else row["head_dim"], "head_dim_v": 128 if latent else row["head_dim"],
        "head_size_given_to_selector": row["head_dim"], "inference_kv_cache": True, "training": False, "mla": latent,
        "kv_cache_dtype": row["kv_cache_dtype"], "block_size": row["block_size"], "window": window,
        "softcap": row["softcap"], "sinks": row["sinks"], "softmax_type": "learnable" if row["sinks"] else "vanilla",
        "bias": row["bias"],
    }  # fmt: skip
    if latent:
        workload |= {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    facts = {"vllm.version": "0.22.1", "gpu.sm": "9.0", "torch.cuda": "13.0", "flashinfer-python.version": "absent"}
    return {"facts": facts, "machine": {"nvcc": True}, "workload": workload}


def same_kernel(row):
    """Whether vLLM calls this kernel so: ALiBi runs in FlashAttention 2, wide heads in 4, large blocks are split."""
    split = row["backend"] == "flashmla" and row["block_size"] % 64 == 0 and row["block_size"] > 64
    return row["bias"] == "no_bias" and (row["mla"] or row["head_dim"] <= 256) and not split


def backend_of(row):
    return "vllm.flash_attn_mla" if row["mla"] and row["backend"] == "flash_attn" else f"vllm.{row['backend']}"


@pytest.fixture(scope="module")
def judged():
    """Each case with whether the rules call its backend available."""
    rulebook, found = builtin_rulebook(), []
    for row in CASES:
        said, good = answer(rulebook, json.dumps(case_of(row)))
        assert good, said
        available = {item["backend"]: item["available"] for item in said["candidates"]}
        found.append((row, available[backend_of(row)]))
    return found


def test_what_the_rules_call_available_ran(judged):
    wrong = [row for row, available in judged if available and not row["ran"] and same_kernel(row)]
    # The layer accepts sinks in float16; the kernel does not, which is a finding of its own.
    assert {row["message"] for row in wrong} == {"RuntimeError: We only support bf16 dtype for S aux."}
    for row in wrong[:3]:
        found = evaluate(builtin_rulebook(), read_case(case_of(row)))
        assert "VLLM427" in {finding.rule for finding in found.findings}


def test_what_the_rules_call_unavailable_failed_but_for_odd_pages(judged):
    ran = [row for row, available in judged if not available and row["ran"]]
    assert ran  # vLLM itself refuses pages that the kernel would take
    assert all(row["block_size"] % 16 for row in ran)


def test_kernels_that_ran_were_right_but_for_one(judged):
    off = [row for row, _ in judged if row["ran"] and row["error"] > BOUNDS[row["kv_cache_dtype"]]]
    assert [(row["head_dim"], row["window"], row["softcap"]) for row in off] == [(256, 300, 50.0)]
