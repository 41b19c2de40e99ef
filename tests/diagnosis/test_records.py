"""Up to where releases are known: a newer one is named, and is no plain OK."""

from __future__ import annotations

import json

import pytest

from doctor.api import diagnose, render
from doctor.packages.index import load_index

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


@pytest.mark.parametrize("label", ["", "+cu130"])
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
