"""Which arguments torch's attention call gets for a workload."""

from __future__ import annotations

from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.rulebook.resolver import FactResolver

PLAIN = {"mask": "causal", "seq_len_q": 4096, "framework": "torch_sdpa"}


def value(key: str, **workload: Any) -> Any:
    given = {**PLAIN, **workload}
    return FactResolver(Facts(fact(f"workload.{name}", found, "the test") for name, found in given.items())).value(key)


@pytest.mark.parametrize(
    ("workload", "tensor", "causal"),
    [
        ({}, False, True),
        ({"mask": "no_mask"}, False, False),
        ({"mask": "padding_causal"}, True, False),
        ({"mask": "padding_causal", "nested_tensors": True}, False, True),
        ({"mask": "arbitrary"}, True, False),
        ({"bias": "alibi"}, True, False),
        ({"window": [1024, 0]}, True, False),
        ({"window": [4095, 0]}, False, True),  # reaches every key there is
        ({"window": [-1, 0]}, False, True),  # no limit to the left of a causal mask is no window
        ({"window": [-1, -1]}, False, True),
        ({"mask": "causal_bottom_right"}, False, True),  # the same as top-left while the lengths are equal
    ],
)
def test_mask_tensor_or_flag(workload: dict[str, Any], tensor: bool, causal: bool) -> None:
    assert value("workload.sdpa_mask_tensor", **workload) is tensor
    assert value("workload.sdpa_is_causal", **workload) is causal


def test_a_window_without_a_length_leaves_it_open() -> None:
    assert value("workload.sdpa_mask_tensor", window=[1024, 0], seq_len_q=None) is None


def test_lower_right_goes_its_own_way() -> None:
    workload = {"mask": "causal_bottom_right", "seq_len_kv": 8192}
    assert value("workload.sdpa_lower_right", **workload) is True
    assert value("workload.sdpa_is_causal", **workload) is False


@pytest.mark.parametrize(
    ("length", "head_dim", "last_sequence", "last_block"),
    [
        (4096, 128, 2 * 4096 * 8 * 128, (3 * 4096 - 128) * 8 * 128),
        (4000, 100, 2 * 4096 * 8 * 128, (3 * 4096 - 128) * 8 * 128),
        (15, 160, 2 * 128 * 8 * 192, 2 * 128 * 8 * 192),
    ],
)
def test_dq_offsets_are_rounded_as_the_kernel_does(
    length: int, head_dim: int, last_sequence: int, last_block: int
) -> None:
    shape = {"batch_size": 3, "seq_len_q": length, "num_heads": 8, "head_dim_qk": head_dim}
    assert value("workload.dq_offset_of_last_sequence", **shape) == last_sequence
    assert value("workload.dq_offset_of_last_block", **shape) == last_block


def test_math_bytes_count_gradients_in_training() -> None:
    shape = {"batch_size": 2, "num_heads": 8}
    assert value("workload.sdpa_math_bytes", training=True, **shape) == 16 * 2 * 8 * 4096**2
    assert value("workload.sdpa_math_bytes", training=False, **shape) == 8 * 2 * 8 * 4096**2


@pytest.mark.parametrize(("dropout", "steps"), [(0.0, True), (0.125, True), (0.1, False)])
def test_dropout_in_sixteenths(dropout: float, steps: bool) -> None:
    assert value("workload.dropout_in_sixteenths", dropout=dropout) is steps


@pytest.mark.parametrize(
    ("workload", "jagged", "layout"),
    [
        ({}, False, "absent"),
        ({"nested_tensors": True}, None, None),
        ({"nested_tensors": None}, None, None),
        ({"nested_tensors": True, "nested_layout": "jagged"}, True, "jagged"),
        ({"nested_tensors": True, "nested_layout": "strided"}, False, "strided"),
        ({"nested_layout": "jagged"}, False, "jagged"),  # of tensors that are not nested
    ],
)
def test_the_layout_of_nested_tensors_is_known_where_it_is_said(
    workload: dict[str, Any], jagged: bool | None, layout: str | None
) -> None:
    assert value("workload.jagged", **workload) is jagged
    assert value("workload.nested_layout", **workload) == layout


def test_empty_sequences_of_nested_tensors_are_known_where_they_are_said() -> None:
    layout = {"qkv_layout": "bshd_bshd_bshd"}
    assert value("workload.zero_length_sequences", **layout) is False
    assert value("workload.zero_length_sequences", nested_tensors=True, **layout) is None
    assert value("workload.known_empty_sequences", nested_tensors=True, **layout) is False
    assert value("workload.known_empty_sequences", nested_tensors=True, zero_length_sequences=True) is True


@pytest.mark.parametrize(("q", "kv", "longer"), [(64, 64, False), (65, 64, True), (1, 65, True), (None, 65, None)])
def test_sequences_longer_than_a_head_is_wide(q: int | None, kv: int, longer: bool | None) -> None:
    assert value("workload.longer_than_head_dim", seq_len_q=q, seq_len_kv=kv, head_dim_qk=64) is longer
