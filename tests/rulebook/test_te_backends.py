"""TransformerEngine's choice of backend: each mechanism by itself, and cases written from its source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doctor.diagnosis.batch import answer, library_of, predict_case, read_case
from doctor.errors import DoctorError
from doctor.rulebook.evaluate import evaluate, know
from doctor.util.units import human_bytes
from tests.helpers.rulebook import builtin_rulebook

CASES = Path(__file__).parents[1] / "data" / "te_backends.jsonl"

LLAMA = {
    "framework": "transformer_engine", "dtype": "bfloat16", "qkv_layout": "sbhd_sbhd_sbhd", "batch_size": 2,
    "num_heads": 32, "num_kv_heads": 32, "head_dim_qk": 128, "head_dim_v": 128, "seq_len_q": 4096,
    "seq_len_kv": 4096, "mask": "causal", "training": True,
}  # fmt: skip
BARE = {
    "flash-attn.version": "absent", "flash-attn-3.version": "absent", "flash-attn-4.version": "absent",
    "flashattn-hopper.version": "absent",
}  # fmt: skip


@pytest.fixture(scope="module")
def rulebook():
    return builtin_rulebook()


def facts_of(te, sm, cudnn, workload=None, **more):
    environment = {
        "transformer-engine.version": te, "gpu.sm": sm, "cudnn.version": cudnn, **BARE,
        **{key.replace("__", "."): value for key, value in more.items()},
    }  # fmt: skip
    for key in ("flash_attn", "flash_attn_3", "flash_attn_4"):
        if key in more:
            environment[key.replace("_", "-") + ".version"] = environment.pop(key)
    return read_case({"facts": environment, "workload": {**LLAMA, **(workload or {})}})


def ask(rulebook, *args, **kwargs):
    return predict_case(rulebook, facts_of(*args, **kwargs))


def candidate(prediction, backend):
    return next(item for item in prediction.candidates if item.backend == backend)


LINES = CASES.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", LINES, ids=[json.loads(line)["id"] for line in LINES])
def test_cases_written_from_the_sources(rulebook, line):
    expect = json.loads(line)["expect"]
    said, good = answer(rulebook, line)
    assert good, said
    assert (said["selected"], said["could_tell"]) == (expect["selected"], True)
    assert {item["backend"]: item["available"] for item in said["candidates"]}.items() >= expect["available"].items()
    assert bool(said["fails_at_run"]) == expect["fails_at_run"]
    assert bool(said["import_error"]) == expect["import_error"]


# Order of preference


@pytest.mark.parametrize(
    ("te", "sm", "chosen"),
    [
        ("1.13.0", "9.0", "te.fused"),
        ("1.13.0", "8.0", "te.flash2"),
        ("2.3.0", "9.0", "te.fused"),
        ("2.3.0", "8.0", "te.flash2"),
    ],
)
def test_fused_is_preferred_on_hopper_and_flash_before_it(rulebook, te, sm, chosen):
    assert ask(rulebook, te, sm, "9.5.1", flash_attn="2.6.3").selected == chosen


def test_flash_attention_3_on_hopper_leaves_4_out_of_the_race(rulebook):
    prediction = ask(
        rulebook, "2.18.0", "9.0", "9.20.0", env__NVTE_FUSED_ATTN="0", flash_attn_3="3.0.0", flash_attn_4="4.0.0b24"
    )
    assert prediction.selected == "te.flash3"
    assert candidate(prediction, "te.flash4").available is True


# Parts of FusedAttention


def test_the_part_that_serves_is_a_fact(rulebook):
    short = {"seq_len_q": 512, "seq_len_kv": 512, "head_dim_qk": 64, "head_dim_v": 64, "qkv_layout": "bshd_bshd_bshd"}
    known, _ = know(rulebook, facts_of("1.13.0", "9.0", "9.1.0", short))
    assert known.value("te.fused.variant") == "te.fused_arbitrary"
    known, _ = know(rulebook, facts_of("1.13.0", "9.0", "9.1.0", short, env__NVTE_FUSED_ATTN_BACKEND="0"))
    assert known.value("te.fused.variant") == "te.fused_max512"
    known, _ = know(rulebook, facts_of("2.18.0", "9.0", "9.20.0", short, env__NVTE_FUSED_ATTN_BACKEND="0"))
    assert known.value("te.fused.variant") == "te.fused_arbitrary"  # sub-backend 0 left with 2.16


def test_parts_are_not_shown_and_their_refusals_are(rulebook):
    prediction = ask(rulebook, "2.3.0", "8.0", "9.5.1", {"head_dim_qk": 192, "head_dim_v": 128})
    assert [item.backend for item in prediction.candidates] == [
        "te.flash2", "te.flash3", "te.flash4", "te.fused", "te.unfused",
    ]  # fmt: skip
    fused = candidate(prediction, "te.fused")
    assert fused.available is False
    assert "head_dim 192" in fused.reasons[0].message


def test_without_the_cudnn_version_nothing_is_reported_and_the_lack_is_named(rulebook):
    facts = facts_of("2.3.0", "9.0", "9.5.1", {"mask": "padding", "num_kv_heads": 8}).without("cudnn.version")
    prediction = predict_case(rulebook, facts)
    assert (prediction.selected, prediction.could_tell) == (None, False)
    assert candidate(prediction, "te.fused").available is None
    known, _ = know(rulebook, facts)
    assert known.missing("te.selected") == known.missing("cudnn.version") != ()
    anywhere = facts_of("2.3.0", "9.0", "9.5.1").without("cudnn.version")  # plain enough for every cuDNN
    assert predict_case(rulebook, anywhere).selected == "te.fused"


# Context-parallel steps

GATHER = {"cp_size": 2, "cp_comm_type": "all_gather"}
RING = {"cp_size": 2, "cp_comm_type": "p2p"}


def test_all_gather_turns_causal_into_bottom_right(rulebook):
    prediction = ask(rulebook, "2.3.0", "9.0", "9.1.0", GATHER)
    assert prediction.selected == "te.fused"
    assert prediction.fails_at_run is not None and prediction.fails_at_run.rule == "TE103"
    assert "9.3" in prediction.fails_at_run.message and "9.1.0" in prediction.fails_at_run.message
    assert ask(rulebook, "2.3.0", "9.0", "9.3.0", GATHER).fails_at_run is None
    assert ask(rulebook, "2.3.0", "9.0", "9.1.0", RING).fails_at_run is None


def test_ring_steps_lose_their_kernel_between_cudnn_9_2_and_9_5_in_newer_releases(rulebook):
    prediction = ask(rulebook, "2.13.0", "9.0", "9.5.0", RING)
    assert prediction.selected == "te.fused"
    assert prediction.fails_at_run is not None and prediction.fails_at_run.rule == "TE620"
    assert "2048 query and 2048 key tokens under mask causal" in prediction.fails_at_run.message
    for te, cudnn in (("2.11.0", "9.5.0"), ("2.13.0", "9.1.0"), ("2.13.0", "9.6.0")):
        assert ask(rulebook, te, "9.0", cudnn, RING).fails_at_run is None


def test_te_2_20_refuses_the_step_when_it_selects(rulebook):
    facts = facts_of("2.20.2", "9.0", "9.20.0", {**GATHER, "dropout": 0.1})
    prediction = predict_case(rulebook, facts)
    assert prediction.selected is None
    assert "step of" in candidate(prediction, "te.fused").reasons[0].message


# Findings


def rules_of(rulebook, facts, severity="error"):
    return [item.rule for item in evaluate(rulebook, facts).findings if item.severity == severity]


def test_softcap_needs_context_parallel_training_with_flash_attn_2_6(rulebook):
    assert rules_of(rulebook, facts_of("1.13.0", "8.0", "9.1.0", RING, flash_attn="2.6.3"))[0] == "TE101"
    for te, flash, workload in (
        ("1.13.0", "2.6.3", {}),
        ("1.13.0", "2.5.6", RING),
        ("2.1.0", "2.6.3", RING),
        ("1.13.0", "2.6.3", {**RING, "training": False}),
    ):
        assert "TE101" not in rules_of(rulebook, facts_of(te, "8.0", "9.1.0", workload, flash_attn=flash))


def test_latent_attention_on_ampere_without_backend(rulebook):
    off = {"env__NVTE_FLASH_ATTN": "0", "env__NVTE_UNFUSED_ATTN": "0"}
    mla = {"head_dim_qk": 192, "head_dim_v": 128}
    packed = {**mla, "qkv_layout": "thd_thd_thd", "mask": "padding_causal"}
    for cudnn in ("9.1.0", "9.5.1", "9.19.0"):  # no cuDNN helps
        assert rules_of(rulebook, facts_of("2.3.0", "8.0", cudnn, mla, **off))[0] == "TE110"
        assert rules_of(rulebook, facts_of("2.3.0", "8.0", cudnn, packed, **off))[0] == "TE111"
    assert not rules_of(rulebook, facts_of("2.5.0", "9.0", "9.10.2", mla, **off))
    assert not rules_of(rulebook, facts_of("2.3.0", "8.0", "9.1.0", mla, env__NVTE_FLASH_ATTN="0"))


def test_the_variables_are_blamed_only_where_unsetting_them_helps(rulebook):
    plain = facts_of("2.3.0", "8.0", "9.1.0", env__NVTE_FUSED_ATTN="0", env__NVTE_UNFUSED_ATTN="0")
    assert rules_of(rulebook, plain) == ["TE112"]
    packed = {"head_dim_qk": 320, "head_dim_v": 320, "qkv_layout": "thd_thd_thd", "mask": "padding_causal"}
    hopeless = facts_of("2.3.0", "8.0", "9.1.0", packed, env__NVTE_UNFUSED_ATTN="0")
    assert rules_of(rulebook, hopeless) == ["TE119"]


def test_interleaved_qkv_matters_only_where_fused_runs(rulebook):
    views = {"qkv_interleaved": True, "num_kv_heads": 1}
    assert rules_of(rulebook, facts_of("1.11.0", "9.0", "9.2.1", views, flash_attn="2.5.6"))[0] == "TE120"
    assert not rules_of(rulebook, facts_of("1.11.0", "8.0", "9.2.1", views, flash_attn="2.5.6"))
    assert not rules_of(rulebook, facts_of("1.12.0", "9.0", "9.2.1", views, flash_attn="2.5.6"))


def test_fall_back_to_unfused_shows_its_memory(rulebook):
    facts = facts_of("2.3.0", "8.0", "9.1.0", {"head_dim_qk": 192, "head_dim_v": 128})
    found = next(item for item in evaluate(rulebook, facts).findings if item.rule == "TE140")
    assert human_bytes(2 * 32 * 4096 * 4096 * 2) in found.message


# Batch


def test_a_line_with_a_fault_says_so_and_keeps_its_id(rulebook):
    said, good = answer(rulebook, '{"id": "x", "facts": {"gpu.smm": "9.0"}, "workload": {"framework": "megatron"}}')
    assert not good and said["id"] == "x" and "gpu.smm" in said["error"]
    for line in ("", "[]", "{", '{"facts": 3}', '{"facts": {}, "workload": {"window": "wide"}}', "[" * 100000):
        said, good = answer(rulebook, line)
        assert not good and set(said) == {"id", "error"}


def test_keys_of_the_caller_are_left_alone(rulebook):
    said, good = answer(rulebook, json.dumps({"id": 7, "pair": 3, "facts": {}, "workload": LLAMA}))
    assert good and said["id"] == 7 and said["could_tell"] is False


def test_a_framework_without_backends_is_a_fault(rulebook):
    with pytest.raises(DoctorError, match="deepspeed"):
        library_of(rulebook, "deepspeed")
    with pytest.raises(DoctorError, match="missing"):
        library_of(rulebook, None)
