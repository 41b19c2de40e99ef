"""Logs without an error whose job is slow: the line that names the slower path is the likely cause."""

import json

import pytest

from doctor.report.explanation import as_json

RECOMPILES = (
    "W1125 15:30:48.005000 3852 torch/_dynamo/convert_frame.py:1358] [0/8] torch._dynamo hit config.recompile_limit (8)"
)
STEPS = "\n".join(f"step {step} loss {3 - step / 100:.2f}" for step in range(8))


def answer(explain, log):
    return json.loads(as_json(explain(f"{log}\n", fixes=False)))


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        (RECOMPILES, "dynamic=True"),
        ("[attn] no fused kernel for this mask: falling back to the reference attention", "backend"),
    ],
)
def test_a_slower_path_is_the_likely_cause_of_a_job_that_is_slow(explain, line, fix):
    (first,) = answer(explain, f"{STEPS}\n{line}\nSince the update every step is 3x slower than before")["diagnosis"]
    assert first["confidence"] == "medium" and first["line"] == 9 and fix in json.dumps(first["fixes"])


def test_a_program_that_says_what_its_path_costs_gives_a_cause_of_low_confidence(explain):
    log = (
        "WARNING: Flash Attention 3 not available, using PyTorch SDPA fallback\n"
        f"WARNING: Training will be less efficient without FA3\n{STEPS}"
    )
    (first,) = answer(explain, log)["diagnosis"]
    assert first["confidence"] == "low" and first["line"] == 1


def test_without_a_complaint_the_slower_path_is_only_shown(explain):
    report = answer(explain, f"{RECOMPILES}\n{STEPS}")
    assert report["diagnosis"] == [] and "recompile_limit" in " ".join(report["shown"])


def test_a_failure_is_not_explained_by_the_slower_path(explain):
    report = answer(explain, f"{RECOMPILES}\nevery step is slow\nKeyError: 'labels'")
    assert all(item["line"] != 1 for item in report["diagnosis"])


def test_a_fallback_of_other_code_is_no_slower_path(explain):
    report = answer(explain, f"INFO: falling back to the local copy of the data\nthe training is slow\n{STEPS}")
    assert report["diagnosis"] == [] and report["shown"] == []
