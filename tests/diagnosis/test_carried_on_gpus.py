"""What 41 jobs did on two H100s: the kernels got the words of the jobs, and ran what the rules say.

`captures/h100x2-carried-words.jsonl` was written by `scripts/gpu/carried_words.py`: a line per job, with its words, the
requests that its kernels got, and what they observed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.diagnosis.carried_words import dropped
from doctor.diagnosis.confirm import job_of, words_of
from doctor.diagnosis.job_runs import job_requests
from doctor.model import Fact, Facts
from doctor.rulebook.evaluate import evaluate
from doctor.sources.workload.defaults import complete_workload
from doctor.sources.workload.files import parse_settings
from tests.helpers.rulebook import builtin_rulebook

CAPTURES = Path(__file__).parents[1] / "captures" / "h100x2-carried-words.jsonl"
LINES: list[dict[str, Any]] = [json.loads(line) for line in CAPTURES.read_text(encoding="utf-8").splitlines()]


def assessed(line: dict[str, Any]) -> Any:
    said = parse_settings(
        [
            f"workload.{word}={value if isinstance(value, str) else json.dumps(value)}"
            for word, value in line["words"].items()
        ]
    )
    facts = Facts(Fact(key, value, "the capture") for key, value in line["facts"].items())
    return evaluate(builtin_rulebook(), complete_workload(facts.with_(*said.values())))


@pytest.fixture(scope="module")
def judged() -> list[tuple[dict[str, Any], Any]]:
    return [(line, assessed(line)) for line in LINES]


def run_of(line: dict[str, Any], kernel: str) -> dict[str, Any]:
    return next((run for run in line["runs"] if run["kernel"] == kernel), {})


def test_the_kernels_get_the_same_requests_today(judged):
    for line, found in judged:
        requests = job_requests(found.known, job_of(found.known, words_of(found.known)))
        assert requests == [(run["kernel"], run["request"]) for run in line["runs"]], line["words"]


def test_the_words_that_did_not_arrive_are_named(judged):
    for line, _ in judged:
        for run in line["runs"]:
            lost = dropped(run["kernel"], run["request"])
            assert set(run.get("not_carried", ())) == (set(lost) if run["outcome"] == "ran" else set()), line["words"]
            assert run["verdict"] == "inconclusive" or not lost


def test_the_backend_that_ran_is_the_predicted_one(judged):
    count = 0
    for line, found in judged:
        (predicted,) = found.predictions
        for run in line["runs"]:
            if run.get("ran"):
                count += 1
                assert [f"sdpa.{name}" for name in run["ran"]] == [predicted.selected], (line["words"], run)
                pinned = line["words"].get("sdpa_backend")
                assert pinned in (None, *run["ran"]), "the pin reached the kernel, on one rank and on two"
    assert count == 53


def test_gradients_are_wrong_over_ranks_where_the_rule_says_so_and_nowhere_else(judged):
    """SDPA427: dq and dk on the pinned efficient backend; out and dv are right, as are all other jobs."""
    wrong = 0
    for line, found in judged:
        run = run_of(line, "context_parallel")
        if run.get("wrong") is None:
            continue
        fires = any(
            prediction.fails_at_run is not None and prediction.fails_at_run.rule == "SDPA427"
            for prediction in found.predictions
        )
        assert run["wrong"] is fires, line["words"]
        assert run["offenders"] == (["dq", "dk"] if fires else [])
        assert not fires or run["errors"]["dq"] > 0.2 > 0.01 > max(run["errors"]["out"], run["errors"]["dv"])
        wrong += fires
        assert ("SDPA427" in line["confirmed"]) == (fires and run["verdict"] != "inconclusive")
    assert wrong == 7
