"""The float64 reference agrees with autograd, rounding passes the bounds, and planted faults do not."""

from __future__ import annotations

from typing import Any

import pytest

from doctor.runner.run import run_program

PROGRAM = """
from ..attention.bounds import judge
from ..attention.gpu import import_torch
from ..attention import reference as module
from ..attention.tensors import keep_mask, make_tensors
from ..attention.workload import workload

def attend(torch, case, q, k, v, keep):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    if keep is not None:
        s = s.masked_fill(~keep, float("-inf"))
    return torch.softmax(s, -1).nan_to_num(0.0) @ v

def run(request):
    torch = import_torch()
    case, shrunk = workload(dict(request, device="cpu"))
    if request.get("only_shrink"):
        return {"shrunk": shrunk}
    q, k, v, dout = make_tensors(torch, case, "cpu")
    module.MAX_SCORES = request.get("max_scores", 1 << 25)
    truth = module.reference_of(torch, case, (q, k, v, dout))
    keep = keep_mask(torch, case, "cpu")
    leaves = [t.double().requires_grad_(True) for t in (q, k, v)]
    out = attend(torch, case, *leaves, keep)
    grads = torch.autograd.grad(out, leaves, dout.double())
    got = dict(zip(("out", "dq", "dk", "dv"), (out.detach(),) + grads))
    exact = truth.errors(got)
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
        keep = keep_mask(torch, shifted, "cpu")
        got["out"] = attend(torch, case, q.double(), k.double(), v.double(), keep)
    errors = truth.errors(got)
    bound, wrong, offenders = judge(case, errors)
    return {"exact": exact, "wrong": wrong, "offenders": offenders, "errors": errors, "shrunk": shrunk}
"""

SMALL = {"num_heads": 4, "num_kv_heads": 2, "seq_len_q": 96, "seq_len_kv": 160, "head_dim_qk": 32, "head_dim_v": 16}
MASKS = ("no_mask", "causal", "causal_bottom_right", "padding", "padding_causal_bottom_right", "arbitrary")
#: Planted fault → the tensor that it must be blamed on.
PLANTED = {
    "scale": "out", "last row": "out", "one row of one head": "dk", "nan": "dq", "swapped heads": "dv", "stale": "dv",
    "shape": "out", "wrong corner": "out",
}  # fmt: skip
ODD: dict[str, dict[str, Any]] = {
    # The reference in parts: of the batch, and of the batch and the heads.
    "parts of the batch": {"mask": "padding", "batch_size": 3, "max_scores": 4 * 96 * 160},
    "parts of the heads": {"mask": "arbitrary", "batch_size": 3, "max_scores": 2 * 96 * 160},
    "window": {"mask": "causal", "window": [16, 0]},
    "rows without keys": {"mask": "causal_bottom_right", "seq_len_q": 96, "seq_len_kv": 40},
    "dq and dk are exactly zero": {"mask": "causal", "seq_len_q": 1, "seq_len_kv": 1},
    "huge": {"only_shrink": True, "mask": "causal", "num_heads": 16, "num_kv_heads": 4, "seq_len_q": 8100,
             "seq_len_kv": 8100,
             "batch_size": 64},
}  # fmt: skip


@pytest.fixture(scope="module")
def seen(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was observed in each case; all in one process, as starting torch costs more than they do."""
    program = tmp_path_factory.mktemp("truth") / "program.py"
    program.write_text(PROGRAM)
    asked = {**{mask: {"mask": mask} for mask in MASKS}, **ODD}
    asked |= {fault: {"mask": "causal_bottom_right", "fault": fault} for fault in PLANTED}
    cases = [{**SMALL, **request} for request in asked.values()]
    answers = run_program(torch_python, str(program), cases, timeout=120)
    assert all(answer.outcome == "ran" for answer in answers), answers
    return dict(zip(asked, (answer.observed for answer in answers), strict=True))


@pytest.mark.parametrize("mask", [*MASKS, "parts of the batch", "parts of the heads"])
def test_reference_is_autograds(seen: dict[str, Any], mask: str) -> None:
    assert max(error["rel"] for error in seen[mask]["exact"].values()) < 1e-12
    assert not seen[mask]["wrong"], seen[mask]["errors"]


@pytest.mark.parametrize("name", ["window", "rows without keys", "dq and dk are exactly zero"])
def test_odd_shapes_are_no_faults(seen: dict[str, Any], name: str) -> None:
    assert not seen[name]["wrong"], seen[name]["errors"]


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_seen(seen: dict[str, Any], fault: str) -> None:
    assert seen[fault]["wrong"] and seen[fault]["offenders"] == [PLANTED[fault]]


def test_huge_workload_is_shrunk_and_says_so(seen: dict[str, Any]) -> None:
    shrunk = seen["huge"]["shrunk"]
    assert shrunk["batch_size"] == [64, 2]
    assert shrunk["num_heads"][1] // shrunk["num_kv_heads"][1] == 4
    assert shrunk["seq_len_q"][1] % 128 == 8100 % 128 and shrunk["seq_len_kv"] == shrunk["seq_len_q"]
