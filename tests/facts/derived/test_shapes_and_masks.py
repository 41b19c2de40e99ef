"""Derived facts of the workload: shapes, layouts, masks per context-parallel step."""

from __future__ import annotations

import pytest

from doctor.model import ABSENT
from doctor.rulebook.resolver import FactResolver
from doctor.sources.workload.files import parse_settings


def derive(key: str, **given: object) -> object:
    """The value of `workload.<key>` with these workload keys given; dotted environment keys by `__`."""
    named = {name.replace("__", "."): value for name, value in given.items()}
    settings = [f"{name if '.' in name else f'workload.{name}'}={value}" for name, value in named.items()]
    return FactResolver(parse_settings(settings)).value(f"workload.{key}")


@pytest.mark.parametrize(
    ("given", "framework"),
    [
        ({"dtype": "float16", "transformer-engine.version": "2.3.0", "torch.version": "2.6.0"}, "transformer_engine"),
        ({"dtype": "float16", "megatron-core.version": "0.12.0", "transformer-engine.version": "2.3.0"}, "megatron"),
        ({"dtype": "float16", "torch.version": "2.6.0"}, "torch_sdpa"),
        (
            {"dtype": "float16", "transformer-engine.version": "absent", "transformers.version": "4.44.2"},
            "transformers",
        ),
        ({"attn_implementation": "sdpa", "transformer-engine.version": "2.3.0"}, "transformers"),
        ({"attn_implementation": "sdpa"}, "transformers"),
        ({"attn_implementation": "flash_attention_2", "xtuner.version": "0.1.23"}, "xtuner"),
        ({"framework": "vllm", "torch.version": "2.6.0"}, "vllm"),
        ({"torch.version": "2.6.0"}, None),  # no workload, no one calls attention
        ({"dtype": "float16"}, None),
    ],
)
def test_framework(given: dict[str, str], framework: str | None) -> None:
    assert derive("framework", **given) == framework


@pytest.mark.parametrize(
    ("mask", "cp_size", "comm", "steps"),
    [
        ("causal", 1, "all_gather", ("causal",)),
        ("causal", 2, "all_gather", ("causal_bottom_right",)),
        ("padding_causal", 2, "all_gather", ("padding_causal_bottom_right",)),
        ("no_mask", 2, "all_gather", ("no_mask",)),
        ("causal", 2, "p2p", ("causal", "no_mask")),
        ("padding_causal", 2, "p2p", ("padding_causal", "padding")),
        ("padding", 2, "p2p", ("padding",)),
        ("causal", 4, "a2a+p2p", ("causal", "no_mask")),
        ("causal", 4, "a2a", ("causal",)),
        ("causal_bottom_right", 4, "p2p", ("causal_bottom_right",)),
        ("arbitrary", 4, "all_gather", ("arbitrary",)),
        ("causal", 2, "null", ("causal", "no_mask")),  # not said: the ring is the default
    ],
)
def test_masks_of_the_steps(mask: str, cp_size: int, comm: str, steps: tuple[str, ...]) -> None:
    assert derive("step_masks", mask=mask, cp_size=cp_size, cp_comm_type=comm) == steps
    wanted = any(step.endswith("bottom_right") for step in steps)
    assert derive("step_bottom_right", mask=mask, cp_size=cp_size, cp_comm_type=comm) is wanted


def test_step_masks_need_the_mask() -> None:
    assert derive("step_bottom_right", cp_size=2, cp_comm_type="all_gather") is None
    known = FactResolver(parse_settings(["workload.cp_size=2"]))
    assert known.missing("workload.step_bottom_right") == ("workload.mask",)


@pytest.mark.parametrize(
    ("mask", "causal", "padded", "bottom_right", "diagonal"),
    [
        ("no_mask", False, False, False, True),
        ("padding", False, True, False, True),
        ("causal", True, False, False, False),
        ("padding_causal", True, True, False, False),
        ("causal_bottom_right", True, False, True, True),
        ("padding_causal_bottom_right", True, True, True, True),
        ("arbitrary", False, False, False, True),
    ],
)
def test_parts_of_a_mask(mask: str, causal: bool, padded: bool, bottom_right: bool, diagonal: bool) -> None:
    parts = ("causal", "padded", "bottom_right", "bottom_right_diagonal")
    assert [derive(part, mask=mask) for part in parts] == [causal, padded, bottom_right, diagonal]


