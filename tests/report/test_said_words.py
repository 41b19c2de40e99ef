"""What only a workload can say: masked rows, empty sequences, odd tensors. Silent unless said or needed."""

from __future__ import annotations

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.rulebook.evaluate import evaluate
from doctor.sources.workload.defaults import complete_workload
from tests.helpers.rulebook import builtin_rulebook

NEW = {"SDPA402", "SDPA407", "SDPA408", "FA032", "FA033", "FA211", *(f"SDPA{number}" for number in range(410, 419))}
HOST = {
    "torch.version": "2.11.0", "torch.cuda": "13.0", "cudnn.version": "9.19.0", "gpu.sm": "9.0",
    "flash-attn.version": "2.8.3.post2", "transformers.version": "5.17.0", "python.version": "3.12.3",
    "distributions.complete": True,
}  # fmt: skip
JOB = {"dtype": "bfloat16", "head_dim_qk": 128, "num_heads": 8, "num_kv_heads": 8, "seq_len_q": 4096, "mask": "causal"}


@pytest.fixture(scope="module")
def rulebook():
    return builtin_rulebook()


def heard(rulebook, **job):
    """(rules that fire, rules that are undetermined) of those that look at the words."""
    said = {f"workload.{key}": value for key, value in {**JOB, **job}.items()}
    facts = Facts(fact(key, value, "test") for key, value in {**HOST, **said}.items())
    found = evaluate(rulebook, complete_workload(facts))
    unclear = {rule for item in found.undetermined for rule in item.rules}
    return {item.rule for item in found.findings} & NEW, unclear & NEW


@pytest.mark.parametrize("job", [
    {"framework": "torch_sdpa"}, {"framework": "torch_sdpa", "mask": "no_mask"}, {"framework": "transformers"},
    {"framework": "transformers", "attn_implementation": "flash_attention_2"}, {"framework": "flash_attn"},
    {"framework": "flash_attn", "qkv_layout": "thd_thd_thd", "mask": "padding_causal"},
    {"framework": "torch_sdpa", "mask": "causal", "window": (127, 0)},
])  # fmt: skip
def test_ordinary_jobs_hear_nothing_of_them(rulebook, job):
    assert heard(rulebook, **job) == (set(), set())


@pytest.mark.parametrize("mask", ["arbitrary", "padding", "padding_causal"])
def test_a_mask_that_may_hide_all_keys_is_checked_about_where_it_matters(rulebook, mask):
    job = {"framework": "torch_sdpa", "mask": mask}
    assert heard(rulebook, **job) == (set(), {"SDPA402"})
    assert heard(rulebook, **job, fully_masked_rows=True) == ({"SDPA402"}, set())
    assert heard(rulebook, **job, fully_masked_rows=False) == (set(), set())
    assert heard(rulebook, **job, dtype="float32") == (set(), set())  # cuDNN does not take it


def test_packed_single_queries_with_grouped_heads_need_empty_sequences(rulebook):
    packed = {"framework": "flash_attn", "qkv_layout": "thd_thd_thd", "mask": "padding"}
    job = {**packed, "seq_len_q": 1, "seq_len_kv": 512, "num_kv_heads": 2}
    assert heard(rulebook, **job) == (set(), {"FA032"})
    assert heard(rulebook, **job, zero_length_sequences=True) == ({"FA032"}, set())
    assert heard(rulebook, **job, zero_length_sequences=False) == (set(), set())


@pytest.mark.parametrize("job, rule", [
    ({"framework": "torch_sdpa"}, "SDPA408"),
    ({"framework": "torch_sdpa", "dropout": 0.1, "seq_len_q": 1, "seq_len_kv": 4096, "training": False}, "SDPA407"),
    ({"framework": "torch_sdpa", "dtype": "float32"}, "SDPA407"),
    ({"framework": "flash_attn"}, "FA033"),
    ({"framework": "transformers", "attn_implementation": "flash_attention_2"}, "FA033"),
])  # fmt: skip
def test_unaligned_tensors_are_reported_by_the_rule_of_what_runs(rulebook, job, rule):
    assert heard(rulebook, **job, qkv_unaligned=True) == ({rule}, set())
    assert heard(rulebook, **job, qkv_unaligned=False) == (set(), set())


JAGGED = {"framework": "torch_sdpa", "nested_tensors": True, "nested_layout": "jagged", "zero_length_sequences": False}


@pytest.mark.parametrize("job, fires", [
    ({}, set()),
    ({"dropout": 0.1}, set()),  # flash
    ({"dropout": 0.1, "dtype": "float32"}, {"SDPA410"}),
    ({"dropout": 0.1, "head_dim_v": 64}, {"SDPA410"}),
    ({"dropout": 0.1, "dtype": "float32", "training": False}, set()),
    ({"seq_len_kv": 100}, {"SDPA411"}),
    ({"seq_len_kv": 100, "dtype": "float32"}, set()),
    ({"seq_len_kv": 100, "mask": "no_mask"}, set()),
    ({"zero_length_sequences": True}, {"SDPA412"}),
    ({"zero_length_sequences": True, "mask": "no_mask"}, set()),  # plain math
    ({"zero_length_sequences": True, "training": False}, set()),
    ({"nested_holes": True}, {"SDPA413"}),
    ({"head_dim_qk": 36}, {"SDPA414"}),
    ({"head_dim_qk": 36, "mask": "no_mask"}, set()),
])  # fmt: skip
def test_nested_tensors_are_reported_by_the_rule_of_what_runs(rulebook, job, fires):
    assert heard(rulebook, **{**JAGGED, **job}) == (fires, set())
    assert heard(rulebook, **{"framework": "torch_sdpa", **job, "zero_length_sequences": False}) == (set(), set())


def test_what_is_not_said_of_nested_tensors_is_requested(rulebook):
    unsaid = {"framework": "torch_sdpa", "nested_tensors": True}
    assert heard(rulebook, **unsaid) == (set(), {"SDPA412"})
    assert heard(rulebook, **unsaid, nested_layout="strided") == (set(), set())
    assert heard(rulebook, **unsaid, nested_layout="jagged") == (set(), {"SDPA412"})  # empty sequences?
    assert heard(rulebook, **unsaid, nested_layout="jagged", deterministic=True) == (set(), set())
    noisy = {**unsaid, "dropout": 0.1, "dtype": "float32"}
    assert heard(rulebook, **noisy, zero_length_sequences=False) == (set(), {"SDPA410", "SDPA412"})


@pytest.mark.parametrize("job, rule", [
    ({"batch_size": 65_537}, "SDPA415"),
    ({"batch_size": 65_537, "mask": "arbitrary", "fully_masked_rows": False}, "SDPA415"),
    ({"num_heads": 65_536, "num_kv_heads": 65_536, "dtype": "float32"}, "SDPA416"),
    ({"batch_size": 65_537, "dtype": "float32", "dropout": 0.1}, "SDPA416"),
    ({"singleton_strides": True, "dtype": "float32"}, "SDPA417"),
    ({"mask": "arbitrary", "fully_masked_rows": False, "bias_requires_grad": True, "qkv_frozen": True}, "SDPA418"),
])  # fmt: skip
def test_grids_strides_and_masks_that_alone_are_trained(rulebook, job, rule):
    assert heard(rulebook, framework="torch_sdpa", **job) == ({rule}, set())
    milder = {"batch_size": 65_535, "num_heads": 8, "num_kv_heads": 8, "singleton_strides": False, "qkv_frozen": False}
    assert heard(rulebook, framework="torch_sdpa", **{**job, **milder}) == (set(), set())
