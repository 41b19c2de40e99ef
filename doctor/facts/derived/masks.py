"""Derived facts of masks: windows, alignment, and the mask of each context-parallel step."""

from __future__ import annotations

from typing import Any

from doctor.facts.kinds import BOOLEAN, LIST
from doctor.model import ABSENT

from .registry import derived, shape


@derived("workload.window_given", BOOLEAN, "a sliding window is set", needs=("workload.window",))
def _window_given(window: tuple[int, int] | str) -> bool:
    return window not in (ABSENT, (-1, -1), (-1, 0))


@shape(
    "workload.window_effective",
    BOOLEAN,
    "the sliding window is shorter than the sequence, so that it changes the result",
    needs=("workload.window_given", "workload.seq_len_kv"),
    uses=("workload.window",),
)
def _window_effective(given: bool, kv: int, window: Any) -> bool | None:
    if not given:
        return False
    if window in (None, ABSENT):
        return None
    left, right = window
    return bool(0 <= left < kv - 1 or 0 < right < kv - 1)  # a causal mask has right 0 anyway


@shape("workload.causal", BOOLEAN, "the mask is causal, top-left or bottom-right", needs=("workload.mask",))
def _causal(mask: str) -> bool:
    return "causal" in mask


@shape("workload.padded", BOOLEAN, "the mask pads sequences", needs=("workload.mask",))
def _padded(mask: str) -> bool:
    return mask.startswith("padding")


@shape("workload.bottom_right", BOOLEAN, "the mask itself is bottom-right", needs=("workload.mask",))
def _bottom_right(mask: str) -> bool:
    return mask.endswith("bottom_right")


@shape(
    "workload.bottom_right_diagonal",
    BOOLEAN,
    "window and ALiBi are aligned to the bottom-right corner",
    needs=("workload.mask",),
)
def _bottom_right_diagonal(mask: str) -> bool:
    # Source: TransformerEngine dot_product_attention.py: only the top-left causal masks have the other alignment.
    return mask not in ("causal", "padding_causal")


@derived(
    "workload.fully_masked_rows",
    BOOLEAN,
    "some queries are masked from every key; unknown for padding and mask tensors unless stated",
    needs=("workload.mask", "workload.window"),
    uses=("workload.seq_len_q", "workload.seq_len_kv", "workload.bottom_right_diagonal"),
)
def _fully_masked_rows(
    mask: str, window: tuple[int, int] | str, q: int | None, kv: int | None, bottom_right: bool | None
) -> bool | None:
    if mask not in ("no_mask", "causal", "causal_bottom_right"):
        return None  # padding may mask all keys of a query, or a whole sequence; a tensor may hold anything
    left, right = window if isinstance(window, tuple) else (-1, -1)
    if mask != "no_mask":
        right = 0
    if left < 0 and (right < 0 or mask == "causal"):
        return False  # every query attends to the first key
    if not isinstance(q, int) or not isinstance(kv, int) or bottom_right is None:
        return None
    if bottom_right:  # the last query attends to the last key, the first one up to `right` beyond kv - q
        return 0 <= right < q - kv
    return 0 <= left < q - kv  # the first query attends to the first key, the last one back to `left` before q - 1


@derived("workload.context_parallel", BOOLEAN, "cp_size is above 1", needs=("workload.cp_size",))
def _context_parallel(cp_size: int | str) -> bool:
    return isinstance(cp_size, int) and cp_size > 1


@derived(
    "workload.step_masks",
    LIST,
    "the masks of the single steps of context parallelism",
    needs=("workload.mask", "workload.context_parallel", "workload.cp_comm_type"),
)
def _step_masks(mask: str, context_parallel: bool, comm: str) -> tuple[str, ...] | None:
    # Source: TransformerEngine context_parallel.py, AttnFuncWithCPAndKVP2P, …KVAllGather and …QKVOA2A.
    if mask == ABSENT:
        return None
    if not context_parallel or comm == "a2a" or "causal" not in mask:
        return (mask,)
    padded = mask.startswith("padding")
    if comm == "all_gather":  # a chunk of queries attends to a growing prefix of keys
        return ("padding_causal_bottom_right" if padded else "causal_bottom_right",)
    if mask.endswith("bottom_right"):  # the ring has no such step; it is refused before it starts
        return (mask,)
    # The ring (p2p, the default): the diagonal step keeps its mask, the others attend to all keys they get.
    return (mask, "padding" if padded else "no_mask")


@derived(
    "workload.step_bottom_right",
    BOOLEAN,
    "a step needs the bottom-right causal mask: as stated, or by all-gather context parallelism",
    needs=("workload.step_masks",),
)
def _step_bottom_right(masks: tuple[str, ...]) -> bool:
    return any(mask.endswith("bottom_right") for mask in masks)


@shape(
    "workload.seq_lens_divide_by_2cp",
    BOOLEAN,
    "query and key/value tokens divide by 2 · cp_size, as the two chunks of each context-parallel rank need",
    needs=("workload.seq_len_q", "workload.seq_len_kv", "workload.cp_size"),
)
def _divide_by_2cp(q: int, kv: int, cp_size: int) -> bool | None:
    if cp_size < 1:
        return None
    return cp_size == 1 or (q % (2 * cp_size) == 0 and kv % (2 * cp_size) == 0)


@shape(
    "workload.heads_divide_by_cp",
    BOOLEAN,
    "query and key/value heads divide by cp_size, as all-to-all context parallelism needs",
    needs=("workload.num_heads", "workload.num_kv_heads", "workload.cp_size"),
)
def _heads_divide_by_cp(heads: int, kv_heads: int, cp_size: int) -> bool | None:
    return None if cp_size < 1 else heads % cp_size == 0 and kv_heads % cp_size == 0


@shape(
    "workload.query_heads_divide_by_cp",
    BOOLEAN,
    "query heads divide by cp_size, as Ulysses needs to share them",
    needs=("workload.num_heads", "workload.cp_size"),
)
def _query_heads_divide_by_cp(heads: int, cp_size: int) -> bool | None:
    return None if cp_size < 1 else heads % cp_size == 0


@shape(
    "workload.query_heads_divide_by_cp_twice",
    BOOLEAN,
    "cp_size also divides each rank's share of the query heads",
    needs=("workload.num_heads", "workload.cp_size"),
)
def _query_heads_divide_twice(heads: int, cp_size: int) -> bool | None:
    return None if cp_size < 1 else heads % (cp_size * cp_size) == 0
