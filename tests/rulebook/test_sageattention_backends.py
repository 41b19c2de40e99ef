"""Which kernel sageattn dispatches to, by release and compute capability (core.py of 1.0.6, 2.0.1 and 2.2.0)."""

import json

import pytest

from doctor.diagnosis.batch import answer
from tests.helpers.rulebook import builtin_rulebook


def predicted(version, sm, **changed):
    workload = {
        "framework": "sageattention", "dtype": "bfloat16", "head_dim_qk": 128, "head_dim_v": 128, "mask": "no_mask",
        "training": False, **changed,
    }  # fmt: skip
    facts = {"sageattention.version": version, "gpu.sm": sm}
    return answer(builtin_rulebook(), json.dumps({"id": "x", "facts": facts, "workload": workload}))[0]


@pytest.mark.parametrize(
    ("version", "sm", "backend"),
    [
        ("1.0.6", "8.9", "sage.fp16_triton"),
        ("1.0.6", "10.0", "sage.fp16_triton"),
        ("2.0.1", "8.0", "sage.fp16_cuda"),
        ("2.0.1", "8.6", "sage.fp16_triton"),
        ("2.0.1", "9.0", "sage.fp16_cuda"),
        ("2.0.1", "12.0", None),
        ("2.2.0", "8.6", "sage.fp16_triton"),
        ("2.2.0", "8.9", "sage.fp8_cuda"),
        ("2.2.0", "9.0", "sage.fp8_sm90"),
        ("2.2.0", "12.0", "sage.fp8_cuda"),
        ("2.2.0", "10.0", None),
        ("2.2.0", "7.5", None),
        ("absent", "9.0", None),
    ],
)
def test_kernel_by_capability(version, sm, backend):
    found = predicted(version, sm)
    assert found["could_tell"]
    assert found["selected"] == backend


def test_what_the_kernels_refuse():
    assert predicted("2.2.0", "9.0", dtype="float32")["selected"] is None
    assert predicted("1.0.6", "9.0", dtype="float32")["selected"] == "sage.fp16_triton"
    assert predicted("2.2.0", "9.0", head_dim_qk=256, head_dim_v=256)["selected"] is None
    assert predicted("2.2.0", "9.0", head_dim_qk=72, head_dim_v=72)["selected"] == "sage.fp8_sm90"
    assert predicted("1.0.6", "9.0", head_dim_qk=72, head_dim_v=72)["selected"] is None


def test_unknown_gpu_leaves_the_kernel_open():
    assert not predicted("2.2.0", None)["could_tell"]
