"""What a job reaches: rules about other parts of the environment are no findings of this job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.api import diagnose, render
from doctor.model import ABSENT
from doctor.rulebook.evaluate import evaluate, know
from doctor.sources.snapshot import parse_facts
from tests.helpers.rulebook import builtin_rulebook

AXOLOTL = {
    "torch.version": "2.12.0", "transformers.version": "5.14.1", "axolotl.version": "0.18.0",
    "accelerate.version": "1.14.0", "deepspeed.version": "0.18.9", "optimum.version": "1.23.3",
    "trl.version": "0.27.0", "peft.version": "0.19.1", "gpu.sm": "9.0",
}  # fmt: skip
CONFIG = {"base_model": "x", "datasets": [], "micro_batch_size": 1, "sequence_len": 4096, "flash_attention": True}


def ways(workload: dict[str, Any], **facts: Any) -> dict[str, tuple[str, ...]] | None:
    """Return part → the way to it."""
    rulebook = builtin_rulebook()
    known = know(rulebook, parse_facts(json.dumps({"facts": {**AXOLOTL, **facts}, "workload": workload}), "x"))[0]
    found = rulebook.call_graph.ways(known)
    return None if found is None else {name: way.steps for name, way in found.items()}


def report_of(tmp_path: Path, config: dict[str, Any], settings: dict[str, Any] | None = None) -> Any:
    job, facts = tmp_path / "job.yaml", tmp_path / "facts.json"
    job.write_text(json.dumps(config))
    facts.write_text(json.dumps({"facts": AXOLOTL}))
    return diagnose(facts=facts, workload=str(job), fixes=False, settings=settings or {})


def test_a_job_without_a_known_trainer_reaches_everything() -> None:
    assert ways({"framework": "transformers"}) is None
    assert ways({"framework": "transformers", "trainer": "a-script-of-mine"}) is None


def test_conditions_of_calls_follow_the_job() -> None:
    plain = ways({"trainer": "axolotl", "framework": "transformers"})
    assert plain is not None
    assert "transformers.trainer" in plain
    assert not {"deepspeed", "optimum", "xformers", "trl.trainers"} & plain.keys()
    sharded = ways({"trainer": "axolotl", "framework": "transformers", "sharding": "zero3", "training_method": "dpo"})
    assert sharded is not None
    assert sharded["deepspeed"] == ("axolotl", "deepspeed")
    assert sharded["trl.trainers"] == ("axolotl", "trl.trainers")


def test_a_package_that_is_not_installed_is_on_no_way() -> None:
    job = {"trainer": "llamafactory", "framework": "transformers"}
    assert "trl.trainers" in (ways(job, **{"unsloth.version": "2026.1.4"}) or {})
    assert "trl.trainers" not in (ways(job, **{"unsloth.version": ABSENT}) or {})


def test_what_the_job_does_not_call_is_no_finding(tmp_path: Path) -> None:
    report = report_of(tmp_path, CONFIG)
    assert not {"DS760", "IMP072", "TRL011"} & {item.rule for item in report.findings}
    assert {"DS760", "IMP072", "TRL011"} <= {item.rule for item in report.unconcerned}
    text = render(report)
    assert f"{len(report.unconcerned)} of no concern to this job" in text
    assert "DS760" not in text
    content = json.loads(render(report, "json"))
    assert {item["id"] for item in content["unconcerned"]} == {item.rule for item in report.unconcerned}


def test_a_finding_names_the_way_by_which_the_job_reaches_it(tmp_path: Path) -> None:
    (tmp_path / "zero2.json").write_text('{"zero_optimization": {"stage": 2}}')
    report = report_of(tmp_path, {**CONFIG, "deepspeed": "zero2.json"}, {"workload.optimizer_offload": True})
    found = {item["id"]: item for item in json.loads(render(report, "json"))["findings"]}
    assert found["DS760"]["reached_by"] == ["axolotl", "deepspeed", "deepspeed.operators"]
    assert found["DS760"]["severity"] == "warning"


def test_a_warning_about_what_the_job_may_not_use_is_a_note(tmp_path: Path) -> None:
    """Whether operators are compiled is not known: no gate warns of what a job may never reach."""
    report = report_of(tmp_path, {**CONFIG, "deepspeed": "not_here.json"})
    found = {item.rule: item for item in report.findings}
    assert found["DS760"].severity == "note"
    assert found["DS760"].message.endswith("(only if the job uses deepspeed.operators)")


def test_a_config_of_deepspeed_decides_whether_operators_are_compiled(tmp_path: Path) -> None:
    (tmp_path / "zero2.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert "DS760" not in {item.rule for item in report_of(tmp_path, {**CONFIG, "deepspeed": "zero2.json"}).findings}
    host = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    (tmp_path / "host.json").write_text(json.dumps(host))
    found = {item.rule: item for item in report_of(tmp_path, {**CONFIG, "deepspeed": "host.json"}).findings}
    assert found["DS760"].severity == "warning"


def test_what_a_trainer_brings_on_purpose_is_no_finding(tmp_path: Path) -> None:
    """axolotl requires `kernels` itself, so that no package for flash attention has to be there."""
    without = {**AXOLOTL, "flash-attn.version": ABSENT, "kernels.version": "0.15.2"}
    for trainer, fires in (("axolotl", False), ("trl.scripts", True)):
        job = {"trainer": trainer, "framework": "transformers", "attn_implementation": "flash_attention_2"}
        (tmp_path / "facts.json").write_text(json.dumps({"facts": without, "workload": {**job, "training": True}}))
        report = diagnose(facts=tmp_path / "facts.json", fixes=False)
        assert ("TF003" in {item.rule for item in report.findings}) is fires


def test_every_rule_reaches_a_part_that_some_library_calls() -> None:
    rulebook = builtin_rulebook()
    parts = {part for rule in rulebook.rules.values() for part in rule.reach if "." in part}
    assert parts
    assert parts <= rulebook.call_graph.judged


@pytest.mark.parametrize("name", sorted(builtin_rulebook().libraries))
def test_a_library_calls_under_conditions_of_the_job_or_of_releases(name: str) -> None:
    for callees in builtin_rulebook().libraries[name].calls.values():
        for when in callees.values():
            keys = set() if isinstance(when, str) else {leaf.key for leaf in when.leaves()}
            assert all(key.startswith("workload.") or key.endswith(".version") for key in keys)


@pytest.mark.parametrize(
    ("framework", "concerned"), [("megatron", True), ("transformer_engine", True), ("flash_attn", False)]
)
def test_a_rule_on_the_calls_of_a_library_concerns_jobs_that_call_it(framework: str, concerned: bool) -> None:
    """Packed rows without a padding mask fail in TransformerEngine; a job that calls flash-attn does not meet that."""
    facts = {"transformer-engine.version": "2.11.0", "torch.version": "2.10.0", "gpu.sm": "9.0"}
    job = {"framework": framework, "qkv_layout": "thd_thd_thd", "mask": "causal", "training": True}
    found = evaluate(builtin_rulebook(), parse_facts(json.dumps({"facts": facts, "workload": job}), "x"))
    assert ("TE644" in {item.rule for item in found.findings}) is concerned
    assert ("TE644" in {item.rule for item in found.unconcerned}) is not concerned
