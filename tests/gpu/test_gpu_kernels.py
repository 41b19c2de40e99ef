"""The kernel programs on a real GPU: right results pass, the known false result is seen, a lost device is survived."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from doctor.runner.result import KernelResult
from doctor.runner.run import run_one, run_program, run_snippet

pytestmark = pytest.mark.gpu


def test_every_backend_is_right_or_refuses() -> None:
    cases: list[dict[str, Any]] = [
        {"backend": backend, "mask": mask, "dtype": dtype, "seq_len_q": 320, "repeat": 1}
        for backend in ("flash", "efficient", "cudnn", "math", "default")
        for mask in ("no_mask", "causal", "padding")
        for dtype in ("bfloat16", "float16", "float32")
    ]
    answers = run_program(sys.executable, "sdpa", cases, timeout=300)
    for case, answer in zip(cases, answers, strict=True):
        assert answer.outcome in ("ran", "refused"), (case, answer)
        if answer.outcome == "ran":
            assert not answer.observed["wrong"], (case, answer.observed["errors"])
            assert case["backend"] == "default" or answer.observed["ran"] == [case["backend"]]
    told = {case["backend"] for case, answer in zip(cases, answers, strict=True) if answer.outcome == "ran"}
    assert {"math", "default"} <= told


CORNERS = [(via, mask) for via in ("frontend", "torch") for mask in ("causal", "causal_bottom_right")]


@pytest.fixture(scope="module")
def corners() -> dict[tuple[str, str], KernelResult]:
    """What cuDNN makes of each, all in one process."""
    asked = [{"via": via, "mask": mask, "seq_len_q": 256, "seq_len_kv": 512, "repeat": 1} for via, mask in CORNERS]
    return dict(zip(CORNERS, run_program(sys.executable, "cudnn_sdpa", asked, timeout=300), strict=True))


@pytest.mark.parametrize("corner", CORNERS, ids="-".join)
def test_cudnn_both_corners(corners: dict[tuple[str, str], KernelResult], corner: tuple[str, str]) -> None:
    answer = corners[corner]
    if answer.outcome == "unavailable":
        pytest.skip(answer.reason)
    assert answer.outcome in ("ran", "refused"), answer
    assert not answer.observed.get("wrong"), answer.observed["errors"]


def test_the_wrong_layout_of_incident_e_is_seen() -> None:
    request = {"num_heads": 16, "num_kv_heads": 1, "head_dim_qk": 64, "seq_len_q": 512, "dtype": "float16"}
    request.update(mask="causal", control=True)
    answer = run_one(sys.executable, "strided_qkv", request, timeout=300)
    assert answer.outcome == "ran", answer
    if "control" not in answer.observed:
        pytest.skip(str(answer.observed["backends"]["cudnn.frontend"]))
    assert answer.observed["control"]["wrong"], "contiguous strides claimed for an interleaved tensor"
    assert not answer.observed["backends"]["cudnn.frontend"]["sb(h+2hg)d"]["wrong"]


def test_lost_device_costs_one_case() -> None:
    source = (
        "def run(r):\n    import torch\n    x = torch.zeros(4, device='cuda')\n"
        "    if r.get('lose'): x[torch.tensor([99], device='cuda')] += 1\n    torch.cuda.synchronize()\n"
        "    return {'ok': True}\n"
    )
    assert run_snippet(sys.executable, source, {"lose": True}, timeout=300).outcome == "failed"
    assert run_snippet(sys.executable, source, {}, timeout=300).outcome == "ran"


@pytest.mark.parametrize("backend", ["flash2", "flash3"])
def test_flash_attn_is_right_where_it_is_installed(backend: str) -> None:
    cases: list[dict[str, Any]] = [
        {"backend": backend, "mask": mask, "dtype": dtype, "seq_len_q": 320, "num_kv_heads": 2, "repeat": 1}
        for mask in ("no_mask", "causal")
        for dtype in ("bfloat16", "float16")
    ]
    for case, answer in zip(cases, run_program(sys.executable, "flash_attention", cases, timeout=300), strict=True):
        if answer.outcome == "unavailable":
            pytest.skip(answer.reason)
        assert answer.outcome == "ran" and answer.observed["ran"] == ["flash"], (case, answer)
        assert not answer.observed["wrong"], (case, answer.observed["errors"])
