"""Programs that really failed, or ran well: `data/programs.yaml` says what an answer has to state of each log."""

import json
import re

import pytest
import yaml

from doctor.report.explanation import as_json
from tests.helpers.paths import DATA

LEAST_RIGHT, MOST_WRONG, LEAST_SILENT = 0.85, 0.02, 0.98


@pytest.fixture(scope="module")
def judged(explainer):
    import io

    from doctor.diagnosis.logs.source import LogSource

    cases = yaml.safe_load((DATA / "programs.yaml").read_text(encoding="utf-8"))
    logs = map(json.loads, (DATA / "logs" / "programs.jsonl").read_text(encoding="utf-8").splitlines())
    found = {}
    for item in logs:
        source = LogSource("log", io.BytesIO(item["log"].encode()))
        found[item["name"]] = json.loads(as_json(explainer.explain(source, fixes=False)))["diagnosis"]
    assert found.keys() == cases.keys()
    return {name: (cases[name], diagnosis) for name, diagnosis in found.items()}


def states(case, first):
    """Return whether an answer names the package, the cause and a fix."""
    text = " ".join([first["cause"], first["message"], first["why"], *first["reasons"]])
    fixes = json.dumps([first["fixes"], first["no_pin"]]) if first["fixes"] or first["no_pin"] else ""
    package = (first["packages"] or [""])[0]
    named = package in case["packages"] or "" in case["packages"]
    return named and re.search(case["says"], text, re.I) is not None and re.search(case["fix"], fixes, re.I) is not None


def test_the_cause_of_programs_that_failed_is_named(judged):
    failed = {name: pair for name, pair in judged.items() if pair[0]["kind"] == "cause"}
    right = [name for name, (case, found) in failed.items() if found and states(case, found[0])]
    wrong = [
        name for name, (_, found) in failed.items() if found and name not in right and found[0]["confidence"] != "low"
    ]
    assert len(failed) >= 60
    assert len(right) / len(failed) >= LEAST_RIGHT, sorted(failed.keys() - {*right})
    assert len(wrong) / len(failed) <= MOST_WRONG, wrong


def test_high_confidence_is_right(judged):
    sure = [(case, found) for case, found in judged.values() if found and found[0]["confidence"] == "high"]
    right = [case for case, found in sure if case["kind"] == "cause" and states(case, found[0])]
    assert len(right) / len(sure) >= 0.95


def test_programs_that_ran_well_or_failed_elsewhere_get_no_diagnosis(judged):
    others = {name: found for name, (case, found) in judged.items() if case["kind"] != "cause"}
    silent = [name for name, found in others.items() if not found]
    assert len(others) >= 35
    assert len(silent) / len(others) >= LEAST_SILENT, sorted(others.keys() - {*silent})
