"""The incidents that attn-doctor exists for: found first, and their near misses left alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from doctor.rulebook.evaluate import Assessment, evaluate
from doctor.sources.snapshot import read_facts
from doctor.sources.workload.defaults import complete_workload
from doctor.sources.workload.recipes import read_job
from tests.helpers.rulebook import builtin_rulebook

EXAMPLES = Path(__file__).parents[2] / "examples"

#: incident: words of the first finding's rule name, what its message says was found, and what it says is wanted
INCIDENTS = {
    "a": (("softcap",), ("flash-attn 2.6.3", "1.13.0"), ">=2.0"),
    "b": (("bottom-right", "cudnn-9.3"), ("cuDNN 9.1.0",), ">= 9.3"),
    "c": (("xtuner", "transformers"), ("xtuner 0.1.23", "4.44.2"), "<4.43"),
    "d": (("mla", "backend"), ("head_dim_qk 192", "head_dim_v 128", "sm 8.0"), "V padded"),
    "e": (("interleaved",), ("TransformerEngine 1.11.0", "16 query", "1 key/value"), ">=1.12"),
    "f": (("cudnn",), ("cuDNN 9.14.0",), "9.19.0"),
}
NEAR_MISSES = tuple(sorted(folder.name for folder in (EXAMPLES / "near_misses").iterdir()))


@cache
def assess(folder: str) -> Assessment:
    place = EXAMPLES / folder
    facts = read_facts(place / "facts.yaml").with_(*read_job(place / "workload.yaml").values())
    return evaluate(builtin_rulebook(), complete_workload(facts))


def test_the_six_incidents_and_seven_near_misses_are_there() -> None:
    assert {folder.name for folder in (EXAMPLES / "incidents").iterdir()} == set(INCIDENTS)
    assert len(NEAR_MISSES) >= 7


@pytest.mark.parametrize("incident", sorted(INCIDENTS))
def test_the_cause_of_an_incident_is_its_first_error(incident: str) -> None:
    words, found, wanted = INCIDENTS[incident]
    findings = assess(f"incidents/{incident}").findings
    assert findings, "nothing was found"
    first = findings[0]
    assert first.severity == "error"
    assert all(word in first.name for word in words), first.name
    assert all(text in first.message for text in found), first.message
    told = [first.message, *(evidence.needs for evidence in first.evidence)]  # what a report shows of it
    assert any(wanted in text for text in told), told
    assert first.references
    assert first.alternatives or first.no_pin


@pytest.mark.parametrize("near_miss", NEAR_MISSES)
def test_a_near_miss_is_left_alone(near_miss: str) -> None:
    errors = [f"{found.rule}: {found.message}" for found in assess(f"near_misses/{near_miss}").findings
              if found.severity == "error"]  # fmt: skip
    assert errors == []


@pytest.mark.parametrize("near_miss", NEAR_MISSES)
def test_a_near_miss_is_silent_because_it_was_judged(near_miss: str) -> None:
    """No error rule of the incident it resembles is merely undetermined."""
    incident = near_miss[0]
    cause = assess(f"incidents/{incident}").findings[0].rule
    unclear = {rule for group in assess(f"near_misses/{near_miss}").undetermined for rule in group.rules}
    assert cause not in unclear


@pytest.mark.parametrize("folder", [f"incidents/{name}" for name in sorted(INCIDENTS)])
def test_every_fact_of_an_incident_is_known(folder: str) -> None:
    facts = read_facts(EXAMPLES / folder / "facts.yaml")
    assert [fact.key for fact in facts.values() if not fact.known] == []
