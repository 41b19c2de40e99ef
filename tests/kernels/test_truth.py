"""The float64 reference agrees with autograd, rounding passes the bounds, and planted faults do not."""

from __future__ import annotations

from typing import Any

import pytest

from doctor.target import run_snippet

PROGRAM = """
import _attention
from _probe import main

def attend(torch, case, q, k, v, keep):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    if keep is not None:
        s = s.masked_fill(~keep, float("-inf"))
    return torch.softmax(s, -1).nan_to_num(0.0) @ v

def run(request):
    torch = _attention.import_torch()
    torch.set_num_threads(2)
    case, shrunk = _attention.workload(dict(request, device="cpu"))
    q, k, v, dout = _attention.tensors(torch, case, "cpu")
    truth = _attention.Truth(torch, case, q, k, v, dout)
    keep = _attention.keep_mask(torch, case, "cpu")
    leaves = [t.double().requires_grad_(True) for t in (q, k, v)]
    out = attend(torch, case, *leaves, keep)
    grads = torch.autograd.grad(out, leaves, dout.double())
    got = dict(zip(("out", "dq", "dk", "dv"), (out.detach(),) + grads))
    exact = truth.errors(torch, got)
    got = {name: t.to(q.dtype) for name, t in got.items()}
    fault = request.get("fault")
    rows = case["seq_len_q"]
    if fault == "scale": got["out"] = got["out"] * 1.02
    if fault == "last row": got["out"][:, :, -1] = 0
    if fault == "one row of one head": got["dk"][0, 0, rows // 2] *= 1.5
    if fault == "nan": got["dq"][0, 0, 0, 0] = float("nan")
    if fault == "swapped heads": got["dv"] = got["dv"].flip(1)
    if fault == "stale": got["dv"] = torch.zeros_like(got["dv"])
    if fault == "shape": got["out"] = got["out"][:, :, :-1]
    if fault == "wrong corner":
        shifted = dict(case, mask="causal" if "bottom" in case["mask"] else "causal_bottom_right")
        keep = _attention.keep_mask(torch, shifted, "cpu")
        got["out"] = attend(torch, case, q.double(), k.double(), v.double(), keep)
    errors = truth.errors(torch, got)
    bound, wrong, offenders = _attention.judge(case, errors)
    return {"exact": exact, "wrong": wrong, "offenders": offenders, "errors": errors, "shrunk": shrunk}

main(run)
"""

SMALL = {"num_heads": 4, "num_kv_heads": 2, "seq_len_q": 96, "seq_len_kv": 160, "head_dim_qk": 32, "head_dim_v": 16}


def ask(python: str, **request: Any) -> Any:
    answer = run_snippet(python, PROGRAM, {**SMALL, **request}, timeout=120)
    assert answer.outcome == "ran", answer
    return answer.observed


@pytest.mark.parametrize(
    "mask", ["no_mask", "causal", "causal_bottom_right", "padding", "padding_causal_bottom_right", "arbitrary"]
)
def test_reference_is_autograds(torch_python: str, mask: str) -> None:
    observed = ask(torch_python, mask=mask)
    assert max(error["rel"] for error in observed["exact"].values()) < 1e-12
    assert not observed["wrong"], observed["errors"]


def test_window_and_rows_without_keys(torch_python: str) -> None:
    assert not ask(torch_python, mask="causal", window=[16, 0])["wrong"]
    assert not ask(torch_python, mask="causal_bottom_right", seq_len_q=96, seq_len_kv=40)["wrong"]
    assert not ask(torch_python, mask="causal", seq_len_q=1, seq_len_kv=1)["wrong"], "dq and dk are exactly zero"


@pytest.mark.parametrize(
    ("fault", "offender"),
    [
        ("scale", "out"),
        ("last row", "out"),
        ("one row of one head", "dk"),
        ("nan", "dq"),
        ("swapped heads", "dv"),
        ("stale", "dv"),
        ("shape", "out"),
        ("wrong corner", "out"),
    ],
)
def test_planted_faults_are_seen(torch_python: str, fault: str, offender: str) -> None:
    observed = ask(torch_python, mask="causal_bottom_right", fault=fault)
    assert observed["wrong"] and observed["offenders"] == [offender]


def test_huge_workload_is_shrunk_and_says_so(torch_python: str) -> None:
    llama = {"num_heads": 16, "num_kv_heads": 4, "seq_len_q": 8100, "seq_len_kv": 8100, "batch_size": 64}
    observed = ask(torch_python, mask="causal", **llama)
    shrunk = observed["shrunk"]
    assert shrunk["batch_size"] == [64, 2]
    assert shrunk["num_heads"][1] // shrunk["num_kv_heads"][1] == 4
    assert shrunk["seq_len_q"][1] % 128 == 8100 % 128 and shrunk["seq_len_kv"] == shrunk["seq_len_q"]
