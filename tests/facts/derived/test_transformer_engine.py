"""TransformerEngine's normalisation of a workload: arithmetic, with the releases' behaviours as facts."""

from __future__ import annotations

import pytest

from doctor.facts.derived.transformer_engine import window
from doctor.facts.vocabulary import parse
from doctor.model import ABSENT, Fact, Facts
from doctor.rulebook.resolver import FactResolver


def known(**given):
    keys = {key.replace("__", "."): value for key, value in given.items()}
    return FactResolver(Facts(Fact(key, parse(key, value), "test") for key, value in keys.items()))


@pytest.mark.parametrize(
    ("mask", "given", "wanted"),
    [
        ("causal", ABSENT, (-1, 0)),
        ("causal", (-1, -1), (-1, 0)),
        ("causal", (128, 128), (128, 0)),
        ("padding_causal_bottom_right", (0, 64), (0, 0)),
        ("no_mask", ABSENT, (-1, -1)),
        ("padding", (-1, 0), (-1, -1)),
        ("padding", (128, 0), (128, 0)),
        ("arbitrary", (64, 64), (64, 64)),
    ],
)
def test_the_window_follows_the_mask(mask, given, wanted):
    assert window(mask, given) == wanted


def test_a_window_that_the_mask_forbids():
    def contradicts(mask, given):
        return known(workload__mask=mask, workload__window=given).value("te.window_contradicts_mask")

    assert contradicts("causal", [-1, 64]) is True
    assert contradicts("no_mask", [64, -1]) is True
    assert contradicts("causal", [64, 64]) is False
    assert contradicts("no_mask", [-1, 0]) is False


@pytest.mark.parametrize(
    ("layout", "length", "flags", "wanted"),
    [
        ("bshd_bshd_bshd", 1000, {}, 1000),
        ("bshd_bshd_bshd", 1000, {"te.seqlen_per_rank": True}, 250),
        ("thd_thd_thd", 1000, {}, 1024),
        ("thd_thd_thd", 1000, {"te.seqlen_per_rank": True, "te.thd_seqlen_pow2": True}, 1024),
        ("thd_thd_thd", 1030, {}, 1088),
        ("thd_thd_thd", 1030, {"te.thd_seqlen_pow2": True}, 2048),
        ("thd_thd_thd", 1, {"te.thd_seqlen_pow2": True}, 1),
        ("thd_thd_thd", 1, {}, 64),
    ],
)
def test_lengths_as_the_filters_see_them(layout, length, flags, wanted):
    found = known(workload__qkv_layout=layout, workload__seq_len_q=length, workload__cp_size=4, **flags)
    assert found.value("te.seqlen_q") == wanted


@pytest.mark.parametrize(
    ("layout", "fmt", "group"),
    [
        ("sbhd_sbhd_sbhd", "sbhd", "hd_hd_hd"),
        ("sb3hd", "sbhd", "3hd"),
        ("bsh3d", "bshd", "h3d"),
        ("thd_t2hd", "thd", "hd_2hd"),
        ("bshd_bsh2d", "bshd", "hd_h2d"),
        ("t3hd", "thd", "3hd"),
    ],
)
def test_layouts_taken_apart(layout, fmt, group):
    found = known(workload__qkv_layout=layout)
    assert (found.value("te.qkv_format"), found.value("te.layout_group")) == (fmt, group)


@pytest.mark.parametrize(
    ("shape", "batch", "wanted"), [("1hss", 2, "1hss"), ("1hss", 1, "bhss"), ("11ss", 1, "b1ss"), ("111s", 2, "11ss")]
)
def test_a_batch_of_one_hides_the_shape_of_a_bias(shape, batch, wanted):
    found = known(workload__bias="post_scale_bias", workload__bias_shape=shape, workload__batch_size=batch)
    assert found.value("te.bias_shape") == wanted


def test_alibi_with_slopes_reaches_cudnn_as_a_bias():
    lengths = {"te.seqlen_q": 512, "te.seqlen_kv": 512}
    shape = {"workload.batch_size": 2, "workload.bias": "alibi", **lengths}
    assert known(**shape, workload__alibi_slopes=ABSENT).value("te.fused_bias") == "alibi"
    with_slopes = known(**shape, workload__alibi_slopes="bh", workload__bias_shape=ABSENT)
    assert (with_slopes.value("te.fused_bias"), with_slopes.value("te.fused_bias_shape")) == ("post_scale_bias", "bhss")
    cross = {**shape, "te.seqlen_kv": 1024, "workload.alibi_slopes": ABSENT}
    assert known(**cross).value("te.fused_bias") == "alibi"
    assert known(**cross, te__alibi_cross_as_bias=True).value("te.fused_bias") == "post_scale_bias"


def steps(comm, mask="causal", **more):
    shape = {
        "workload.cp_size": 4, "workload.cp_comm_type": comm, "workload.mask": mask, "te.seqlen_q": 4096,
        "te.seqlen_kv": 4096, "workload.qkv_layout": "bshd_bshd_bshd", "workload.num_heads": 16,
        "workload.num_kv_heads": 8, "workload.window": ABSENT, **more,
    }  # fmt: skip
    found = known(**shape).value("te.fused.steps")
    keys = ("te.mask", "te.seqlen_q", "te.seqlen_kv", "te.heads", "te.window_left", "te.window_right")
    return [tuple(dict(pair.split("=") for pair in step.split(";"))[key] for key in keys) for step in found]


def test_a_ring_cuts_causal_attention_into_three_kinds_of_steps():
    assert steps("p2p") == [
        ("causal", "1024", "1024", "16", "-1", "-1"),
        ("no_mask", "1024", "512", "16", "-1", "-1"),
        ("no_mask", "512", "1024", "16", "-1", "-1"),
    ]
    assert [step[0] for step in steps("p2p", "padding_causal")] == ["padding_causal", "padding", "padding"]
    assert steps("p2p", "no_mask") == [("no_mask", "1024", "1024", "16", "-1", "-1")]


def test_gathered_keys_make_the_mask_bottom_right():
    assert steps("all_gather") == [
        ("causal_bottom_right", "512", "512", "16", "-1", "0"),
        ("causal_bottom_right", "512", "4096", "16", "-1", "0"),
    ]
    assert steps("all_gather", "no_mask") == [("no_mask", "512", "4096", "16", "-1", "-1")]


def test_exchanged_heads_keep_mask_and_length():
    assert steps("a2a") == [("causal", "4096", "4096", "4", "-1", "0")]
    assert steps("a2a+p2p", workload__cp_size_a2a=2)[0] == ("causal", "2048", "2048", "8", "-1", "-1")


def test_hierarchical_steps_need_the_size_of_the_inner_group():
    shape = known(workload__cp_size=4, workload__cp_comm_type="a2a+p2p", workload__num_heads=8,
                  workload__num_kv_heads=8, workload__cp_size_a2a=ABSENT)  # fmt: skip
    assert shape.value("te.cp_heads_divide") is None


def test_packed_offsets_beyond_two_to_the_31():
    def ragged(tokens):
        return known(workload__qkv_layout="thd_thd_thd", workload__num_heads=128, workload__num_kv_heads=8,
                     te__seqlen_q=tokens, te__seqlen_kv=tokens, workload__head_dim_qk=128,
                     workload__head_dim_v=128).value("te.ragged_offset_64bit")  # fmt: skip

    assert ragged(131071) is False
    assert ragged(131072) is True
