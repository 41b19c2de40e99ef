"""Two findings on one report do not contradict each other: some fix of the one goes with some fix of the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from doctor.model import ABSENT, Finding, Remedy, Severity
from doctor.packages.index import load_index
from doctor.rulebook.evaluate import evaluate
from doctor.sources.snapshot import parse_facts
from doctor.sources.workload.defaults import complete_workload
from tests.helpers.rulebook import builtin_rulebook

THREADS = Path(__file__).parents[1] / "data" / "incident_threads.jsonl"


def clashes(one: Remedy, other: Remedy) -> Iterator[str]:
    """Yield what cannot be done together of two remedies."""
    for name in one.require.keys() & other.require.keys():
        if not _meet(name, one.require[name], other.require[name]):
            yield f"{name}{one.require[name]} and {name}{other.require[name]}"
    for name in one.set_env.keys() & other.set_env.keys():
        if str(one.set_env[name]) != str(other.set_env[name]):
            yield f"{name}={one.set_env[name]} and {name}={other.set_env[name]}"
    yield from (f"{name} set and unset" for name in {*one.set_env} & {*other.unset_env})
    yield from (f"{name} set and unset" for name in {*other.set_env} & {*one.unset_env})
    for key in one.config.keys() & other.config.keys():
        if one.config[key] != other.config[key]:
            yield f"{key} {one.config[key]} and {other.config[key]}"


def _meet(name: str, first: str, second: str) -> bool:
    """Whether some release on record is in both ranges; unknown counts as yes."""
    if ABSENT in (first, second):
        return first == second
    if {*"+{"} & {*first, *second}:
        return True  # a build with a label, or a range that facts fill in
    releases = load_index().releases(name)
    both = SpecifierSet(f"{first},{second}", prereleases=True)
    return not releases or any(both.contains(one) for one in releases)


def contradictions(found: list[Finding]) -> Iterator[str]:
    """Yield the pairs of findings of which every fix of one clashes with every fix of the other."""
    fixable = [one for one in found if one.alternatives and one.severity != Severity.NOTE]
    for one, other in combinations(fixable, 2):
        pairs = product(one.alternatives, other.alternatives)
        reasons = [next(clashes(mine, theirs), "") for mine, theirs in pairs]
        if all(reasons):
            yield f"{one.rule} and {other.rule}: {reasons[0]}"


def judged(case: Mapping[str, Any]) -> list[Finding]:
    workload = {"workload": case["workload"]} if "workload" in case else {}
    facts = parse_facts(json.dumps({"facts": case["facts"], **workload}), "the case")
    return list(evaluate(builtin_rulebook(), complete_workload(facts)).findings)


def test_no_two_findings_on_a_thread_contradict() -> None:
    cases = {line: json.loads(line) for line in THREADS.read_text(encoding="utf-8").splitlines()}
    found = {text for case in cases.values() for text in contradictions(judged(case))}
    assert not found


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Remedy(require={"transformers": "<4.48"}), Remedy(require={"transformers": ">=4.52"}), True),
        (Remedy(require={"transformers": "<4.53"}), Remedy(require={"transformers": ">=4.52"}), False),
        (Remedy(require={"flash-attn": ABSENT}), Remedy(require={"flash-attn": ">=2.7"}), True),
        (Remedy(require={"torch": "==2.9.1+cu130"}), Remedy(require={"torch": ">=2.9"}), False),
        (Remedy(set_env={"NVTE_FUSED_ATTN": "0"}), Remedy(set_env={"NVTE_FUSED_ATTN": "1"}), True),
        (Remedy(set_env={"NVTE_FUSED_ATTN": "0"}), Remedy(unset_env=("NVTE_FUSED_ATTN",)), True),
        (Remedy(config={"workload.dtype": "float16"}), Remedy(config={"workload.dtype": "bfloat16"}), True),
        (Remedy(config={"workload.dtype": "float16"}), Remedy(call="model.eval()"), False),
    ],
)
def test_remedies_that_exclude_each_other_are_found(one: Remedy, other: Remedy, expected: bool) -> None:
    assert bool(list(clashes(one, other))) is expected
