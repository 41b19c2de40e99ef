"""Up to where releases are known: a newer one is named, and is no plain OK."""

from __future__ import annotations

import json

import pytest

from doctor.api import diagnose, render
from doctor.packages.index import load_index
from doctor.report.summary import conclusion

JOB = {"framework": "flash_attn", "head_dim_qk": 128, "dtype": "bfloat16", "mask": "causal", "num_heads": 8,
       "seq_len_q": 1024, "training": True, "dropout": 0.0}  # fmt: skip


def report_of(tmp_path, **facts):
    path = tmp_path / "facts.json"
    own = {
        "python.version": "3.12.3",
        "torch.version": "2.8.0",
        "gpu.sm": "9.0",
        "flash-attn.version": "2.8.3",
        **facts,
    }
    path.write_text(json.dumps({"facts": own, "workload": JOB}))
    return diagnose(facts=path, fixes=False)


def test_a_release_on_record_is_ok_and_the_date_is_named(tmp_path):
    report = report_of(tmp_path)
    assert report.unrecorded == ()
    assert f"(records of {load_index().refreshed})" in render(report)
    assert json.loads(render(report, "json"))["rulebook"]["records"] == load_index().refreshed


@pytest.mark.parametrize("label", ["", "+cu128"])
def test_a_release_after_the_records_is_named_and_is_no_plain_ok(tmp_path, label):
    newest = load_index().newest["deepspeed"]
    report = report_of(tmp_path, **{"deepspeed.version": f"99.1{label}"})
    assert [tuple(item) for item in report.unrecorded] == [("deepspeed", f"99.1{label}", newest)]
    text = " ".join(render(report).split())
    assert text.startswith("INCOMPLETE: no known problems, but deepspeed 99.1")
    assert f"is newer than the records ({newest} of {load_index().refreshed})" in text
    assert json.loads(render(report, "json"))["unrecorded"][0]["newest"] == newest


def test_a_candidate_of_the_newest_release_is_on_record(tmp_path):
    assert report_of(tmp_path, **{"deepspeed.version": load_index().newest["deepspeed"] + "rc1"}).unrecorded == ()


@pytest.mark.parametrize(
    ("facts", "unexamined"),
    [
        ({"spas-sage-attn.version": "0.1"}, "no rule knows spas-sage-attn 0.1"),
        ({"ultra-attention.version": "3"}, "no rule knows ultra-attention 3"),
        ({"ultra-attention.version": "absent"}, None),
        ({"attn-doctor.version": "0.1.0"}, None),
        ({"flash-attn.version": "2.7.4"}, None),
    ],
)
def test_the_headline_is_no_ok_for_what_no_rule_was_applied_to(tmp_path, facts, unexamined):
    """A package of the stack without rules is named in the headline."""
    report = report_of(tmp_path, **facts)
    assert [item.startswith(unexamined or "") for item in report.unexamined] == [True] * bool(unexamined)
    assert (conclusion(report)[1] == "INCOMPLETE") == bool(unexamined)
    assert unexamined is None or unexamined in conclusion(report)[2]


def test_the_headline_is_no_ok_for_a_job_of_unknown_path(tmp_path):
    path = tmp_path / "facts.json"
    newest = load_index().newest["deepspeed"]
    path.write_text(json.dumps({"facts": {"deepspeed.version": newest}, "workload": {"seq_len_q": 512}}))
    _, word, sentence = conclusion(diagnose(facts=path, fixes=False))
    assert (word, "who computes the attention of this job is unknown" in sentence) == ("INCOMPLETE", True)


@pytest.mark.parametrize(
    ("facts", "job", "said"),
    [
        ({}, {}, "no workload was given"),
        ({"axolotl.version": "absent"}, {**JOB, "trainer": "axolotl"},
         "axolotl, which runs this job, is not installed here"),
        ({"axolotl.version": "0.16.1"}, {**JOB, "trainer": "axolotl"}, None),
        ({"transformer-engine.version": "absent"}, {"framework": "megatron", "dtype": "bfloat16"},
         "which kernel computes the attention of this job is not predicted"),
    ],
)  # fmt: skip
def test_the_headline_is_ok_only_for_a_job_that_was_examined(tmp_path, facts, job, said):
    path = tmp_path / "facts.json"
    path.write_text(
        json.dumps(
            {
                "facts": {"torch.version": "2.8.0", "gpu.sm": "9.0", "flash-attn.version": "2.8.3", **facts},
                "workload": job,
            }
        )
    )
    _, word, sentence = conclusion(diagnose(facts=path, fixes=False))
    assert (word, said is None or said in sentence) == ("OK" if said is None else "INCOMPLETE", True), sentence


@pytest.mark.parametrize("version", ["absent", "0.16.4", None])
def test_a_package_that_the_job_imports_and_that_is_absent_is_an_error(tmp_path, version):
    path = tmp_path / "facts.json"
    job = {"framework": "transformers", "attn_implementation": "sdpa", "sharding": "zero3", "training": True}
    facts = {"torch.version": "2.8.0", "transformers.version": "4.57.1", "gpu.sm": "9.0"}
    path.write_text(
        json.dumps({"facts": {**facts, **({"deepspeed.version": version} if version else {})}, "workload": job})
    )
    found = {item.rule: item for item in diagnose(facts=path, fixes=False).findings}
    assert ("NOT_INSTALLED" in found) == (version == "absent")
    if version == "absent":
        assert found["NOT_INSTALLED"].severity == "error" and "DeepSpeed" in found["NOT_INSTALLED"].message
