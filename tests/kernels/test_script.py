"""Every script is a program that runs: healthy here, and about the case that it was made from."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from doctor.target import ask

JOB = {
    "device": "cpu", "dtype": "float32", "mask": "causal", "num_heads": 4, "num_kv_heads": 2, "head_dim_qk": 32,
    "seq_len_q": 96, "batch_size": 2,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "forced, sbhd, padded": {"request": {"backend": "math", "mask": "padding_causal", "layout": "sbhd"}},
    "window, inference": {"request": {"window": [16, 0], "training": False}},
    "window both ways, q and v of other sizes": {
        "request": {"window": [9, 9], "mask": "no_mask", "head_dim_v": 16, "layout": "bhsd"},
    },
    "bottom right": {"request": {"mask": "causal_bottom_right", "seq_len_kv": 160}},
    "arbitrary": {"request": {"mask": "arbitrary", "scale": 0.3}},
    "which kernel": {"kind": "ran"},
    "an error": {"kind": "failed"},
    **{
        layout: {"kernel": "strided_qkv", "backend": "sdpa.math", "layout": layout}
        for layout in ("sb(h+2hg)d", "bs(h+2hg)d", "sbg(r+2)d", "bsg(r+2)d")
    },
    **{
        layout: {"kernel": "strided_qkv", "backend": "sdpa.flash", "layout": layout, "request": {"num_kv_heads": 4}}
        for layout in ("sbh3d", "bsh3d")
    },
}


def script(**asked: Any) -> Any:
    request = {"kernel": "sdpa", "kind": "wrong", **asked, "request": {**JOB, **asked.get("request", {})}}
    answer = ask(sys.executable, "script", request, timeout=30)
    assert answer.outcome == "ran", answer
    return answer.observed


@pytest.mark.parametrize("name", CASES)
def test_runs_on_a_healthy_torch(torch_python: str, name: str) -> None:
    text = script(**CASES[name])["script"]
    done = subprocess.run([torch_python, "-c", text], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, f"{text}\n{done.stderr.decode()}"
    if CASES[name].get("kind") == "ran":
        assert b"scaled_dot_product" in done.stdout
    elif "kind" not in CASES[name]:
        assert b"'out': " in done.stdout


def test_transformer_engine_as_a_job_makes_it() -> None:
    text = script(
        kernel="te_attention", kind="failed",
        request={"qkv_layout": "bshd_bshd_bshd", "mask": "padding", "head_dim_v": 16, "env": {"NVTE_FUSED_ATTN": 0}},
    )["script"]  # fmt: skip
    lines = text.splitlines()
    assert lines[:2] == ["import os", "os.environ.update({'NVTE_FUSED_ATTN': '0'})"], "before anything is imported"
    assert any("te.DotProductAttention(4, (32, 16), num_gqa_groups=2" in line for line in lines)
    assert "attention_mask=beyond" in text and "keep" not in text
    compile(text, "script", "exec")


@pytest.mark.parametrize(
    ("asked", "ends"),
    [
        ({"where": "import transformer_engine.pytorch", "kind": "failed"}, "import transformer_engine.pytorch\n"),
        ({"where": "import cudnn frontend", "kind": "failed"}, "import cudnn\n"),
        ({"where": "import torch", "kind": "failed"}, "import torch\n"),
        ({"where": "cuda context", "kind": "failed"}, "torch.cuda.synchronize()\n"),
    ],
)
def test_what_ends_before_any_attention(asked: dict[str, Any], ends: str) -> None:
    text = script(**asked)["script"]
    assert text.startswith("import torch\n") and text.endswith(ends) and len(text.splitlines()) <= 3


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"request": {"mask": "padding_causal_bottom_right"}}, "mask padding_causal_bottom_right has no script"),
        ({"kernel": "strided_qkv"}, "it asks several backends, and did not come to say which one failed"),
        ({"kernel": "strided_qkv", "backend": "cudnn.frontend"}, "`cudnn.frontend` has no script"),
        ({"request": {"dtype": "float8"}}, "this program does not know dtype float8"),
    ],
)
def test_what_has_no_script_says_why(asked: dict[str, Any], why: str) -> None:
    observed = script(**asked)
    assert (observed["script"], observed["why"]) == (None, why)
