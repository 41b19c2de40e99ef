"""Public threads: the rule that `docs/data/threads.csv` names for each fires on its facts."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.signatures import load_log_rules
from doctor.sources.snapshot import parse_facts
from doctor.sources.workload.defaults import complete_workload
from tests.helpers.rulebook import builtin_rulebook

HERE = Path(__file__).parents[1]
THREADS = [json.loads(line) for line in (HERE / "data" / "incident_threads.jsonl").read_text().splitlines()]
with (HERE.parent / "docs" / "data" / "threads.csv").open(encoding="utf-8", newline="") as file:
    LISTED = list(csv.DictReader(file))
OUTCOMES = ("rule", "more data", "kernel run", "out of scope", "open")


@pytest.mark.parametrize("thread", THREADS, ids=lambda thread: thread["url"].removeprefix("https://github.com/"))
def test_the_rule_of_a_thread_fires_on_its_facts(thread: dict[str, Any]) -> None:
    workload = {"workload": thread["workload"]} if "workload" in thread else {}
    facts = parse_facts(json.dumps({"facts": thread["facts"], **workload}), "the thread")
    rulebook = builtin_rulebook()
    general_for = rulebook.rules[thread["rule"]].yields_to  # where these fire, it is silent
    few = rulebook.only({thread["rule"], *general_for} & rulebook.rules.keys())
    found = {item.rule for item in evaluate(few, complete_workload(facts)).findings}
    assert found & {thread["rule"], *general_for}, found  # one that it yields to may report the same fault


@pytest.mark.parametrize("thread", THREADS, ids=lambda thread: thread["url"].removeprefix("https://github.com/"))
def test_the_list_names_that_rule(thread: dict[str, Any]) -> None:
    results = [row["result"] for row in LISTED if row["url"] == thread["url"]]
    assert any(thread["rule"] in result for result in results), results


def test_the_summary_counts_what_the_list_holds() -> None:
    page = (HERE.parent / "docs" / "threads.md").read_text(encoding="utf-8")
    for name in (*dict.fromkeys(row["set"] for row in LISTED), "all"):
        found = Counter(row["outcome"] for row in LISTED if name in ("all", row["set"]))
        counts = (f"{number:,}" for number in (found.total(), *(found[outcome] for outcome in OUTCOMES)))
        assert f"| {name} | {' | '.join(counts)} |" in page


def test_every_listed_rule_exists() -> None:
    known = {*builtin_rulebook().rules, *(item.rule.id for item in load_log_rules())}
    prefixes = {rule.rstrip("0123456789") for rule in known}
    named = {name for row in LISTED for name in re.findall(r"\b[A-Z]{2,9}\d{3}\b", row["result"])}
    assert {name for name in named if name.rstrip("0123456789") in prefixes} <= known
