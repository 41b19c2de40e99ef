"""A message that requires releases decides about the fix."""

import pytest

from doctor.diagnosis.logs.stated_ranges import stated

KERNELS = "Please install a compatible version (0.18.2 <= version < 0.19.0), e.g. `pip install kernels==0.18.2`"


@pytest.mark.parametrize(
    ("line", "packages", "wanted"),
    [
        (f"ImportError: `kernels` is not installed. {KERNELS}", ["kernels"], {"kernels": ">=0.18.2,<0.19.0"}),
        ("ImportError: peft>=0.17,<0.18 is required", ["peft", "transformers"], {"peft": ">=0.17,<0.18"}),
        (
            "ImportError: the `Trainer` requires `accelerate>=1.1.0`: run pip",
            ["accelerate"],
            {"accelerate": ">=1.1.0"},
        ),
        ("vllm 0.8 requires torch==2.6.0, but you have torch 2.5.1", ["torch"], {"torch": "==2.6.0"}),
    ],
)
def test_the_range_of_a_message(line, packages, wanted):
    assert stated(line, packages).require == wanted


@pytest.mark.parametrize(
    "line",
    [
        "this release does not support numpy>=2",
        "incompatible with torch>=2.9",
        "found torch==2.5.1",
        "requires python>=3.10",
        "torch is too old",
    ],
)
def test_no_range_of_what_does_not_fit(line):
    assert stated(line, ["torch", "numpy"]) is None


def test_the_fix_is_the_range_of_the_message(explain):
    log = f"ImportError: `kernels` is either not installed or uses an incompatible version. {KERNELS}\n"
    first = explain(log, fixes=False).diagnosis[0]
    assert first.remedies[0].require == {"kernels": ">=0.18.2,<0.19.0"}
    assert not any("install -U kernels" in (remedy.call or "") for remedy in first.remedies)
