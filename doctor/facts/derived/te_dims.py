"""Head dims as TransformerEngine gets them: what stands between the model and TE may have padded V."""

from __future__ import annotations

from doctor.facts.vocabulary import BOOLEAN, INTEGER, Term, declare

from .registry import derived

declare(Term("megatron.pads_v", BOOLEAN, "this megatron-core pads V to head_dim_qk in the thd layout", derived=True))


@derived(
    "te.head_dim_v",
    INTEGER,
    "width of a value head as TransformerEngine gets it: Megatron may pad V to head_dim_qk in the thd layout",
    needs=("workload.head_dim_qk", "workload.head_dim_v"),
    uses=("megatron.pads_v", "workload.framework", "te.qkv_format"),
)
def _head_dim_v(qk: int, v: int, pads: bool | None, framework: str | None, fmt: str | None) -> int:
    padded = pads is True and framework == "megatron" and fmt == "thd" and v < qk
    return qk if padded else v


@derived(
    "te.head_dims_equal",
    BOOLEAN,
    "head_dim_qk = head_dim_v as TransformerEngine gets them",
    needs=("workload.head_dim_qk", "te.head_dim_v"),
)
def _head_dims_equal(qk: int, v: int) -> bool:
    return qk == v


@derived(
    "te.head_dim_max",
    INTEGER,
    "the larger head dim as TransformerEngine gets them",
    needs=("workload.head_dim_qk", "te.head_dim_v"),
)
def _head_dim_max(qk: int, v: int) -> int:
    return max(qk, v)


@derived(
    "te.head_dims_multiple_of_8",
    BOOLEAN,
    "both head dims divide by 8 as TransformerEngine gets them",
    needs=("workload.head_dim_qk", "te.head_dim_v"),
)
def _multiple_of_8(qk: int, v: int) -> bool:
    return qk % 8 == 0 and v % 8 == 0
