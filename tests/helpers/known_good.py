"""Environments that work, one on each line of a data file, and what is found in them all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.usual import weigh
from doctor.sources.snapshot import parse_facts
from doctor.sources.workload.defaults import complete_workload
from tests.helpers.rulebook import builtin_rulebook

DATA = Path(__file__).parents[1] / "data"


def read_cases(name: str) -> list[dict[str, Any]]:
    """Return the environments of a data file."""
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def false_findings(case: dict[str, Any], severity: str) -> list[str]:
    """Return the rules that find something, except what is true of the environment and harmless to its job."""
    content = {"facts": case["facts"], **({"workload": case["workload"]} if case["workload"] else {})}
    facts = complete_workload(parse_facts(json.dumps(content), case["id"]))
    rulebook = builtin_rulebook()
    found = weigh(rulebook, facts, evaluate(rulebook, facts)).findings
    return [item.rule for item in found if item.severity == severity and item.rule not in case["true_findings"]]
