"""The gradient of an additive mask: judged by its own truth, over whatever the mask is broadcast over."""

from __future__ import annotations

import sys

import pytest

from doctor.runner.run import run_program, run_snippet
from doctor.stress.axes import consistent, domain
from doctor.stress.case_facts import case_facts
from doctor.stress.plan import plan
from doctor.stress.worker import Worker
from tests.helpers.paths import HELPERS

FAULTS = HELPERS / "bias_faults.py"
SHAPES = ("bhss", "b1ss", "1hss", "11ss", "b11s")
DTYPES = ("bfloat16", "float16", "float32")
CASE = {
    "device": "cpu", "mask": "additive", "bias_grad": True, "num_heads": 4, "num_kv_heads": 2, "head_dim_qk": 40,
    "seq_len_q": 33, "seq_len_kv": 45,
}  # fmt: skip
PLANTED = {
    "first_head_alone": {"bias_shape": "b1ss"}, "tail_lost": {"bias_shape": "bhss"}, "scaled": {"bias_shape": "1hss"},
    "off_dbias": {"bias_shape": "bhss"},
}  # fmt: skip


def named(function):
    return f"file:{FAULTS}:{function}"


@pytest.fixture(scope="module")
def judged(torch_python):
    """Name of the question → what was observed; all in one process."""
    asked = {
        f"{dtype} {shape}": {**CASE, "backend": named("healthy"), "dtype": dtype, "bias_shape": shape}
        for dtype in DTYPES for shape in SHAPES
    }  # fmt: skip
    low = {"mask": "additive_low", "bias_shape": "1hss"}
    asked |= {f"{dtype} low": {**CASE, **low, "backend": "sdpa.math", "dtype": dtype} for dtype in DTYPES}
    asked["one key"] = {**CASE, "backend": "sdpa.math", "seq_len_kv": 1, "bias_shape": "b1ss"}
    asked["alone"] = {**CASE, "backend": "sdpa.math", "alone": True}
    asked["written"] = {**CASE, "backend": named("writes_bias"), "dtype": "float32"}
    asked |= {name: {**CASE, **more, "backend": named(name), "dtype": "float16"} for name, more in PLANTED.items()}
    answers = []
    Worker(torch_python, timeout=60.0).run(list(asked.values()), lambda case, answer: answers.append(answer))
    assert all(answer.outcome == "ran" for answer in answers), [answer.reason for answer in answers]
    return dict(zip(asked, (answer.observed for answer in answers), strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, "low"])
def test_rounding_explains_what_a_healthy_kernel_errs(judged, dtype, shape):
    observed = judged[f"{dtype} {shape}"]
    assert observed["faults"] == [] and set(observed["errors"]) == {"out", "dq", "dk", "dv", "dbias"}
    error = observed["errors"]["dbias"]
    assert 0.1 * error["healthy"] < error["rel"] < 0.7 * observed["bound"]["dbias"]


def test_where_one_key_is_seen_the_gradient_is_zero_and_no_fault(judged):
    assert judged["one key"]["faults"] == []


def test_a_bias_may_be_all_that_is_trained(judged):
    assert judged["alone"]["faults"] == [] and set(judged["alone"]["errors"]) == {"out", "dbias"}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_seen_in_this_gradient_alone(judged, name):
    assert judged[name]["faults"] == ["dbias"], judged[name]["errors"]


def test_a_bias_that_was_written_to_is_seen(judged):
    assert "inputs_changed" in judged["written"]["faults"]


def test_the_script_shows_it(torch_python):
    """The text that is handed on, executed: its truth comes from autograd and not from ours."""
    source = """
from ..sweep.script import write_script
from ..sweep.source import filled

def ends(case):
    space = {"__name__": "script"}
    try:
        exec(write_script(case, ["dbias"]), space)
    except SystemExit as error:
        return int(bool(error.code)), sorted(space["errors"])

def run(request):
    return {name: ends(filled(case)) for name, case in request["cases"].items()}
"""
    cases = {
        f"{name} {alone}": {**CASE, **more, "backend": named(function), "dtype": "float16", "alone": alone}
        for name, more in PLANTED.items() for alone in (False, True) for function in (name,)
    }  # fmt: skip
    cases["healthy"] = {**CASE, "backend": named("healthy"), "bias_shape": "b11s"}
    answer = run_snippet(torch_python, source, {"cases": cases}, timeout=60)
    assert answer.outcome == "ran", answer.reason
    assert answer.observed.pop("healthy")[0] == 0
    for name, (code, errors) in answer.observed.items():
        assert code == 1 and errors == (["dbias", "out"] if "True" in name else ["dbias", "dk", "dq", "dv", "out"]), (
            name
        )


def test_only_ordinary_numbers_are_trained():
    case = {"seq_len_q": 8, "seq_len_kv": 8, "num_heads": 4, "num_kv_heads": 4, "layout": "bhsd", "how": "eager"}
    learned = {**case, "bias_shape": "1hss", "bias_grad": True}
    assert consistent({**learned, "mask": "additive"}) and consistent({**learned, "mask": "additive_low"})
    assert not any(consistent({**learned, "mask": mask}) for mask in ("no_mask", "additive_inf", "additive_float32"))
    assert not consistent({**learned, "mask": "additive", "dropout": 0.1}), "no one right answer to judge it by"
    assert consistent({**learned, "mask": "additive_float32", "bias_grad": False})


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("sdpa.efficient", "sdpa.math", "te.fused", "te.unfused", "xformers")
]


@pytest.mark.parametrize("backend", ["sdpa.default", *SLOW])
def test_a_sweep_checks_it_of_every_length_that_is_no_multiple_of_8(backend):
    cases = plan([backend], "cuda", 420, seed=5).cases
    learned = [case for case in cases if case["bias_grad"]]
    odd = {case["seq_len_kv"] for case in learned if case["seq_len_kv"] % 8}
    assert {1, 63, 65, 127, 129, 100, 300, 513} <= odd
    shapes = {value["bias_shape"] for value in domain(backend).axes("cuda")["bias"] if value["bias_grad"]}
    assert {case["bias_shape"] for case in learned} == shapes and len(shapes) >= 2
    assert len(learned) < 0.4 * len(cases), "the other masks keep their share"


def test_the_rules_are_reported():
    case = {**CASE, "backend": "sdpa.default", "dtype": "bfloat16", "batch_size": 2, "head_dim_v": 40, "layout": "bhsd",
            "bias_shape": "b1ss", "seed": 0}  # fmt: skip
    facts = case_facts(case)
    assert facts is not None and facts["workload.bias_requires_grad"].value is True
    te = case_facts({**case, "backend": "te.fused", "bias_shape": "1hss"})
    assert te is not None and te["workload.bias_shape"].value == "1hss"
    assert te["workload.bias_requires_grad"].value is True


def test_a_simpler_mask_has_no_gradient():
    case = {**CASE, "backend": "sdpa.math", "bias_shape": "1hss", "alone": True}
    (answer,) = run_program(sys.executable, "sweep", [{"op": "simpler", "case": case}], timeout=60)
    cases = answer.observed["cases"]
    assert {(c["mask"], c["bias_shape"]) for c in cases if c["mask"] != "additive"} == {
        ("no_mask", "b1ss"), ("causal", "b1ss"), ("boolean", "b1ss"),
    }  # fmt: skip
    assert not any(c["alone"] and not c["bias_grad"] for c in cases)
