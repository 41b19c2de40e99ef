"""A nightly build of torch is judged by the releases next to it; a job without a named GPU by every usual one."""

from __future__ import annotations

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts, Severity
from doctor.rulebook.evaluate import Assessment, evaluate
from doctor.rulebook.nightly import judge_nightly, neighbours
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.usual import weigh

MASKED = {
    "torch.cuda": "12.1",
    "gpu.sm": "8.0",
    "workload.framework": "torch_sdpa",
    "workload.dtype": "float32",
    "workload.head_dim_qk": 64,
    "workload.num_heads": 12,
    "workload.batch_size": 1,
    "workload.seq_len_q": 512,
    "workload.mask": "arbitrary",
    "workload.mask_dtype": "float",
    "workload.fully_masked_rows": True,
    "workload.training": False,
}


def judged(values: dict[str, object]) -> Assessment:
    rulebook = load_rulebook()
    facts = Facts([fact(key, value, "a test") for key, value in values.items()])
    return judge_nightly(rulebook, facts, weigh(rulebook, facts, evaluate(rulebook, facts)))


@pytest.mark.parametrize(
    ("version", "releases"),
    [
        ("2.6.0.dev20241004+cu124", ("2.6.0+cu124", "2.5.0+cu124")),
        ("2.1.0.dev20230910", ("2.1.0", "2.0.0")),
        ("2.6.0a0+ecf3bae", ()),  # a container: no day of the build
        ("2.5.0rc10+cu124", ("2.5.0+cu124",)),
        ("2.6.0", ()),
    ],
)
def test_neighbours(version: str, releases: tuple[str, ...]) -> None:
    assert neighbours(version) == releases


def test_a_nightly_has_the_faults_of_its_neighbours() -> None:
    found = {item.rule: item for item in judged({**MASKED, "torch.version": "2.1.0.dev20230910+cu121"}).findings}
    assert found["SDPA421"].severity == Severity.WARNING
    assert "if the nightly 2.1.0.dev20230910+cu121 is like 2.1.0 here" in found["SDPA421"].message


def test_a_candidate_that_lacks_a_fact_too_is_judged_as_its_release() -> None:
    job = {"torch.version": "2.5.0rc10", "torch.cuda": "12.4", "gpu.sm": "9.0", "workload.framework": "torch_sdpa"}
    found = {item.rule: item for item in judged({**job, "workload.dtype": "bfloat16"}).findings}
    assert "if the candidate 2.5.0rc10 is like 2.5.0 here" in found["TORCH012"].message


def test_a_container_is_left_open() -> None:
    assessment = judged({**MASKED, "torch.version": "2.1.0a0+32f93b1"})
    assert "SDPA421" not in {item.rule for item in assessment.findings}


@pytest.mark.parametrize(("version", "reported"), [("2.5.0+cu124", True), ("2.5.1+cu124", False)])
def test_a_rule_that_fires_on_every_gpu_needs_none(version: str, reported: bool) -> None:
    job = {**MASKED, "torch.version": version, "torch.cuda": "12.4", "workload.dtype": "float16"}
    del job["gpu.sm"]
    found = {item.rule: item for item in judged(job).findings}
    assert ("TORCH012" in found) is reported
    if reported:
        assert "on every usual GPU" in found["TORCH012"].message


def test_a_job_without_a_gpu_is_not_given_one() -> None:
    job = {**MASKED, "torch.version": "2.5.0+cu124", "torch.cuda": "12.4", "workload.dtype": "float16", "gpu.count": 0}
    del job["gpu.sm"]
    assert "TORCH012" not in {item.rule for item in judged(job).findings}
