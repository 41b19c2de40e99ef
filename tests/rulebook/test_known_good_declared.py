"""Environments that projects name in Dockerfiles, scripts, requirements, release tables and model cards."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.known_good import false_findings, read_cases

CASES = read_cases("known_good_declared.jsonl")


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
