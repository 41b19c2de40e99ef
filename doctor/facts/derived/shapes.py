"""Derived facts of the workload: comparisons of shapes, parts of layouts."""

from __future__ import annotations

import operator

from doctor.facts.kinds import BOOLEAN, INTEGER, TEXT
from doctor.facts.libraries.frameworks import DEPENDENT, assumed_frameworks
from doctor.facts.libraries.frameworks import KEY as FRAMEWORK
from doctor.model import ABSENT, Facts

from . import masks  # noqa: F401  (registers its derivations)
from .registry import alias, computed, derived, multiple_of, shape


def _framework(given: bool, attn_implementation: str | None, *versions: str | None) -> str | None:
    if not given:
        return None
    has_option = attn_implementation not in (None, ABSENT)
    callers = [
        (item.word, version)
        for item, version in zip(assumed_frameworks(), versions, strict=True)
        if item.takes_attn_implementation or not has_option
    ]
    found = next((word for word, version in callers if version not in (None, ABSENT)), None)
    return callers[-1][0] if found is None and has_option and callers else found  # the option is of one of these


def _register_framework() -> None:
    """Register who calls attention, by the packages of the frameworks that are declared."""
    derived(
        FRAMEWORK, TEXT, "who calls attention", needs=("workload.given",),
        uses=("workload.attn_implementation", *_version_keys()),
    )(_framework)  # fmt: skip


def _version_keys() -> list[str]:
    return [f"{item.assumed_with}.version" for item in assumed_frameworks()]


_register_framework()
DEPENDENT.append(_register_framework)


def framework_of(facts: Facts) -> str | None:
    """Return who calls attention by facts alone, without a rulebook: as stated, else by what is installed."""
    if FRAMEWORK in facts:
        stated = facts.value(FRAMEWORK)
        return None if stated is None else str(stated)
    versions = map(facts.value, _version_keys())
    return _framework(facts.has_workload, facts.value("workload.attn_implementation"), *versions)


computed(
    "workload.described",
    BOOLEAN,
    "the job states its shapes or its trainer; an option that such a job does not name has its default",
    operator.or_,
    "workload.head_dim_qk.given",
    "workload.trainer.given",
)


computed(
    "workload.head_dims_equal",
    BOOLEAN,
    "head_dim_qk = head_dim_v; false for multi-head latent attention",
    operator.eq,
    "workload.head_dim_qk",
    "workload.head_dim_v",
)


computed(
    "workload.values_wider",
    BOOLEAN,
    "head_dim_v > head_dim_qk",
    operator.lt,
    "workload.head_dim_qk",
    "workload.head_dim_v",
)


# Every architecture except multi-head latent attention, which states both.
alias("workload.head_dim_v", INTEGER, "width of a value head", "workload.head_dim_qk")


computed(
    "workload.head_dim_max",
    INTEGER,
    "the larger of head_dim_qk and head_dim_v",
    max,
    "workload.head_dim_qk",
    "workload.head_dim_v",
)


computed(
    "workload.head_dim_min",
    INTEGER,
    "the smaller of head_dim_qk and head_dim_v",
    min,
    "workload.head_dim_qk",
    "workload.head_dim_v",
)


@shape(
    "workload.head_dims_192_128",
    BOOLEAN,
    "head_dim_qk 192 with head_dim_v 128: DeepSeek's latent attention, which some kernels serve by name",
    needs=("workload.head_dim_qk", "workload.head_dim_v"),
)
def _head_dims_192_128(qk: int, v: int) -> bool:
    return (qk, v) == (192, 128)


multiple_of(
    "workload.head_dims_multiple_of_8",
    "both head dims are multiples of 8",
    8,
    "workload.head_dim_qk",
    "workload.head_dim_v",
)


multiple_of(
    "workload.page_holds_256s", "a page of the KV cache holds a multiple of 256 tokens", 256, "workload.page_size"
)


# Plain multi-head attention, where no number of groups is given.
alias("workload.num_kv_heads", INTEGER, "key/value heads", "workload.num_heads")


@shape(
    "workload.kv_group_size",
    INTEGER,
    "query heads that share one key/value head",
    needs=("workload.num_heads", "workload.num_kv_heads"),
)
def _kv_group_size(heads: int, kv_heads: int) -> int | None:
    return None if kv_heads < 1 or heads % kv_heads else heads // kv_heads


@shape(
    "workload.kv_heads_divide",
    BOOLEAN,
    "query heads divide by key/value heads",
    needs=("workload.num_heads", "workload.num_kv_heads"),
)
def _kv_heads_divide(heads: int, kv_heads: int) -> bool | None:
    return None if kv_heads < 1 else heads % kv_heads == 0


computed(
    "workload.gqa",
    BOOLEAN,
    "fewer key/value heads than query heads (GQA or MQA)",
    operator.ne,
    "workload.num_heads",
    "workload.num_kv_heads",
)


# Self-attention.
alias("workload.seq_len_kv", INTEGER, "key/value tokens", "workload.seq_len_q")


computed(
    "workload.seq_lens_equal",
    BOOLEAN,
    "as many query as key/value tokens",
    operator.eq,
    "workload.seq_len_q",
    "workload.seq_len_kv",
)


computed(
    "workload.q_longer_than_kv",
    BOOLEAN,
    "more query than key/value tokens",
    operator.gt,
    "workload.seq_len_q",
    "workload.seq_len_kv",
)


