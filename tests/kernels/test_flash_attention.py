"""flash-attn, played by a substitute: what it receives, what it refuses, and that wrong numbers are seen."""

from __future__ import annotations

from typing import Any

import pytest

from doctor.runner.result import KernelResult
from doctor.runner.run import run_program
from tests.helpers.paths import HELPERS

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


RIGHT: dict[str, dict[str, Any]] = {
    "causal": {},
    "bottom right": {"mask": "causal_bottom_right", "seq_len_kv": 160},
    "inference": {"mask": "no_mask", "seq_len_kv": 40, "training": False},
    "window": {"window": [31, 0], "scale": 0.3},
}
#: Name → (request, outcome, start of the reason).
NOT_RUN: dict[str, tuple[dict[str, Any], str, str]] = {
    "too wide": ({"head_dim_qk": 288}, "refused", "FlashAttention forward only supports head dimension at most 256"),
    "float32": ({"dtype": "float32"}, "unavailable", "flash-attn takes float16 and bfloat16"),
    "two head dims": (
        {"head_dim_v": 16}, "unavailable", "this program runs flash-attn with one head dim; here it is 32 / 16"),
    "arbitrary mask": ({"mask": "arbitrary"}, "unavailable", "flash-attn takes no mask arbitrary"),
    "unequal lengths": ({"seq_len_kv": 40}, "unavailable", "flash-attn's causal mask is bottom-right"),
    "no flash 3": (
        {"backend": "flash3"}, "unavailable", "flash_attn_interface or fa3_fwd_interface is not installed"),
    "raises": ({}, "failed", "KeyError: 'x'"),
}  # fmt: skip
MODULES = {"wrong": "flash_attn_interface"}
SOURCES = {
    "wrong": FUNCTION.replace("{how}", "v = v.roll(1, 1)"), "raises": FUNCTION.replace("{how}", "raise KeyError('x')"),
    "broken": "import flash_attn_2_cuda",
}  # fmt: skip
CASES = {
    **RIGHT, **{name: request for name, (request, _, _) in NOT_RUN.items()},
    "wrong": {"backend": "flash3"}, "padding": {"mask": "padding_causal"}, "broken": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def results(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, KernelResult]:
    """The result of each case, all in one process: importing torch takes longer than they do."""
    requests = []
    for name, request in CASES.items():
        root = tmp_path_factory.mktemp("flash")
        source = SOURCES.get(name, FUNCTION.replace("{how}", "pass"))
        (root / f"{MODULES.get(name, 'flash_attn')}.py").write_text(source)
        requests.append(
            {"path": str(root), "kernel": "flash_attention", "request": {**REQUEST, "mask": "causal", **request}}
        )
    program = str(HELPERS / "with_libraries.py")
    return dict(zip(CASES, run_program(torch_python, program, requests, timeout=120), strict=True))


@pytest.mark.parametrize("name", RIGHT)
def test_right_numbers_are_called_right(results: dict[str, KernelResult], name: str) -> None:
    answer = results[name]
    assert answer.outcome == "ran", answer
    assert not answer.observed["wrong"], answer.observed["errors"]
    assert "flash" in answer.observed["ran"] and answer.observed["seconds"] > 0
    inference = RIGHT[name].get("training") is False
    assert set(answer.observed["errors"]) == ({"out"} if inference else {"out", "dq", "dk", "dv"})


def test_wrong_numbers_are_seen(results: dict[str, KernelResult]) -> None:
    observed = results["wrong"].observed
    assert observed["module"] == "flash_attn_interface"
    assert observed["wrong"] and "out" in observed["offenders"]


@pytest.mark.parametrize("name", NOT_RUN)
def test_what_is_not_run_says_why(results: dict[str, KernelResult], name: str) -> None:
    _, outcome, reason = NOT_RUN[name]
    assert (results[name].outcome, results[name].reason[: len(reason)]) == (outcome, reason)


def test_padding_is_removed_before_the_call(results: dict[str, KernelResult]) -> None:
    observed = results["padding"].observed
    assert observed["shrunk"]["mask"] == ["padding_causal", "causal"] and not observed["wrong"]


def test_a_broken_installation_is_a_failure(results: dict[str, KernelResult]) -> None:
    answer = results["broken"]
    assert (answer.outcome, answer.reason) == ("failed", "ModuleNotFoundError: No module named 'flash_attn_2_cuda'")
