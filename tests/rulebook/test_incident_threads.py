"""Public threads about installations: the rule that `docs/incidents.md` names for each fires on its facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rule import as_tuple
from doctor.sources.snapshot import parse_facts
from doctor.sources.workload.defaults import complete_workload
from tests.helpers.rulebook import builtin_rulebook

HERE = Path(__file__).parents[1]
THREADS = [json.loads(line) for line in (HERE / "data" / "incident_threads.jsonl").read_text().splitlines()]
LISTED = "".join(
    (HERE.parent / "docs" / f"incidents{part}.md").read_text()
    for part in ("", "-attention", "-frameworks", "-imports", "-training")
)


@pytest.mark.parametrize("thread", THREADS, ids=lambda thread: thread["url"].removeprefix("https://github.com/"))
def test_the_rule_of_a_thread_fires_on_its_facts(thread: dict[str, Any]) -> None:
    workload = {"workload": thread["workload"]} if "workload" in thread else {}
    facts = parse_facts(json.dumps({"facts": thread["facts"], **workload}), "the thread")
    rulebook = builtin_rulebook()
    general_for = as_tuple(rulebook.rules[thread["rule"]].body.get("yields_to"))  # where these fire, it is silent
    few = rulebook.only({thread["rule"], *general_for} & rulebook.rules.keys())
    found = {item.rule for item in evaluate(few, complete_workload(facts)).findings}
    assert thread["rule"] in found, found


@pytest.mark.parametrize("thread", THREADS, ids=lambda thread: thread["url"].removeprefix("https://github.com/"))
def test_the_list_names_that_rule(thread: dict[str, Any]) -> None:
    rows = [line for line in LISTED.splitlines() if f"({thread['url']})" in line]
    assert any(thread["rule"] in row for row in rows), rows
