"""Predictions against what the libraries themselves answered on a real H200 (`scripts/oracles/ask_*.py`)."""

import json
from pathlib import Path

import pytest

from doctor.diagnosis.batch import predict_case, read_case
from tests.helpers.rulebook import builtin_rulebook

CAPTURES = Path(__file__).parents[1] / "captures"


@pytest.mark.parametrize(
    "capture", ["h200-te2.20.2-cudnn9.19-answers.jsonl", "h200-torch2.11-cu130-sdpa-answers.jsonl"]
)
def test_the_prediction_agrees_with_the_library_itself(capture):
    rulebook = builtin_rulebook()
    wrong = []
    cases = (CAPTURES / capture).read_text().splitlines()
    for line in cases:
        case = json.loads(line)
        expected = case.pop("expect")
        prediction = predict_case(rulebook, read_case(case))
        available = {candidate.backend: candidate.available for candidate in prediction.candidates}
        if prediction.selected != expected["selected"] or any(
            available[backend] is not verdict for backend, verdict in expected["available"].items()
        ):
            wrong.append(case["id"])
    assert len(cases) >= 400
    assert len(wrong) <= len(cases) // 100, wrong
