"""Derived facts of the workload: shapes compared, masks per context-parallel step, layouts taken apart."""

from __future__ import annotations

from ..model import ABSENT
from ..vocabulary import BOOLEAN, INTEGER, LIST, TEXT
from . import derived

_FRAMEWORK_OF = (  # a dedicated trainer says more than a library that many things bring along
    ("xtuner.version", "xtuner"),
    ("megatron-core.version", "megatron"),
    ("transformer-engine.version", "transformer_engine"),
    ("transformers.version", "transformers"),
    ("torch.version", "torch_sdpa"),
)


@derived(
    "workload.framework",
    TEXT,
    "who calls attention",
    needs=("workload.given",),
    uses=("workload.attn_implementation", *(key for key, _ in _FRAMEWORK_OF)),
)
def _framework(given: bool, attn_implementation: str | None, *versions: str | None) -> str | None:
    if not given:
        return None
    if attn_implementation not in (None, ABSENT):
        return "transformers"
    for (_, framework), version in zip(_FRAMEWORK_OF, versions, strict=True):
        if version not in (None, ABSENT):
            return framework
    return None


@derived(
    "workload.head_dims_equal",
    BOOLEAN,
    "head_dim_qk = head_dim_v; false for multi-head latent attention",
    needs=("workload.head_dim_qk", "workload.head_dim_v"),
)
def _head_dims_equal(qk: int, v: int) -> bool:
    return qk == v


@derived(
    "workload.head_dim_v",
    INTEGER,
    "width of a value head",
    needs=("workload.head_dim_qk",),
)
def _head_dim_v(qk: int) -> int:
    return qk  # every architecture but multi-head latent attention; that one states both


@derived(
    "workload.head_dim_max",
    INTEGER,
    "the larger of head_dim_qk and head_dim_v",
    needs=("workload.head_dim_qk", "workload.head_dim_v"),
)
def _head_dim_max(qk: int, v: int) -> int:
    return max(qk, v)


@derived(
    "workload.head_dims_multiple_of_8",
    BOOLEAN,
    "both head dims are multiples of 8",
    needs=("workload.head_dim_qk", "workload.head_dim_v"),
)
def _multiple_of_8(qk: int, v: int) -> bool:
    return qk % 8 == 0 and v % 8 == 0


@derived("workload.num_kv_heads", INTEGER, "key/value heads", needs=("workload.num_heads",))
def _num_kv_heads(heads: int) -> int:
    return heads  # plain multi-head attention, where no group count is given


@derived(
    "workload.gqa",
    BOOLEAN,
    "fewer key/value heads than query heads (GQA or MQA)",
    needs=("workload.num_heads", "workload.num_kv_heads"),
)
def _gqa(heads: int, kv_heads: int) -> bool:
    return heads != kv_heads


@derived("workload.seq_len_kv", INTEGER, "key/value tokens", needs=("workload.seq_len_q",))
def _seq_len_kv(seq_len_q: int) -> int:
    return seq_len_q  # self-attention


@derived(
    "workload.seq_lens_equal",
    BOOLEAN,
    "as many query as key/value tokens",
    needs=("workload.seq_len_q", "workload.seq_len_kv"),
)
def _seq_lens_equal(q: int, kv: int) -> bool:
    return q == kv


@derived(
    "workload.seq_len_kv_multiple_of_128", BOOLEAN, "key/value tokens divide by 128", needs=("workload.seq_len_kv",)
)
def _kv_multiple_of_128(kv: int) -> bool:
    return kv % 128 == 0


@derived(
    "workload.seq_lens_multiple_of_64",
    BOOLEAN,
    "query and key/value tokens divide by 64",
    needs=("workload.seq_len_q", "workload.seq_len_kv"),
)
def _multiple_of_64(q: int, kv: int) -> bool:
    return q % 64 == 0 and kv % 64 == 0


@derived("workload.window_given", BOOLEAN, "a sliding window is set", needs=("workload.window",))
def _window_given(window: tuple[int, int] | str) -> bool:
    return window not in (ABSENT, (-1, -1), (-1, 0))


@derived("workload.context_parallel", BOOLEAN, "cp_size is above 1", needs=("workload.cp_size",))
def _context_parallel(cp_size: int) -> bool:
    return cp_size > 1


@derived(
    "workload.step_masks",
    LIST,
    "the masks of the single steps that context parallelism cuts attention into",
    needs=("workload.mask", "workload.cp_size", "workload.cp_comm_type"),
)
def _step_masks(mask: str, cp_size: int, comm: str) -> tuple[str, ...]:
    # Source: TransformerEngine context_parallel.py, AttnFuncWithCPAndKVP2P and AttnFuncWithCPAndKVAllGather.
    if cp_size == 1 or comm in (ABSENT, "a2a"):
        return (mask,)
    padded = mask.startswith("padding")
    if comm == "all_gather":  # a chunk of queries meets a growing prefix of keys
        return ("padding_causal_bottom_right" if padded else "causal_bottom_right",) if "causal" in mask else (mask,)
    if "causal" not in mask:
        return (mask,)
    return (mask, "padding" if padded else "no_mask")


@derived(
    "workload.step_bottom_right",
    BOOLEAN,
    "a step needs the bottom-right causal mask: as stated, or by all-gather context parallelism",
    needs=("workload.step_masks",),
)
def _step_bottom_right(masks: tuple[str, ...]) -> bool:
    return any(mask.endswith("bottom_right") for mask in masks)


@derived("workload.qkv_format", TEXT, "bshd, sbhd or thd, from the layout", needs=("workload.qkv_layout",))
def _qkv_format(layout: str) -> str:
    if layout == ABSENT:
        return ABSENT
    letters = "".join(letter for letter in layout.split("_")[0] if letter in "bsthd")
    return letters


@derived(
    "workload.half_precision", BOOLEAN, "dtype is bfloat16 or float16", needs=("workload.dtype",)
)
def _half(dtype: str) -> bool:
    return dtype in ("bfloat16", "float16")


@derived(
    "workload.score_matrix_bytes",
    INTEGER,
    "bytes of the full score matrix that an unfused backend keeps: batch · heads · q · kv · element size",
    needs=("workload.batch_size", "workload.num_heads", "workload.seq_len_q", "workload.seq_len_kv", "workload.dtype"),
)
def _score_matrix(batch: int, heads: int, q: int, kv: int, dtype: str) -> int:
    return batch * heads * q * kv * {"float32": 4, "float8": 1}.get(dtype, 2)