multiple_of(
    "workload.seq_lens_multiple_of_128",
    "query and key/value tokens divide by 128",
    128,
    "workload.seq_len_q",
    "workload.seq_len_kv",
)


multiple_of("workload.seq_len_kv_multiple_of_128", "key/value tokens divide by 128", 128, "workload.seq_len_kv")


@shape(
    "workload.seq_len_kv_half_tile",
    BOOLEAN,
    "key/value tokens are 64 over a multiple of 128",
    needs=("workload.seq_len_kv",),
)
def _kv_half_tile(kv: int) -> bool:
    return kv % 128 == 64


multiple_of("workload.seq_len_kv_multiple_of_4", "key/value tokens divide by 4", 4, "workload.seq_len_kv")
multiple_of("workload.seq_len_kv_multiple_of_8", "key/value tokens divide by 8", 8, "workload.seq_len_kv")
computed(
    "workload.seq_len_divides_by_cp",
    BOOLEAN,
    "the context-parallel ranks divide the sequence",
    lambda tokens, ranks: ranks < 1 or tokens % ranks == 0,
    "workload.seq_len_q",
    "workload.cp_size",
)
multiple_of("workload.seq_len_kv_multiple_of_64", "key/value tokens divide by 64", 64, "workload.seq_len_kv")


multiple_of(
    "workload.seq_lens_multiple_of_64",
    "query and key/value tokens divide by 64",
    64,
    "workload.seq_len_q",
    "workload.seq_len_kv",
)


@derived(
    "workload.qkv_format", TEXT, "bshd, sbhd or thd of the queries, from the layout", needs=("workload.qkv_layout",)
)
def _qkv_format(layout: str) -> str:
    return ABSENT if layout == ABSENT else "".join(letter for letter in _parts(layout)[0] if letter in "bsthd")


@derived(
    "workload.qkv_group",
    TEXT,
    "how q, k, v share memory: hd_hd_hd = three tensors; 3hd, h3d, hd_2hd, hd_h2d = packed",
    needs=("workload.qkv_layout",),
)
def _qkv_group(layout: str) -> str:
    # Source: TransformerEngine, qkv_layout_group: the layout without its batch and sequence letters.
    if layout == ABSENT:
        return ABSENT
    return "_".join("".join(letter for letter in part if letter not in "bst") for part in _parts(layout))


@shape("workload.qkv_packed", BOOLEAN, "q, k, v share one tensor by layout", needs=("workload.qkv_group",))
def _qkv_packed(group: str) -> bool:
    return group != "hd_hd_hd"


@shape("workload.thd", BOOLEAN, "sequences of different length are packed (thd)", needs=("workload.qkv_format",))
def _thd(qkv_format: str) -> bool:
    return qkv_format == "thd"


@derived(
    "workload.zero_length_sequences",
    BOOLEAN,
    "a packed or nested batch may have a sequence without queries; unknown for such batches unless stated",
    needs=("workload.qkv_format",),
    uses=("workload.nested_tensors",),
)
def _zero_length_sequences(qkv_format: str, nested: bool | None) -> bool | None:
    return None if qkv_format == "thd" or nested is not False else False


def _parts(layout: str) -> list[str]:
    return layout.removeprefix("paged_kv_").split("_")


@derived(
    "workload.interleaved_gqa",
    BOOLEAN,
    "q, k, v are views of one fused projection in which groups of heads interleave",
    needs=("workload.qkv_interleaved",),
    uses=("workload.gqa",),
)
def _interleaved_gqa(interleaved: bool, gqa: bool | None) -> bool | None:
    if interleaved is not True:
        return False
    return gqa


@derived("workload.half_precision", BOOLEAN, "dtype is bfloat16 or float16", needs=("workload.dtype",))
def _half(dtype: str) -> bool:
    return dtype in ("bfloat16", "float16")


@shape(
    "workload.scores_per_head",
    INTEGER,
    "elements of the score matrix of one head: q · kv",
    needs=("workload.seq_len_q", "workload.seq_len_kv"),
)
def _scores_per_head(q: int, kv: int) -> int:
    return q * kv


@shape(
    "workload.score_matrix_bytes",
    INTEGER,
    "bytes of the full score matrix that an unfused backend keeps: batch · heads · q · kv · element size",
    needs=("workload.batch_size", "workload.num_heads", "workload.seq_len_q", "workload.seq_len_kv", "workload.dtype"),
)
def _score_matrix(batch: int, heads: int, q: int, kv: int, dtype: str) -> int:
    return batch * heads * q * kv * {"float32": 4, "float8": 1}.get(dtype, 2)


@shape(
    "workload.fused_projection_elements",
    INTEGER,
    "elements of one sequence of a fused q, k and v projection: tokens · (query heads + twice the key heads) · width",
    needs=("workload.seq_len_kv", "workload.num_heads", "workload.num_kv_heads", "workload.head_dim_qk"),
)
def _fused_projection_elements(tokens: int, heads: int, kv_heads: int, width: int) -> int:
    return tokens * (heads + 2 * kv_heads) * width


@derived("xf.few_groups", BOOLEAN, "sequences times key/value heads are fewer than 64, where xFormers splits keys",
         needs=("workload.batch_size", "workload.num_kv_heads"))  # fmt: skip
def _few_groups(batch_size: int, num_kv_heads: int) -> bool:
    return batch_size * num_kv_heads < 64
