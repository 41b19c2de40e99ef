"""Nested tensors of the jagged layout: what torch takes is right, what it does not take it refuses in its own words."""

from __future__ import annotations

import sys

import pytest

from doctor.runner.run import run_program, run_snippet
from doctor.stress.axes import DOMAINS, consistent
from doctor.stress.plan import plan
from doctor.stress.verdict import verdict
from doctor.stress.worker import Worker

CASE = {
    "backend": "nested", "device": "cpu", "layout": "thd", "batch_size": 4, "num_heads": 2, "head_dim_qk": 24,
    "head_dim_v": 16, "seq_len_q": 33, "seq_len_kv": 45,
}  # fmt: skip
ASKED = {
    **{f"{dtype} {sequences}": {"dtype": dtype, "sequences": sequences}
       for dtype in ("bfloat16", "float16", "float32") for sequences in ("some_empty", "none_empty")},
    "one query": {"seq_len_q": 1, "dtype": "float16"}, "dropout": {"dropout": 0.1, "dtype": "float32"},
    # One key, which these seeds drop: output and gradients are zero.
    **{f"all dropped {dtype}": {"dropout": 0.1, "dtype": dtype, "batch_size": 1, "num_heads": 1, "head_dim_qk": 200,
                                "head_dim_v": 200, "seq_len_q": 1, "seq_len_kv": 1, "seed": seed}
       for dtype, seed in (("bfloat16", 1), ("float16", 32), ("float32", 65))},
    "causal": {"mask": "causal"}, "narrowed": {"sequences": "narrowed"},
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(torch_python):
    """Name of the question → the answer; all in one process."""
    got = []
    worker = Worker(torch_python, timeout=60.0)
    worker.run([{**CASE, **more} for more in ASKED.values()], lambda case, answer: got.append(answer))
    return dict(zip(ASKED, got, strict=True))


@pytest.mark.parametrize("name", [name for name in ASKED if name not in ("causal", "narrowed")])
def test_what_it_takes_is_right(answers, name):
    answer = answers[name]
    assert verdict(answer) == "right", (answer.reason, answer.observed)
    if name.startswith("all dropped"):
        assert answer.observed["dropout_scatter"] == pytest.approx(9.0), "the output is zero"
    elif name != "dropout":
        assert set(answer.observed["errors"]) == {"out", "dq", "dk", "dv"}
        assert all(error["rel"] > 0 for error in answer.observed["errors"].values())


@pytest.mark.parametrize("name", ["causal", "narrowed"])
def test_what_a_cpu_does_not_take_is_no_fault(answers, name):
    answer = answers[name]
    assert answer.outcome == "refused" and "No viable backend" in answer.reason


def test_what_is_checked_of_it():
    cases = plan(["nested"], "cuda", 200, seed=1).cases
    assert all(case["num_heads"] == case["num_kv_heads"] for case in cases)
    assert {case["sequences"] for case in cases} == {"some_empty", "none_empty", "narrowed"}
    assert {case["mask"] for case in cases} == {"no_mask", "causal"} and {case["layout"] for case in cases} == {"thd"}
    assert any(case["seq_len_q"] != case["seq_len_kv"] and case["mask"] == "causal" for case in cases)


def test_sequences_are_reported_of_nested_tensors_alone():
    plain = {"seq_len_q": 8, "seq_len_kv": 8, "num_heads": 4, "num_kv_heads": 4, "how": "eager", "mask": "no_mask"}
    assert consistent({**plain, "layout": "thd", "bias_shape": "b1ss", "bias_grad": False})
    assert [name for name in DOMAINS if len(DOMAINS[name].axes("cuda")["sequences"]) > 1] == ["nested"]


@pytest.mark.parametrize("sequences", ["some_empty", "none_empty", "narrowed"])
def test_the_script_makes_the_tensors_as_the_case_says(sequences):
    case = {**CASE, "mask": "causal", "sequences": sequences}
    (answer,) = run_program(sys.executable, "sweep", [{"op": "script", "case": case, "kinds": ["dq"]}], timeout=60)
    script = answer.observed["script"]
    compile(script, "<script>", "exec")
    assert ("torch.nested.narrow" in script) == (sequences == "narrowed")
    assert ("lens_q, lens_k = [33, 0, 1, 19]" in script) == (sequences == "some_empty") and "is_causal=True" in script


def test_a_torch_without_them_is_described_as_such(torch_python):
    source = """
import torch, torch.nested
from ..sweep.discovery import backend_states
from ..sweep.run import measure

def run(request):
    del torch.nested.nested_tensor_from_jagged  # as before torch 2.4
    states, _ = backend_states(torch, ["nested", "sdpa.math"])
    try:
        measure(request)
    except Exception as error:
        return {"states": states, "raised": type(error).__name__}
"""
    observed = run_snippet(torch_python, source, CASE, timeout=60).observed
    assert "nested_tensor_from_jagged" in observed["states"]["nested"] and observed["states"]["sdpa.math"] is None
    assert observed["raised"] == "Unavailable"
