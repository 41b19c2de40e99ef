"""The rule index finds what judging every rule would find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doctor.diagnosis.batch import read_case
from doctor.rulebook.evaluate import know
from doctor.rulebook.rulebook import _LOADED, load_rulebook
from tests.helpers.rulebook import builtin_rulebook

LINES = (Path(__file__).parents[1] / "data" / "te_backends.jsonl").read_text(encoding="utf-8").splitlines()[::9]


@pytest.fixture(scope="module")
def rulebook():
    return builtin_rulebook()


@pytest.mark.parametrize("line", LINES, ids=[json.loads(line)["id"] for line in LINES])
@pytest.mark.parametrize("parts", [None, True, False])
def test_the_index_loses_and_invents_nothing(rulebook, line, parts):
    facts = read_case(json.loads(line)).without("gpu.sm")  # so that some rules are undetermined
    known, _ = know(rulebook, facts)
    index = rulebook.support.get("transformer_engine")
    shown = {backend.id for backend in rulebook.libraries["transformer_engine"].backends if backend.part_of is None}
    wanted = {
        (rule.id, rule.when.holds(known))
        for rule in index
        if rule.when.holds(known) is not False and (parts is None or parts == (rule.disables[0] not in shown))
    }
    assert {(rule.id, holds) for _, rule, holds in index.firing(known, parts)} == wanted
    assert wanted


def test_positions_keep_the_order_of_the_rules(rulebook):
    known, _ = know(rulebook, read_case(json.loads(LINES[0])))
    index = rulebook.support.get("transformer_engine")
    for position, rule, _ in index.firing(known):
        assert index.rules[position] is rule


def test_a_rule_of_another_release_is_not_parsed():
    _LOADED.clear()  # nothing is parsed yet
    rulebook = load_rulebook()
    known, _ = know(rulebook, read_case(json.loads(LINES[0])))
    index = rulebook.support.get("transformer_engine")
    assert list(index.firing(known))
    parsed = [rule for rule in index if "when" in vars(rule)]
    assert parsed
    assert all(rule.when.holds(known) is False for rule in index if rule not in parsed)
    assert len(parsed) < len(index.rules)