@pytest.mark.parametrize(
    ("layout", "qkv_format", "group", "packed"),
    [
        ("sbhd_sbhd_sbhd", "sbhd", "hd_hd_hd", False),
        ("bs3hd", "bshd", "3hd", True),
        ("sbh3d", "sbhd", "h3d", True),
        ("bshd_bs2hd", "bshd", "hd_2hd", True),
        ("sbhd_sbh2d", "sbhd", "hd_h2d", True),
        ("t3hd", "thd", "3hd", True),
        ("thd_thd_thd", "thd", "hd_hd_hd", False),
        ("thd_t2hd", "thd", "hd_2hd", True),
        ("paged_kv_bshd_bshd_bshd", "bshd", "hd_hd_hd", False),
        ("thd_bshd_bshd", "thd", "hd_hd_hd", False),
    ],
)
def test_layouts_taken_apart(layout: str, qkv_format: str, group: str, packed: bool) -> None:
    parts = ("qkv_format", "qkv_group", "qkv_packed", "thd")
    assert [derive(part, qkv_layout=layout) for part in parts] == [qkv_format, group, packed, qkv_format == "thd"]


@pytest.mark.parametrize(
    ("window", "kv", "given", "effective"),
    [
        ("null", 4096, False, False),
        ("-1,-1", 4096, False, False),
        ("-1,0", 4096, False, False),
        ("4095,0", 4096, True, False),
        ("4095,0", 8192, True, True),
        ("0,0", 2, True, True),
        ("-1,10", 4096, True, True),
        ("4095,0", "null", True, None),
    ],
)
def test_windows(window: str, kv: object, given: bool, effective: bool | None) -> None:
    assert derive("window_given", window=window, seq_len_kv=kv) is given
    assert derive("window_effective", window=window, seq_len_kv=kv) is effective


@pytest.mark.parametrize(
    ("mask", "window", "q", "kv", "rows"),
    [
        ("no_mask", "null", 300, 100, False),
        ("causal", "null", 300, 100, False),  # from the top left corner: every query sees the first key
        ("causal", "null", "null", "null", False),
        ("causal_bottom_right", "null", 300, 100, True),
        ("causal_bottom_right", "null", 100, 300, False),
        ("causal_bottom_right", "null", "null", "null", None),
        ("no_mask", "20,20", 300, 100, True),
        ("no_mask", "20,200", 300, 100, False),  # the first query just reaches the first key
        ("no_mask", "20,199", 300, 100, True),
        ("no_mask", "20,-1", 300, 100, False),
        ("no_mask", "20,20", 100, 300, False),
        ("causal", "20,0", 300, 100, True),  # the last query looks back at keys that are not there
        ("causal", "200,0", 300, 100, False),  # the last query just reaches the last key
        ("causal", "199,0", 300, 100, True),
        ("causal", "20,0", "null", "null", None),
        ("padding", "null", 100, 100, None),
        ("padding_causal", "null", 100, 100, None),
        ("arbitrary", "null", 100, 100, None),
    ],
)
def test_rows_without_keys(mask: str, window: str, q: object, kv: object, rows: bool | None) -> None:
    assert derive("fully_masked_rows", mask=mask, window=window, seq_len_q=q, seq_len_kv=kv) is rows
    assert derive("fully_masked_rows", mask=mask, window=window, fully_masked_rows="true") is True


@pytest.mark.parametrize("left", [-1, 0, 1, 2, 5])
@pytest.mark.parametrize("right", [-1, 0, 1, 3])
@pytest.mark.parametrize("q, kv", [(1, 1), (4, 4), (5, 3), (8, 3), (3, 7)])
@pytest.mark.parametrize("mask", ["no_mask", "causal", "causal_bottom_right"])
def test_rows_without_keys_are_those_of_the_written_out_mask(mask: str, q: int, kv: int, left: int, right: int) -> None:
    right = right if mask == "no_mask" else 0
    shift = 0 if mask == "causal" else kv - q
    sees = [
        any((left < 0 or j >= i + shift - left) and (right < 0 or j <= i + shift + right) for j in range(kv))
        for i in range(q)
    ]
    given = {"mask": mask, "window": f"{left},{right}", "seq_len_q": q, "seq_len_kv": kv}
    assert derive("fully_masked_rows", **given) is not all(sees)


def test_empty_sequences_are_of_packed_batches_alone() -> None:
    assert derive("zero_length_sequences", qkv_layout="bshd_bshd_bshd") is False
    assert derive("zero_length_sequences", qkv_layout="thd_thd_thd") is None
    assert derive("zero_length_sequences", qkv_layout="thd_thd_thd", zero_length_sequences="true") is True
    assert derive("zero_length_sequences", dtype="float16") is None


