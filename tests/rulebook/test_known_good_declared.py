"""Environments that projects name in Dockerfiles, scripts, requirements, release tables and model cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.rulebook.evaluate import evaluate
from doctor.sources.snapshot import parse_facts
from doctor.sources.workload.defaults import complete_workload
from tests.helpers.rulebook import builtin_rulebook

DATA = Path(__file__).parents[1] / "data" / "known_good_declared.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


def false_findings(case: dict[str, Any], severity: str) -> list[str]:
    """Return the rules that find something, except what is true of the environment and harmless to its job."""
    content = {"facts": case["facts"], **({"workload": case["workload"]} if case["workload"] else {})}
    facts = complete_workload(parse_facts(json.dumps(content), case["id"]))
    found = evaluate(builtin_rulebook(), facts).findings
    return [item.rule for item in found if item.severity == severity and item.rule not in case["true_findings"]]


def test_there_are_many_each_with_its_own_name_and_source() -> None:
    assert len(CASES) >= 340
    assert len({case["id"] for case in CASES}) == len(CASES)
    assert all(case["url"].startswith("https://") for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_an_environment_of_a_project_gets_no_error(case: dict[str, Any]) -> None:
    assert false_findings(case, "error") == []


def test_warnings_are_rare() -> None:
    warned = {case["id"]: found for case in CASES if (found := false_findings(case, "warning"))}
    assert len(warned) <= len(CASES) // 25, warned
