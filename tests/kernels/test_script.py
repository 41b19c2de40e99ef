"""Every script is a program that runs: healthy here, and about the case that it was made from."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from doctor.runner.run import run_one, run_program

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


#: Runs scripts one after the other, each with names of its own: starting torch costs more than they do.
ALL = """
import contextlib, io, json, sys, traceback
told = {}
for name, text in json.load(sys.stdin).items():
    said, code = io.StringIO(), 0
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(text, name, "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        code, said = 1, io.StringIO(said.getvalue() + traceback.format_exc())
    told[name] = [code, said.getvalue()]
print(json.dumps(told))
"""


def request_of(asked: dict[str, Any]) -> dict[str, Any]:
    return {"kernel": "sdpa", "kind": "wrong", **asked, "request": {**JOB, **asked.get("request", {})}}


def script(**asked: Any) -> Any:
    answer = run_one(sys.executable, "script", request_of(asked), timeout=30)
    assert answer.outcome == "ran", answer
    return answer.observed


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    answers = run_program(sys.executable, "script", [request_of(asked) for asked in CASES.values()], timeout=30)
    return {name: answer.observed["script"] for name, answer in zip(CASES, answers, strict=True)}


@pytest.fixture(scope="module")
def ran(torch_python: str, texts: dict[str, str]) -> dict[str, tuple[int, str]]:
    """Exit code and output of each script."""
    done = subprocess.run([torch_python, "-c", ALL], input=json.dumps(texts).encode(), capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return {name: (code, said) for name, (code, said) in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", CASES)
def test_runs_on_a_healthy_torch(ran: dict[str, tuple[int, str]], texts: dict[str, str], name: str) -> None:
    code, said = ran[name]
    assert code == 0, f"{texts[name]}\n{said}"
    if CASES[name].get("kind") == "ran":
        assert "scaled_dot_product" in said
    elif "kind" not in CASES[name]:
        assert "'out': " in said


def test_needs_nothing_but_torch(torch_python: str, texts: dict[str, str]) -> None:
    done = subprocess.run([torch_python, "-I", "-c", texts["default"]], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()


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
        ({"kernel": "strided_qkv"}, "it tests several backends and did not report which one failed"),
        ({"kernel": "strided_qkv", "backend": "cudnn.frontend"}, "`cudnn.frontend` has no script"),
        ({"request": {"dtype": "float8"}}, "this program does not know dtype float8"),
    ],
)
def test_what_has_no_script_says_why(asked: dict[str, Any], why: str) -> None:
    observed = script(**asked)
    assert (observed["script"], observed["why"]) == (None, why)