def test_tensors_begin_where_torch_lets_them_unless_said_otherwise() -> None:
    assert derive("qkv_unaligned", dtype="float16") is False
    assert derive("qkv_unaligned", qkv_unaligned="true") is True
    assert derive("qkv_unaligned", qkv_unaligned="null") is None


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("head_dim_v", {"head_dim_qk": 96}, 96),
        ("head_dims_equal", {"head_dim_qk": 192, "head_dim_v": 128}, False),
        ("head_dims_equal", {"head_dim_qk": 192}, True),
        ("head_dim_max", {"head_dim_qk": 192, "head_dim_v": 128}, 192),
        ("head_dim_min", {"head_dim_qk": 192, "head_dim_v": 128}, 128),
        ("head_dims_192_128", {"head_dim_qk": 192, "head_dim_v": 128}, True),
        ("head_dims_192_128", {"head_dim_qk": 128, "head_dim_v": 192}, False),
        ("head_dims_multiple_of_8", {"head_dim_qk": 80}, True),
        ("head_dims_multiple_of_8", {"head_dim_qk": 80, "head_dim_v": 100}, False),
        ("num_kv_heads", {"num_heads": 32}, 32),
        ("gqa", {"num_heads": 32}, False),
        ("gqa", {"num_heads": 32, "num_kv_heads": 8}, True),
        ("kv_group_size", {"num_heads": 32, "num_kv_heads": 8}, 4),
        ("kv_group_size", {"num_heads": 32, "num_kv_heads": 5}, None),
        ("kv_heads_divide", {"num_heads": 32, "num_kv_heads": 5}, False),
        ("kv_heads_divide", {"num_heads": 32, "num_kv_heads": 8}, True),
        ("interleaved_gqa", {"qkv_interleaved": "true", "num_heads": 16, "num_kv_heads": 1}, True),
        ("interleaved_gqa", {"qkv_interleaved": "true", "num_heads": 16}, False),
        ("interleaved_gqa", {"qkv_interleaved": "true"}, None),
        ("interleaved_gqa", {"qkv_interleaved": "false"}, False),
        ("seq_len_kv", {"seq_len_q": 512}, 512),
        ("seq_lens_equal", {"seq_len_q": 512, "seq_len_kv": 1024}, False),
        ("q_longer_than_kv", {"seq_len_q": 512, "seq_len_kv": 1024}, False),
        ("q_longer_than_kv", {"seq_len_q": 1024, "seq_len_kv": 512}, True),
        ("seq_lens_multiple_of_64", {"seq_len_q": 576}, True),
        ("seq_lens_multiple_of_128", {"seq_len_q": 576}, False),
        ("seq_len_kv_multiple_of_128", {"seq_len_q": 1, "seq_len_kv": 256}, True),
        ("context_parallel", {"cp_size": 2}, True),
        ("context_parallel", {"cp_size": 1}, False),
        ("seq_lens_divide_by_2cp", {"seq_len_q": 4096, "cp_size": 2}, True),
        ("seq_lens_divide_by_2cp", {"seq_len_q": 4098, "cp_size": 2}, False),
        ("seq_lens_divide_by_2cp", {"seq_len_q": 4097, "cp_size": 1}, True),
        ("heads_divide_by_cp", {"num_heads": 32, "num_kv_heads": 2, "cp_size": 4}, False),
        ("heads_divide_by_cp", {"num_heads": 32, "num_kv_heads": 8, "cp_size": 4}, True),
        ("half_precision", {"dtype": "float32"}, False),
        ("half_precision", {"dtype": "bfloat16"}, True),
        ("score_matrix_bytes", {"batch_size": 2, "num_heads": 4, "seq_len_q": 8, "dtype": "float32"}, 2048),
        ("score_matrix_bytes", {"batch_size": 2, "num_heads": 4, "seq_len_q": 8, "dtype": "bfloat16"}, 1024),
        ("score_matrix_bytes", {"num_heads": 4, "seq_len_q": 8, "dtype": "bfloat16"}, None),
    ],
)  # fmt: skip
def test_arithmetic(key: str, given: dict[str, object], value: object) -> None:
    assert derive(key, **given) == value


def test_a_size_that_is_absent_leaves_arithmetic_unknown() -> None:
    from doctor.model import Fact, Facts

    facts = Facts([Fact("workload.head_dim_qk", ABSENT, "a snapshot"), Fact("workload.head_dim_v", 128, "a snapshot")])
    assert FactResolver(facts).value("workload.head_dim_max") is None
