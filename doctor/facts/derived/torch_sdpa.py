"""Derived facts of torch's attention call: the arguments of `scaled_dot_product_attention` for a workload."""

from __future__ import annotations

from doctor.facts.kinds import BOOLEAN, INTEGER, TEXT
from doctor.facts.libraries.frameworks import caller_named
from doctor.facts.vocabulary import Term, declare
from doctor.model import ABSENT

from .registry import derived, multiple_of

declare(
    Term("torch.sdpa_reviewed", BOOLEAN, "the conditions of this torch release were read from its source", derived=True)
)

_FULL_WINDOW = (-1, -1)


@derived(
    "workload.sdpa_mask_tensor",
    BOOLEAN,
    "SDPA gets a written-out attn_mask: padding, a window, a bias or an arbitrary mask",
    needs=("workload.mask", "workload.window", "workload.bias"),
    uses=(
        "workload.nested_tensors", "workload.seq_len_kv", "workload.seq_len_q", "workload.framework",
        "hf.sdpa_writes_mask",
    ),
)  # fmt: skip
def _mask_tensor(
    mask: str, window: tuple[int, int] | str, bias: str, nested: bool | None, seq_len_kv: int | None,
    seq_len_q: int | None, framework: str | None, always: bool | None,
) -> bool | None:  # fmt: skip
    if mask == "arbitrary" or bias != "no_bias":
        return True
    written = always or _written_for_lengths(mask, seq_len_q, seq_len_kv)
    if written and caller_named(framework).takes_attn_implementation:
        return True
    if window != ABSENT and isinstance(window, tuple) and window != _FULL_WINDOW:
        left = window[0]
        if left < 0 and "causal" in mask:
            pass  # unlimited to the left under a causal mask: not a window
        elif seq_len_kv is None:
            return None
        elif left < 0 or left + 1 < seq_len_kv:
            return True
    if mask.startswith("padding"):
        return not nested  # nested tensors carry their lengths themselves
    return False


def _written_for_lengths(mask: str, seq_len_q: int | None, seq_len_kv: int | None) -> bool:
    """Return whether transformers writes the mask out: it aligns to the lower right, `is_causal` to the upper left.

    Source: transformers, _ignore_causal_mask_sdpa.
    """
    known = seq_len_q is not None and seq_len_kv is not None
    return known and mask in ("causal", "causal_bottom_right") and seq_len_q not in (1, seq_len_kv)


@derived(
    "workload.sdpa_is_causal",
    BOOLEAN,
    "SDPA is called with is_causal=True",
    needs=("workload.mask", "workload.sdpa_mask_tensor", "workload.sdpa_lower_right"),
    uses=("workload.framework", "workload.seq_len_q"),
)
def _is_causal(mask: str, tensor: bool, lower_right: bool, framework: str | None, seq_len_q: int | None) -> bool:
    if caller_named(framework).takes_attn_implementation and seq_len_q == 1:
        return False  # its sdpa_attention_forward drops the flag for a single query token
    return "causal" in mask and not tensor and not lower_right


@derived(
    "workload.sdpa_lower_right",
    BOOLEAN,
    "the causal diagonal ends at the lower right corner of a matrix that is not square (causal_lower_right)",
    needs=("workload.mask", "workload.sdpa_mask_tensor"),
    uses=("workload.seq_lens_equal",),
)
def _lower_right(mask: str, tensor: bool, equal: bool | None) -> bool | None:
    if tensor or not mask.endswith("bottom_right"):
        return False
    return None if equal is None else not equal


@derived(
    "workload.sdpa_unexpanded_gqa",
    BOOLEAN,
    "SDPA gets fewer key/value heads than query heads (enable_gqa=True)",
    needs=("workload.gqa",),
    uses=("workload.enable_gqa",),
)
def _unexpanded_gqa(gqa: bool, enabled: bool | None) -> bool | None:
    return False if not gqa else enabled


@derived(
    "workload.dropout_in_sixteenths",
    BOOLEAN,
    "the dropout probability is a multiple of 1/16",
    needs=("workload.dropout",),
)
def _sixteenths(dropout: float) -> bool:
    return (dropout * 16.0).is_integer()


multiple_of(
    "workload.head_dims_multiple_of_4",
    "both head dims are multiples of 4",
    4,
    "workload.head_dim_qk",
    "workload.head_dim_v",
)


@derived(
    "workload.sdpa_math_bytes",
    INTEGER,
    "bytes that plain math holds at once for one layer: scores and probabilities in float32, and their gradients",
    needs=("workload.batch_size", "workload.num_heads", "workload.seq_len_q", "workload.seq_len_kv"),
    uses=("workload.training",),
)
def _math_bytes(batch: int, heads: int, q: int, kv: int, training: bool | None) -> int:
    # Measured on an H200 with torch 2.11: 9.5 to 10.8 bytes per score forward, 16.8 to 17.3 with backward.
    return (16 if training else 8) * batch * heads * q * kv


@derived(
    "workload.sdpa_math_fits",
    BOOLEAN,
    "what plain math holds for one layer fits into the memory of the GPU",
    needs=("workload.sdpa_math_bytes", "gpu.memory_bytes"),
)
def _math_fits(needed: int, memory: int) -> bool:
    return needed <= memory


