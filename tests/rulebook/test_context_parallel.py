"""What 293 context-parallel cases did on two H200s, and what the rulebook says of each.

`captures/h200x2-context-parallel.jsonl` was written by `scripts/gpu/context_parallel_cases.py`: a line per stack and
case, with the result of each run and the largest error of output and gradients.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.diagnosis.batch import predict_case, read_case
from doctor.rulebook.evaluate import evaluate
from tests.helpers.rulebook import builtin_rulebook

CAPTURES = Path(__file__).parents[1] / "captures" / "h200x2-context-parallel.jsonl"
LINES = [json.loads(line) for line in CAPTURES.read_text(encoding="utf-8").splitlines()]
H200 = {
    "gpu.sm": "9.0", "cudnn.version": "9.19.0", "flash-attn.version": "absent", "flash-attn-3.version": "absent",
    "flash-attn-4.version": "absent", "flashattn-hopper.version": "absent",
}  # fmt: skip
STACKS: dict[str, dict[str, str]] = {
    "te 2.20.2, cuDNN 9.19.0": {"transformer-engine.version": "2.20.2", "env.NVTE_FLASH_ATTN": "0"},
    "te 2.20.2, flash-attn 2.8.3": {
        "transformer-engine.version": "2.20.2", "flash-attn.version": "2.8.3", "env.NVTE_FUSED_ATTN": "0",
    },
    "te 2.19.0, flash-attn 2.8.3": {
        "transformer-engine.version": "2.19.0", "flash-attn.version": "2.8.3", "env.NVTE_FUSED_ATTN": "0",
    },
    "te 2.19.0, cuDNN 9.1.0": {"transformer-engine.version": "2.19.0", "cudnn.version": "9.1.0"},
}  # fmt: skip
TE_LINES = [line for line in LINES if line["stack"] in STACKS]
RING_LINES = [line for line in LINES if line["stack"].startswith("ring-flash-attn")]


@pytest.fixture(scope="module")
def rulebook():
    return builtin_rulebook()


def case_of(line: dict[str, Any], facts: dict[str, str], **more: Any) -> Any:
    case = dict(line["case"], cp_size=2, training=True, **more)
    case.setdefault("qkv_layout", "bshd_bshd_bshd")
    library, _, comm = case.pop("engine").partition(".")
    if library == "te":
        case.update(cp_comm_type=comm, **({"cp_size_a2a": 2} if comm == "a2a+p2p" else {}))
    if case.pop("packed", False):
        case.update(qkv_layout="thd_thd_thd", mask={"causal": "padding_causal", "no_mask": "padding"}[case["mask"]])
    return read_case({"facts": {**H200, **facts}, "workload": case})


def test_every_case_gave_the_same_result_in_each_run():
    assert len(LINES) == 293 and all(len(set(line["results"])) == 1 for line in LINES)
    assert sum(line["results"] == ["right"] * 3 for line in LINES) == 242


@pytest.mark.parametrize("stack", STACKS)
def test_a_failure_is_predicted_if_and_only_if_it_was_seen(rulebook, stack):
    lines = [line for line in TE_LINES if line["stack"] == stack]
    for line in lines:
        said = predict_case(
            rulebook, case_of(line, STACKS[stack], framework="transformer_engine", seq_len_kv=line["case"]["seq_len_q"])
        )
        right = line["results"][0] == "right"
        assert (said.selected is not None and said.fails_at_run is None) == right, (line, said.fails_at_run)
        if right:
            assert (said.selected, said.could_tell) == (line["selected"], True), line


def test_packed_sequences_on_flash_attn_2_are_wrong_as_the_rule_says(rulebook):
    wrong = [line for line in TE_LINES if line["results"][0] == "wrong"]
    assert len(wrong) == 16 and {line["case"]["engine"] for line in wrong} == {"te.all_gather"}
    for line in wrong:
        said = predict_case(rulebook, case_of(line, STACKS[line["stack"]], framework="transformer_engine"))
        assert said.fails_at_run is not None and said.fails_at_run.rule == "TE614"


def test_incident_b_failed_on_two_ranks_as_the_rule_says(rulebook):
    (line,) = [line for line in TE_LINES if line["stack"] == "te 2.19.0, cuDNN 9.1.0"]
    said = predict_case(rulebook, case_of(line, STACKS[line["stack"]], framework="transformer_engine"))
    assert said.fails_at_run is not None and said.fails_at_run.rule == "TE103"
    assert "Invalid combination of data type and sequence length for fused attention" in line["reason"]


def test_windows_of_ring_flash_attn_are_wrong_but_for_llama3(rulebook):
    ring = {"ring-flash-attn.version": "0.1.8", "flash-attn.version": "2.8.3"}
    for line in RING_LINES:
        windowed = bool(line["case"].get("window"))
        wrong = windowed and not line["case"]["engine"].endswith("llama3")
        assert (line["results"][0] == "wrong") == wrong, line
        known = case_of(line, ring, framework="flash_attn", seq_len_kv=line["case"]["seq_len_q"])
        found = {finding.rule for finding in evaluate(rulebook, known).findings}
        assert ("RFA003" in found) == windowed, line
