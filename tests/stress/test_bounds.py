"""How tight the sweep judges: what rounding explains passes, three times that is a fault, and of that tensor alone."""

from __future__ import annotations

import pytest

from doctor.stress.worker import Worker
from tests.helpers.paths import HELPERS

FAULTS = HELPERS / "faults.py"
CASES = [
    {"dtype": "bfloat16", "mask": "causal", "seq_len_q": 127, "head_dim_qk": 64},
    {"dtype": "float16", "mask": "no_mask", "seq_len_q": 65, "seq_len_kv": 129, "head_dim_qk": 40},
    {"dtype": "bfloat16", "mask": "additive", "seq_len_q": 129, "head_dim_qk": 96, "layout": "bshd"},
    {"dtype": "float16", "mask": "boolean", "seq_len_q": 100, "head_dim_qk": 80, "layout": "fused"},
]


@pytest.fixture(scope="module")
def judged(torch_python):
    """Backend, number of the case → the answer; all in one process."""
    names = ["healthy", "off_out", "off_dq", "off_dk", "off_dv"]
    asked = [
        {"backend": f"file:{FAULTS}:{name}", "device": "cpu", "seed": number, **case}
        for name in names for number, case in enumerate(CASES)
    ]  # fmt: skip
    answers = {}
    worker = Worker(torch_python, timeout=60.0)
    worker.run(asked, lambda case, answer: answers.__setitem__((case["backend"][-7:], case["seed"]), answer))
    return answers


@pytest.mark.parametrize("number", range(len(CASES)))
def test_rounding_explains_a_healthy_kernel(judged, number):
    observed = judged["healthy", number].observed
    assert observed["faults"] == []
    for name, error in observed["errors"].items():
        assert 0.2 * error["healthy"] < error["rel"] < 2 * error["healthy"] < 1.2 * observed["bound"][name]


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("tensor", ["out", "dq", "dk", "dv"])
def test_three_times_the_healthy_error_is_a_fault_of_that_tensor(judged, number, tensor):
    observed = judged[f"off_{tensor}".rjust(7, ":")[-7:], number].observed
    found = set(observed["faults"])
    assert tensor in found, observed["errors"]
    # An output that is off reaches the gradients through the rows' sums; a gradient reaches nothing else.
    assert found <= {tensor} if tensor != "out" else True
