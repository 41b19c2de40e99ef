"""The work of one decision of `backends --batch`, in calls of functions: it neither grows nor follows the rules."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import FrameType

import pytest

from doctor.diagnosis.batch import answer
from doctor.rulebook.rulebook import Rulebook, load_rulebook
from doctor.util.outgoing import outgoing

#: Calls for one decision, with its answer in JSON. More is a repetition of what depends on the rules alone.
MOST_CALLS = 1100


def case(number: int) -> str:
    """Return one line of a batch: no two of the first hundreds are alike."""
    te = ("1.11.0", "1.13.0", "2.1", "2.3.0", "2.8.0", "2.14.0")[number % 6]
    facts = {
        "transformer-engine.version": te, "gpu.sm": ("8.0", "8.9", "9.0", "10.0")[number % 4],
        "cudnn.version": ("8.9.7", "9.1.0", "9.3.0", "9.10.2", "9.13.0")[number % 5],
        "flash-attn.version": ("absent", "2.6.3", "2.7.4.post1")[number % 3], "flash-attn-3.version": "absent",
    }  # fmt: skip
    workload = {
        "framework": "transformer_engine", "dtype": "bfloat16", "head_dim_qk": (64, 128, 192)[number % 3],
        "head_dim_v": 128, "num_heads": 32, "num_kv_heads": 8, "batch_size": 2, "seq_len_q": 128 * (number + 1),
        "seq_len_kv": 128 * (number + 1), "mask": ("causal", "no_mask", "causal_bottom_right")[number % 3],
        "window": None if number % 7 else [1023, 0], "dropout": 0.0 if number % 5 else 0.1, "training": True,
        "deterministic": number % 11 == 0, "qkv_layout": "bshd_bshd_bshd",
    }  # fmt: skip
    return json.dumps({"id": f"case {number}", "facts": facts, "workload": workload})


def calls(rulebook: Rulebook, lines: Sequence[str]) -> float:
    """Return how many Python functions answer one of these lines, which other lines came before."""
    count = 0

    def see(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        for line in lines:
            found, good = answer(rulebook, line)
            assert good, found
            outgoing(json.dumps(found))
    finally:
        sys.setprofile(before)
    return count / len(lines)


@pytest.fixture(scope="module")
def warm() -> Rulebook:
    """The rulebook after the first lines, which parse the rules that they need."""
    rulebook = load_rulebook()
    calls(rulebook, [case(number) for number in range(60)])
    return rulebook


def test_a_decision_takes_few_calls(warm: Rulebook) -> None:
    assert calls(warm, [case(number) for number in range(60, 180)]) < MOST_CALLS


def test_a_decision_takes_no_more_calls_after_many(warm: Rulebook) -> None:
    first = calls(warm, [case(number) for number in range(180, 240)])
    calls(warm, [case(number) for number in range(240, 480)])
    assert calls(warm, [case(number) for number in range(480, 540)]) < 1.05 * first


def test_a_decision_takes_no_more_calls_where_other_libraries_have_more_rules(warm: Rulebook) -> None:
    lines = [case(number) for number in range(60)]
    other = [rule for rule in warm.rules.values() if rule.library not in ("transformer_engine", "torch", "flash_attn")]
    assert len(other) > 500
    more = Rulebook({**warm.rules, **{f"X{rule.id}": rule for rule in other}}, warm.libraries)
    calls(more, lines)
    assert calls(more, lines) < 1.05 * calls(warm, lines)
