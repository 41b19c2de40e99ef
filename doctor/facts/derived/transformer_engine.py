"""Derived facts of TransformerEngine: how it normalises a workload before it filters backends.

Arithmetic only. Where releases normalise differently, a behaviour fact (`te.seqlen_per_rank` …) decides;
`rules/transformer_engine/library.yaml` sets these facts for ranges of releases.
Source: DotProductAttention.forward and get_attention_backend of every release from 1.9 on.
"""

from __future__ import annotations

import operator
from math import gcd

from doctor.facts.kinds import BOOLEAN, INTEGER, NUMBER, TEXT
from doctor.facts.vocabulary import Term, declare, parse_version
from doctor.model import ABSENT

from .registry import alias, computed, derived, multiple_of

_FLAGS = (
    ("te.seqlen_per_rank", BOOLEAN, "this release filters on the sequence length of one context-parallel rank"),
    ("te.thd_seqlen_pow2", BOOLEAN, "this release rounds thd sequence lengths up to a power of two, later ones to 64"),
    ("te.alibi_cross_as_bias", BOOLEAN, "this release passes ALiBi to cuDNN as a bias when q and kv lengths differ"),
    ("te.cp_packs_kv", BOOLEAN, "this release packs k and v into one tensor for p2p context-parallel steps"),
    ("te.cp_ring_only", BOOLEAN, "this release has no context parallelism except the ring"),
    ("te.flash2_accepted", BOOLEAN, "this TransformerEngine accepts the installed flash-attn"),
    ("te.flash_attn_as_required", BOOLEAN, "no flash-attn is named: the one that this release requires is assumed"),
    ("te.knows_111s", BOOLEAN, "this release distinguishes a 111s bias from 11ss"),
)
for _key, _kind, _meaning in (
    *_FLAGS,
    ("cudnn.runs_head_dim_256", TEXT, "where this cuDNN trains head_dim 256 on sm10x: thd, padded layouts only, never"),
    ("flash-attn.has_window", BOOLEAN, "the installed flash-attn has a sliding window"),
    ("megatron.pads_v", BOOLEAN, "the megatron-core of the job pads V to head_dim_qk in the thd layout"),
    ("te.forces_backend_1", TEXT, "the bias for which this release itself sets NVTE_FUSED_ATTN_BACKEND=1"),
):
    declare(Term(_key, _kind, _meaning, derived=True))


alias("te.mask", TEXT, "the mask TE filters on", "workload.mask")


def window(mask: str, given: tuple[int, int] | str) -> tuple[int, int]:
    """Return the window that TE sets for a mask (check_set_window_size)."""
    causal = "causal" in mask
    if given == ABSENT or given in ((-1, -1), (-1, 0)):
        return (-1, 0) if causal else (-1, -1)
    left, right = int(given[0]), int(given[1])
    return (left, 0) if causal and left >= 0 else (left, right)


@derived("te.window_left", INTEGER, "tokens to the left a query sees; -1 = all", needs=("te.mask", "workload.window"))
def _window_left(mask: str, given: tuple[int, int] | str) -> int:
    return window(mask, given)[0]


@derived("te.window_right", INTEGER, "tokens to the right a query sees; -1 = all", needs=("te.mask", "workload.window"))
def _window_right(mask: str, given: tuple[int, int] | str) -> int:
    return window(mask, given)[1]


@derived(
    "te.windowed", BOOLEAN, "a sliding window remains after normalisation", needs=("te.window_left", "te.window_right")
)
def _windowed(left: int, right: int) -> bool:
    return left != -1 or right not in (-1, 0)


@derived(
    "te.window_contradicts_mask",
    BOOLEAN,
    "a window that the mask does not allow; TE raises an AssertionError",
    needs=("workload.mask", "workload.window"),
)
def _contradicts(mask: str, given: tuple[int, int] | str) -> bool:
    if given == ABSENT or given in ((-1, -1), (-1, 0)):
        return False
    left, right = int(given[0]), int(given[1])
    return left < 0 if "causal" in mask else left < 0 or right < 0


alias("te.layout", TEXT, "memory layout of q, k, v as TE names it", "workload.qkv_layout")


@derived("te.qkv_format", TEXT, "bshd, sbhd or thd", needs=("te.layout",))
def _format(layout: str) -> str:
    return "".join(letter for letter in layout.split("_")[0] if letter.isalpha())


@derived("te.layout_group", TEXT, "hd_hd_hd, 3hd, h3d, hd_2hd or hd_h2d", needs=("te.layout",))
def _group(layout: str) -> str:
    return layout.translate({ord(letter): None for letter in "bst"})


