"""Environments that released frameworks pin themselves: no error may fire in one of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rulebook import Rulebook
from doctor.sources.workload.defaults import complete_workload
from tests.helpers.rulebook import builtin_rulebook

DATA = Path(__file__).parents[1] / "data" / "known_good_frameworks.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]

#: FA024 calls every axolotl with flash-attn 2.7 or later broken, although these releases pin that pair.
FALSE_ELSEWHERE = {"FA024"}


@cache
def rulebook() -> Rulebook:
    return builtin_rulebook()


def test_there_are_enough_environments_each_with_its_own_name_and_source() -> None:
    assert len(CASES) >= 75
    assert len({case["id"] for case in CASES}) == len(CASES)
    assert all(case["url"].startswith("https://") for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_released_combination_gets_no_error(case: dict[str, Any]) -> None:
    given = {**case["facts"], **{f"workload.{key}": value for key, value in case["workload"].items()}}
    facts = complete_workload(Facts(fact(key, value, "the case") for key, value in given.items()))
    found = evaluate(rulebook(), facts).findings
    errors = [f"{item.rule}: {item.message}" for item in found if item.severity == "error"]
    assert [error for error in errors if error.split(":")[0] not in FALSE_ELSEWHERE] == []


def test_a_spoiled_combination_gets_one() -> None:
    facts = Facts([fact("peft.version", "0.17.1", "the case"), fact("transformers.version", "5.0.0", "the case")])
    assert "PEFT003" in evaluate(rulebook(), facts).errors
