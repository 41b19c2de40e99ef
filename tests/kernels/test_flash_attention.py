"""flash-attn, played by a stand-in: what it is asked, what it refuses, and that wrong numbers are seen."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from doctor.runner.result import KernelResult
from doctor.runner.run import run_one

FUNCTION = """
import torch
class FlashAttnFunc(torch.autograd.Function):
    forward = staticmethod(lambda ctx, t: t.clone())
    backward = staticmethod(lambda ctx, g: g)
def flash_attn_func(q, k, v, causal=False, window_size=(-1, -1), softmax_scale=None):
    assert q.dtype in (torch.float16, torch.bfloat16), "FlashAttention only support fp16 and bf16 data type"
    if q.shape[-1] > 256:
        raise RuntimeError("FlashAttention forward only supports head dimension at most 256")
    q, k, v = (t.transpose(1, 2) for t in (FlashAttnFunc.apply(q), k, v))
    {how}
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    i = i + k.shape[2] - q.shape[2]
    left, right = window_size
    keep = (j <= i) if causal else torch.ones(len(i), len(j), dtype=torch.bool)
    keep = keep & (j >= i - left) if left >= 0 else keep
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=softmax_scale)
    return out.transpose(1, 2)
"""
REQUEST = {"device": "cpu", "num_heads": 4, "num_kv_heads": 2, "seq_len_q": 96, "head_dim_qk": 32, "repeat": 1}


def flash(
    python: str, root: pathlib.Path, module: str = "flash_attn", how: str = "pass", **request: Any
) -> KernelResult:
    (root / f"{module}.py").write_text(FUNCTION.replace("{how}", how))
    asked = {**REQUEST, "mask": "causal", **request}
    return run_one(python, "flash_attention", asked, timeout=120, env={"PYTHONPATH": str(root)})


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"mask": "causal_bottom_right", "seq_len_kv": 160},
        {"mask": "no_mask", "seq_len_kv": 40, "training": False},
        {"window": [31, 0], "scale": 0.3},
    ],
)
def test_right_numbers_are_called_right(torch_python: str, tmp_path: pathlib.Path, request_: dict[str, Any]) -> None:
    answer = flash(torch_python, tmp_path, **request_)
    assert answer.outcome == "ran", answer
    assert not answer.observed["wrong"], answer.observed["errors"]
    assert "flash" in answer.observed["ran"] and answer.observed["seconds"] > 0
    assert set(answer.observed["errors"]) == (
        {"out"} if request_.get("training") is False else {"out", "dq", "dk", "dv"}
    )


def test_wrong_numbers_are_seen(torch_python: str, tmp_path: pathlib.Path) -> None:
    answer = flash(torch_python, tmp_path, "flash_attn_interface", "v = v.roll(1, 1)", backend="flash3")
    assert answer.observed["module"] == "flash_attn_interface"
    assert answer.observed["wrong"] and "out" in answer.observed["offenders"]


@pytest.mark.parametrize(
    ("request_", "outcome", "reason"),
    [
        ({"head_dim_qk": 288}, "refused", "FlashAttention forward only supports head dimension at most 256"),
        ({"dtype": "float32"}, "unavailable", "flash-attn takes float16 and bfloat16"),
        ({"head_dim_v": 16}, "unavailable", "this program runs flash-attn with one head dim; here it is 32 / 16"),
        ({"mask": "arbitrary"}, "unavailable", "flash-attn takes no mask arbitrary"),
        ({"seq_len_kv": 40}, "unavailable", "flash-attn's causal mask is bottom-right"),
        ({"backend": "flash3"}, "unavailable", "flash_attn_interface or fa3_fwd_interface is not installed"),
        ({"how": "raise KeyError('x')"}, "failed", "KeyError: 'x'"),
    ],
)
def test_what_is_not_run_says_why(
    torch_python: str, tmp_path: pathlib.Path, request_: dict[str, Any], outcome: str, reason: str
) -> None:
    answer = flash(torch_python, tmp_path, **request_)
    assert (answer.outcome, answer.reason[: len(reason)]) == (outcome, reason)


def test_padding_is_taken_out_before_the_call(torch_python: str, tmp_path: pathlib.Path) -> None:
    answer = flash(torch_python, tmp_path, mask="padding_causal")
    assert answer.observed["shrunk"]["mask"] == ["padding_causal", "causal"] and not answer.observed["wrong"]


def test_a_broken_installation_is_a_failure(torch_python: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "flash_attn.py").write_text("import flash_attn_2_cuda")
    answer = run_one(torch_python, "flash_attention", REQUEST, timeout=120, env={"PYTHONPATH": str(tmp_path)})
    assert (answer.outcome, answer.reason) == ("failed", "ModuleNotFoundError: No module named 'flash_attn_2_cuda'")