alias("te.heads", INTEGER, "query heads of one call", "workload.num_heads")


alias("te.kv_heads", INTEGER, "key/value heads of one call", "workload.num_kv_heads")


computed("te.gqa", BOOLEAN, "fewer key/value heads than query heads", operator.ne, "te.heads", "te.kv_heads")


@derived(
    "te.heads_divisible_by_groups",
    BOOLEAN,
    "query heads are a multiple of key/value heads",
    needs=("te.heads", "te.kv_heads"),
)
def _divisible(heads: int, kv_heads: int) -> bool:
    return kv_heads > 0 and heads % kv_heads == 0


@derived("te.odd_heads", BOOLEAN, "an odd number of query or key/value heads", needs=("te.heads", "te.kv_heads"))
def _odd(heads: int, kv_heads: int) -> bool:
    return heads % 2 != 0 or kv_heads % 2 != 0


def _seqlen(length: int, layout_format: str, cp_size: int, per_rank: bool | None, pow2: bool | None) -> int:
    if layout_format == "thd":
        if pow2:
            return 1 if length <= 1 else 1 << (length - 1).bit_length()
        return (length + 63) // 64 * 64
    return length // cp_size if per_rank else length


@derived(
    "te.seqlen_q",
    INTEGER,
    "query tokens as TE's filters see them",
    needs=("workload.seq_len_q", "te.qkv_format", "workload.cp_size"),
    uses=("te.seqlen_per_rank", "te.thd_seqlen_pow2"),
)
def _seqlen_q(length: int, layout_format: str, cp_size: int, per_rank: bool | None, pow2: bool | None) -> int:
    return _seqlen(length, layout_format, cp_size, per_rank, pow2)


@derived(
    "te.seqlen_kv",
    INTEGER,
    "key/value tokens as TE's filters see them",
    needs=("workload.seq_len_kv", "te.qkv_format", "workload.cp_size"),
    uses=("te.seqlen_per_rank", "te.thd_seqlen_pow2"),
)
def _seqlen_kv(length: int, layout_format: str, cp_size: int, per_rank: bool | None, pow2: bool | None) -> int:
    return _seqlen(length, layout_format, cp_size, per_rank, pow2)


computed("te.cross", BOOLEAN, "query and key/value lengths differ", operator.ne, "te.seqlen_q", "te.seqlen_kv")


computed("te.more_q_than_kv", BOOLEAN, "more query than key/value tokens", operator.gt, "te.seqlen_q", "te.seqlen_kv")


computed("te.seqlen_max", INTEGER, "the longer of both lengths", max, "te.seqlen_q", "te.seqlen_kv")


multiple_of("te.seqlens_multiple_of_64", "both lengths divide by 64", 64, "te.seqlen_q", "te.seqlen_kv")


multiple_of("te.seqlens_multiple_of_128", "both lengths divide by 128", 128, "te.seqlen_q", "te.seqlen_kv")


multiple_of("te.seqlen_kv_multiple_of_128", "key/value tokens divide by 128", 128, "te.seqlen_kv")


@derived(
    "te.head_dim_v",
    INTEGER,
    "width of a value head as TransformerEngine gets it: Megatron may pad V to head_dim_qk in the thd layout",
    needs=("workload.head_dim_qk", "workload.head_dim_v"),
    uses=("megatron.pads_v", "te.qkv_format"),
)
def _head_dim_v(qk: int, v: int, pads: bool | None, fmt: str | None) -> int:
    padded = pads is True and fmt == "thd" and v < qk
    return qk if padded else v


computed(
    "te.head_dims_equal",
    BOOLEAN,
    "head_dim_qk = head_dim_v as TransformerEngine gets them",
    operator.eq,
    "workload.head_dim_qk",
    "te.head_dim_v",
)


computed(
    "te.head_dim_max",
    INTEGER,
    "the larger head dim as TransformerEngine gets them",
    max,
    "workload.head_dim_qk",
    "te.head_dim_v",
)


multiple_of(
    "te.head_dims_multiple_of_8",
    "both head dims divide by 8 as TransformerEngine gets them",
    8,
    "workload.head_dim_qk",
    "te.head_dim_v",
)


multiple_of("te.head_dim_qk_multiple_of_8", "head_dim_qk divides by 8", 8, "workload.head_dim_qk")


multiple_of("te.head_dim_max_multiple_of_8", "the larger head dim divides by 8", 8, "te.head_dim_max")


