"""Pairs of real releases whose truth `scripts/oracles/execute_drift.py` found by making the calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doctor.drift.analysis import analyze_caller
from doctor.drift.collector import breaks
from doctor.drift.download import fetch_release
from doctor.drift.sources import Environment
from tests.helpers.rulebook import builtin_stack

ROWS = json.loads((Path(__file__).parent / "executed.json").read_text())
CACHE = Path("/tmp/drift/src")


def test_the_captured_answers_cover_both_outcomes_and_name_their_sites():
    assert len(ROWS) >= 40 and {row["verdict"] for row in ROWS} == {"ok", "broken"}
    for row in ROWS:
        assert row["reached"] > 0 or row["violations"]
        assert (row["verdict"] == "broken") is bool(row["violations"])


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: "{caller}-{caller_version}-x-{callee}-{callee_version}".format(**row)
)
def test_the_analyzer_agrees_with_the_executed_call(row):
    caller = fetch_release(row["caller"], row["caller_version"], CACHE)
    callee = fetch_release(row["callee"], row["callee_version"], CACHE)
    environment = Environment([caller, callee], builtin_stack())
    packages = environment.packages.values()
    name = row["caller"].replace("-", "_")  # a wheel may bring another folder, such as `test`
    (mine,) = (item for item in packages if item.name == name and item.location == caller)
    targets = [item for item in packages if item.release.name == row["callee"]]
    found = [item for item in analyze_caller(environment, mine, targets).findings if breaks(item)]
    assert bool(found) is (row["verdict"] == "broken"), found
    executed = {site for site, _, kind, _ in row["violations"] if kind in ("bind", "unpack")}
    if executed:
        assert executed & {str(item.site) for item in found}
