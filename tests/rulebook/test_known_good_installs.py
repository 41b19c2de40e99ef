"""Installations that their publishers name: no error, and few warnings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.rulebook.evaluate import evaluate
from doctor.sources.snapshot import parse_facts
from doctor.sources.workload.defaults import complete_workload
from tests.helpers.rulebook import builtin_rulebook

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "known_good_installs.jsonl").read_text().splitlines()
]
FEW = len(CASES) // 20


def found(case: dict[str, Any]) -> list[tuple[str, str]]:
    content = {"facts": case["facts"], **({"workload": case["workload"]} if case["workload"] else {})}
    facts = parse_facts(json.dumps(content), case["id"])
    return [(item.rule, item.severity) for item in evaluate(builtin_rulebook(), complete_workload(facts)).findings]


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 75
    assert all(case["url"].startswith("https://") for case in CASES)
    assert len({case["id"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_an_installation_that_works_gets_no_error(case: dict[str, Any]) -> None:
    assert [rule for rule, severity in found(case) if severity == "error"] == []


def test_warnings_are_rare() -> None:
    warned = {case["id"]: found(case) for case in CASES}
    assert sum(any(severity == "warning" for _, severity in items) for items in warned.values()) <= FEW