multiple_of("te.head_dims_multiple_of_16", "both head dims divide by 16", 16, "workload.head_dim_qk", "te.head_dim_v")


@derived("te.fp8_dpa", BOOLEAN, "attention itself runs in FP8; fp8_mha forces it",
         needs=("workload.fp8", "workload.fp8_dpa", "workload.fp8_mha"))  # fmt: skip
def _fp8_dpa(fp8: bool, dpa: bool, mha: bool) -> bool:
    return fp8 and (dpa or mha)


@derived("te.fp8_recipe", TEXT, "FP8 recipe; TE's default is delayed scaling", needs=("workload.fp8_recipe",))
def _fp8_recipe(recipe: str) -> str:
    return "delayed" if recipe == ABSENT else recipe


@derived(
    "te.bottom_right_diagonal",
    BOOLEAN,
    "window and ALiBi are aligned to the bottom-right corner",
    needs=("te.mask",),
    uses=("workload.bottom_right_diagonal",),
)
def _bottom_right_diagonal(mask: str, given: bool | None) -> bool:
    if mask in ("causal", "padding_causal"):
        return False
    if mask.endswith("bottom_right"):
        return True
    return True if given is None else given


@derived(
    "te.ragged_offset_64bit",
    BOOLEAN,
    "a thd offset is 2^31 or more: heads · head_dim · tokens",
    needs=(
        "te.qkv_format", "te.layout_group", "te.heads", "te.kv_heads", "te.seqlen_q", "te.seqlen_kv",
        "workload.head_dim_qk", "te.head_dim_v",
    ),
)  # fmt: skip
def _ragged(fmt: str, group: str, heads: int, kv_heads: int, q: int, kv: int, qk: int, v: int) -> bool:
    if fmt != "thd":
        return False
    offsets = [heads * qk * q]
    if group == "hd_hd_hd":
        offsets += [kv_heads * qk * kv, kv_heads * v * kv]
    elif group in ("3hd", "h3d"):
        offsets.append(3 * heads * qk * q)
    else:
        offsets.append(2 * kv_heads * qk * kv)
    return max(offsets) > 2**31 - 1


@derived(
    "te.fa4_misaligned_dv",
    BOOLEAN,
    "flash-attn 4's sm100 backward reads dV misaligned: (v/2) does not divide by gcd(32, qk/2)",
    needs=("workload.head_dim_qk", "te.head_dim_v"),
)
def _fa4_misaligned(qk: int, v: int) -> bool:
    tile_qk, tile_v = -(-qk // 16) * 16, -(-v // 16) * 16
    return qk != v and qk >= 128 and (tile_v // 2) % gcd(32, tile_qk // 2) != 0


@derived(
    "te.score_elements",
    NUMBER,
    "batch · heads · q · kv",
    needs=("workload.batch_size", "te.heads", "te.seqlen_q", "te.seqlen_kv"),
)
def _score_elements(batch: int, heads: int, q: int, kv: int) -> float:
    return float(batch * heads * q * kv)


@derived(
    "cudnn.te_differs", BOOLEAN, "TE would load another cuDNN than torch", needs=("cudnn.version", "cudnn.te_version")
)
def _te_cudnn_differs(torch: str, te: str) -> bool:
    return ABSENT not in (torch, te) and parse_version(torch).release[:3] != parse_version(te).release[:3]


@derived(
    "flash-attn.has_local_label",
    BOOLEAN,
    "the installed flash-attn has a label such as +cu12torch2.8, which counts as newer than the bare version",
    needs=("flash-attn.version",),
)
@derived(
    "transformer-engine.has_local_label",
    BOOLEAN,
    "the installed TransformerEngine has a label such as +e5edd6c: a build from source, with its torch part",
    needs=("transformer-engine.version",),
)
def _local_label(version: str) -> bool:
    return version != ABSENT and "+" in version


@derived(
    "te.parts_labelled",
    BOOLEAN,
    "TransformerEngine's torch part or core has a label such as +cu.12.8.torch.2.11, the package above has none",
    needs=("transformer-engine.version", "transformer-engine-torch.version"),
    uses=("transformer-engine-cu12.version", "transformer-engine-cu13.version"),
)
def _parts_labelled(whole: str, torch_part: str, cu12: str | None, cu13: str | None) -> bool:
    if ABSENT in (whole, torch_part) or "+" in whole:
        return False
    return any("+" in part for part in (torch_part, cu12, cu13) if part is not None)
