"""Derived facts of TransformerEngine: the bias and the head dims that reach cuDNN."""

from __future__ import annotations

from doctor.facts.kinds import BOOLEAN, TEXT
from doctor.model import ABSENT

from .registry import derived


@derived(
    "te.bias_shape",
    TEXT,
    "shape of the bias as TE names it; a batch of one makes 1hss bhss and 11ss b1ss",
    needs=("workload.bias", "workload.bias_shape", "workload.batch_size"),
    uses=("te.knows_111s",),
)
def _bias_shape(bias: str, shape: str, batch: int, knows_111s: bool | None) -> str:
    if bias not in ("pre_scale_bias", "post_scale_bias"):
        return ABSENT
    if shape == ABSENT:
        return "1hss"
    if batch == 1:
        return {"1hss": "bhss", "11ss": "b1ss", "111s": "b1ss"}.get(shape, shape)
    return "11ss" if shape == "111s" and not knows_111s else shape


@derived(
    "te.fused_bias",
    TEXT,
    "the bias FusedAttention passes to cuDNN: ALiBi with given slopes becomes a post_scale_bias",
    needs=("workload.bias", "workload.alibi_slopes", "te.cross"),
    uses=("te.alibi_cross_as_bias",),
)
def _fused_bias(bias: str, slopes: str, cross: bool, cross_as_bias: bool | None) -> str:
    if bias == "alibi" and (slopes != ABSENT or (cross and cross_as_bias)):
        return "post_scale_bias"
    return bias


@derived(
    "te.fused_bias_shape",
    TEXT,
    "shape of the bias FusedAttention passes to cuDNN",
    needs=("workload.bias", "te.bias_shape", "te.fused_bias", "workload.alibi_slopes"),
)
def _fused_bias_shape(bias: str, shape: str, fused: str, slopes: str) -> str:
    if bias == "alibi" and fused == "post_scale_bias":
        return "bhss" if slopes == "bh" else "1hss"
    return shape


@derived(
    "te.fused_bias_grad",
    BOOLEAN,
    "cuDNN would have to return a gradient of the bias",
    needs=("workload.bias", "workload.bias_requires_grad"),
)
def _fused_bias_grad(bias: str, grad: bool) -> bool:
    return grad and bias in ("pre_scale_bias", "post_scale_bias")


@derived(
    "te.fused_backend_forced_arbitrary",
    BOOLEAN,
    "TE itself sets NVTE_FUSED_ATTN_BACKEND=1 for this bias",
    needs=("te.fused_bias", "te.fused_bias_shape", "te.fused_bias_grad"),
    uses=("te.forces_backend_1",),
)
def _forced(bias: str, shape: str, grad: bool, forces: str | None) -> bool:
    return forces is not None and bias == "post_scale_bias" and shape != "1hss" and not grad


@derived(
    "te.head_dim_256_trains_on_sm100",
    BOOLEAN,
    "head dims 256/256 with no more than a plain or causal window, as cuDNN's backward on sm10x requires",
    needs=(
        "workload.head_dim_qk", "te.head_dim_v", "gpu.sm", "workload.dropout", "workload.softmax_type",
        "te.fused_bias", "te.mask", "te.windowed", "cudnn.runs_head_dim_256", "te.qkv_format",
    ),
)  # fmt: skip
def _trains_256(
    qk: int, v: int, sm: str, dropout: float, softmax: str, bias: str, mask: str, windowed: bool, runs: str, fmt: str
) -> bool:
    plain = bias == "no_bias" and dropout == 0 and softmax == "vanilla"
    served = runs == "thd" or (runs == "padded" and fmt != "thd")
    return qk == v == 256 and sm.startswith("10.") and plain and (not windowed or "causal" in mask) and served