@derived(
    "workload.sdpa_math_is_large",
    BOOLEAN,
    "what plain math holds for one layer is more than an eighth of the memory of the GPU in training, a half elsewhere",
    needs=("workload.sdpa_math_bytes", "gpu.memory_bytes"),
    uses=("workload.training",),
)
def _math_is_large(needed: int, memory: int, training: bool | None) -> bool:
    return (8 if training else 2) * needed > memory  # a backward pass keeps what every layer wrote


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _dq_row(heads: int, head_dim: int) -> int:
    # flash_api.cpp, mha_bwd: head_size_rounded = round up to 32 (64 above 128), seqlen_q_rounded = round up to 128.
    return heads * _round_up(head_dim, 32 if head_dim <= 128 else 64)


_DQ_SIZES = ("workload.batch_size", "workload.seq_len_q", "workload.num_heads", "workload.head_dim_qk")


@derived(
    "workload.dq_offset_of_last_sequence",
    INTEGER,
    "elements before the last sequence of a batch in the float32 dQ accumulator of flash-attn 2, with its rounding",
    needs=_DQ_SIZES,
)
def _dq_last_sequence(batch: int, seq_len: int, heads: int, head_dim: int) -> int:
    return (batch - 1) * _round_up(seq_len, 128) * _dq_row(heads, head_dim)


@derived(
    "workload.dq_offset_of_last_block",
    INTEGER,
    "elements before the last 128 rows of the float32 dQ accumulator of flash-attn 2, with its rounding",
    needs=_DQ_SIZES,
)
def _dq_last_block(batch: int, seq_len: int, heads: int, head_dim: int) -> int:
    return (batch * _round_up(seq_len, 128) - 128) * _dq_row(heads, head_dim)


@derived(
    "workload.calls_flash_attn",
    BOOLEAN,
    "the flash-attn package itself runs attention, not torch's built-in copy",
    needs=("workload.framework", "workload.attn_implementation"),
    uses=("te.selected",),
)
def _calls_flash_attn(framework: str, attn_implementation: str, selected: str | None) -> bool | None:
    caller = caller_named(framework)
    if caller.takes_attn_implementation:  # XTuner loads its models with it wherever flash-attn is installed
        return (caller.own_implementation or attn_implementation) == "flash_attention_2"
    if caller.kernel == "te_attention":
        return None if selected is None else selected == "te.flash2"
    return caller.implementation == "flash_attention_2"


@derived(
    "workload.use_varlen_attn",
    BOOLEAN,
    "XTuner: packed sequences through varlen attention; off by default",
    needs=("workload.framework",),
)
def _use_varlen_attn(framework: str) -> bool | None:
    return False if framework == "xtuner" else None


@derived(
    "workload.enable_gqa",
    BOOLEAN,
    "SDPA is called with enable_gqa=True instead of expanded key/value heads",
    needs=("workload.framework", "workload.sdpa_mask_tensor"),
    uses=("hf.sdpa_gqa", "workload.head_dim_qk", "workload.head_dim_v"),
)
def _enable_gqa(framework: str, mask_tensor: bool, gqa: str | None, qk: int | None, v: int | None) -> bool | None:
    # use_gqa_in_sdpa of transformers: with a mask only plain math takes enable_gqa, so it expands the heads.
    if not caller_named(framework).takes_attn_implementation:
        return None
    if mask_tensor or gqa == "never":
        return False
    if gqa != "unmasked_flash_dims":
        return None if gqa is None else True
    return None if qk is None or v is None else qk == v <= 256


@derived(
    "workload.known_thd",
    BOOLEAN,
    "sequences are known to be packed one after the other (thd); false where the layout is not given",
    uses=("workload.qkv_layout",),
)
def _known_thd(layout: str | None) -> bool:
    return layout is not None and layout.startswith("t")


@derived(
    "workload.enable_gqa_asked",
    BOOLEAN,
    "enable_gqa=True is known to be passed; false where the call is unknown",
    uses=("workload.enable_gqa",),
)
def _enable_gqa_asked(enabled: bool | None) -> bool:
    return enabled is True


@derived(
    "workload.nested_layout",
    TEXT,
    "layout of the nested tensors, strided or jagged; absent where there are none",
    needs=("workload.nested_tensors",),
)
def _nested_layout(nested: bool) -> str | None:
    return None if nested else ABSENT


@derived(
    "workload.jagged",
    BOOLEAN,
    "SDPA is called on nested tensors of the jagged layout",
    needs=("workload.nested_tensors", "workload.nested_layout"),
)
def _jagged(nested: bool, layout: str) -> bool:
    return nested and layout == "jagged"


@derived(
    "workload.known_jagged",
    BOOLEAN,
    "the nested tensors are known to be jagged; false where the layout is not stated",
    uses=("workload.nested_layout",),
)
def _known_jagged(layout: str | None) -> bool:
    return layout == "jagged"


@derived(
    "workload.known_empty_sequences",
    BOOLEAN,
    "the batch is known to have a sequence without tokens; false where that is not stated",
    uses=("workload.zero_length_sequences",),
)
def _known_empty_sequences(empty: bool | None) -> bool:
    return empty is True


@derived(
    "workload.longer_than_head_dim",
    BOOLEAN,
    "more query or more key tokens than a query head is wide",
    needs=("workload.seq_len_q", "workload.seq_len_kv", "workload.head_dim_qk"),
)
def _longer_than_head_dim(q: int, kv: int, head_dim: int) -> bool:
    return max(q, kv) > head_dim
