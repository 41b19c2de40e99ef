"""The kernel programs on a CPU, where torch's own backends exist; what needs more says that it is not there."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest

from doctor.runner.result import KernelResult
from doctor.runner.run import run_one, run_program, run_snippet

SMALL = {"device": "cpu", "num_heads": 4, "num_kv_heads": 2, "seq_len_q": 100, "head_dim_qk": 32, "repeat": 1}


ODD: dict[str, dict[str, Any]] = {
    "default": {"backend": "default", "head_dim_qk": 48, "head_dim_v": 32},
    "refused": {"backend": "flash", "head_dim_qk": 48, "head_dim_v": 32},
    "inference": {"backend": "math", "training": False},
    "rows without keys": {"backend": "math", "mask": "causal_bottom_right", "seq_len_kv": 40},
    "unknown backend": {"backend": "magic"},
    "unknown dtype": {"dtype": "float8"},
}


PLAIN = [
    {"backend": backend, "mask": mask, "dtype": dtype}
    for backend in ("flash", "math")
    for mask in ("no_mask", "causal", "padding")
    for dtype in ("bfloat16", "float32")
]


@pytest.fixture(scope="module")
def answers(torch_python: str) -> list[KernelResult]:
    """What `sdpa` answers to each of ODD, then of PLAIN; all in one process, as starting torch costs most."""
    return run_program(torch_python, "sdpa", [{**SMALL, **request} for request in (*ODD.values(), *PLAIN)], timeout=120)


@pytest.fixture(scope="module")
def odd(answers: list[KernelResult]) -> dict[str, KernelResult]:
    return dict(zip(ODD, answers, strict=False))


@pytest.fixture(scope="module")
def facts(torch_python: str) -> dict[str, Any]:
    return run_one(torch_python, "facts", {"transformer_engine": True}, timeout=120).observed


def test_backends_and_masks(answers: list[KernelResult]) -> None:
    for case, answer in zip(PLAIN, answers[len(ODD) :], strict=True):
        assert answer.outcome == "ran", (case, answer)
        assert not answer.observed["wrong"], (case, answer.observed["errors"])
        assert set(answer.observed["errors"]) == {"out", "dq", "dk", "dv"}
        assert answer.observed["ran"] == [case["backend"]], "read off the profiler, not assumed"


def test_default_says_what_it_took(odd: dict[str, KernelResult]) -> None:
    answer = odd["default"]
    assert answer.observed["ran"] == ["math"] and not answer.observed["wrong"]


def test_refusal_is_in_torchs_own_words(odd: dict[str, KernelResult]) -> None:
    answer = odd["refused"]
    assert answer.outcome == "refused"
    assert "Flash attention requires q,k,v to have the same last dimension" in answer.reason
    assert answer.observed["backend"] == "flash" and "errors" not in answer.observed


def test_inference_compares_the_output_alone(odd: dict[str, KernelResult]) -> None:
    assert set(odd["inference"].observed["errors"]) == {"out"}


def test_rows_without_keys_are_distinguished(odd: dict[str, KernelResult]) -> None:
    answer = odd["rows without keys"]
    assert answer.observed["rows_without_keys"] in ("zero", "nan") and not answer.observed["wrong"]


def test_no_gpu_is_no_answer(torch_python: str, facts: dict[str, Any]) -> None:
    if facts.get("cuda.available"):
        pytest.skip("this machine has a GPU")
    for program in ("sdpa", "strided_qkv"):
        answer = run_one(torch_python, program, {}, timeout=120)
        assert (answer.outcome, "sees no CUDA device" in answer.reason) == ("unavailable", True), program


def test_unknown_backend_and_dtype(odd: dict[str, KernelResult]) -> None:
    assert odd["unknown backend"].outcome == "failed"
    assert odd["unknown dtype"].outcome == "unavailable"


@pytest.fixture(scope="module")
def views(torch_python: str) -> dict[tuple[int, int], KernelResult]:
    """What `strided_qkv` answers for so many heads and groups, all in one process."""
    shapes = [(4, 4), (8, 2), (16, 1)]
    about = {**SMALL, "backends": ["sdpa.math", "cudnn.frontend"]}
    asked = [{**about, "num_heads": heads, "num_kv_heads": groups} for heads, groups in shapes]
    return dict(zip(shapes, run_program(torch_python, "strided_qkv", asked, timeout=120), strict=True))


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (8, 2), (16, 1)])
def test_fused_views_hold_the_same_numbers(views: dict[tuple[int, int], KernelResult], heads: int, groups: int) -> None:
    answer = views[heads, groups]
    assert answer.outcome == "ran" and answer.observed["wrong_backends"] == []
    math = answer.observed["backends"]["sdpa.math"]
    assert len(math) == (7 if heads == groups else 5)
    assert all(result["outcome"] == "ran" and not result["wrong"] for result in math.values())
    assert "GPU" in answer.observed["backends"]["cudnn.frontend"]["unavailable"]


def test_facts_of_torch(facts: dict[str, Any]) -> None:
    assert facts["torch.version"] and isinstance(facts["torch.cxx11_abi"], bool)
    assert isinstance(facts["cudnn.files"], list)


@pytest.mark.parametrize("program", ["sdpa", "strided_qkv", "cudnn_sdpa", "te_attention"])
def test_without_torch_it_is_unavailable(program: str, tmp_path: pathlib.Path) -> None:
    blocker = "import sys\nclass No:\n    def find_spec(self, name, path=None, target=None):\n"
    blocker += "        if name == 'torch': raise ModuleNotFoundError('No module named torch', name='torch')\n"
    (tmp_path / "sitecustomize.py").write_text(blocker + "sys.meta_path.insert(0, No())\n")
    answer = run_one(sys.executable, program, {}, timeout=60, env={"PYTHONPATH": str(tmp_path)})
    assert (answer.outcome, answer.reason) == ("unavailable", "torch is not installed")


def test_torch_that_is_broken_is_a_failure(tmp_path: pathlib.Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudnn.so.9: cannot open shared object file')")
    answer = run_one(sys.executable, "sdpa", {}, timeout=60, env={"PYTHONPATH": str(tmp_path)})
    assert answer.outcome == "failed" and "libcudnn.so.9" in answer.reason
    facts = run_one(sys.executable, "facts", {}, timeout=60, env={"PYTHONPATH": str(tmp_path)})
    assert facts.outcome == "ran" and "libcudnn.so.9" in facts.observed["torch"]["error"]


LOADS = """
import sys
from ..attention import sdpa
from ..attention.gpu import import_torch
from . import strided_qkv

def run(request):
    import_torch()
    before = set(sys.modules)
    sdpa.measure(request)
    strided_qkv.run(request)
    return {"loaded": sorted({name.partition(".")[0] for name in set(sys.modules) - before} | {
        name for name in set(sys.modules) - before if name.startswith("torch.")})}
"""


def test_a_case_imports_nothing_slow_next_to_torch(torch_python: str) -> None:
    """sympy, torch's compiler and its profiler's front end take a second or more each, and none is needed."""
    answer = run_snippet(torch_python, LOADS, {**SMALL, "mask": "causal", "num_kv_heads": 4}, timeout=120)
    assert answer.outcome == "ran", answer
    slow = {"sympy", "numpy", "torch._dynamo", "torch._inductor", "torch.profiler", "torch.testing", "torch.fx"}
    assert not slow & set(answer.observed["loaded"]), answer.observed["loaded"]
