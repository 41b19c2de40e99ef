"""Environments that projects ship (images, lock files, requirements): no error, and few warnings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.known_good import false_findings, read_cases

CASES = read_cases("known_good_projects.jsonl")


def test_there_are_many_of_many_projects() -> None:
    assert len(CASES) >= 90
    assert len({case["id"] for case in CASES}) == len(CASES)
    assert len({case["url"].split("/")[4] for case in CASES}) >= 25


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_an_environment_that_a_project_ships_gets_no_error(case: dict[str, Any]) -> None:
    assert false_findings(case, "error") == []


def test_warnings_are_rare() -> None:
    warned = {case["id"]: found for case in CASES if (found := false_findings(case, "warning"))}
    assert len(warned) <= len(CASES) // 20, warned
