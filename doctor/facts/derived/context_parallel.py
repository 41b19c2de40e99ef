"""Derived facts of TransformerEngine: what single context-parallel steps require of a backend.

Source: context_parallel.py of every release from 2.3 on (attention.py before), cp_per_step_configs of 2.20.
"""

from __future__ import annotations

from doctor.facts.kinds import BOOLEAN, LIST
from doctor.model import ABSENT

from .registry import derived


@derived(
    "te.cp_heads_divide",
    BOOLEAN,
    "query and key/value heads divide by the ranks that exchange heads (a2a)",
    needs=("workload.cp_size", "workload.cp_comm_type", "workload.num_heads", "workload.num_kv_heads"),
    uses=("workload.cp_size_a2a",),
)
def _cp_heads_divide(cp_size: int, comm: str, heads: int, kv_heads: int, a2a: int | str | None) -> bool | None:
    ranks = _a2a_ranks(cp_size, comm, a2a)
    return None if ranks is None else heads % ranks == 0 and kv_heads % ranks == 0


def _a2a_ranks(cp_size: int, comm: str, a2a: int | str | None) -> int | None:
    if comm == "a2a":
        return cp_size
    if comm == "a2a+p2p":
        return a2a if isinstance(a2a, int) and a2a > 0 else None
    return 1


@derived(
    "te.fused.steps",
    LIST,
    "what single context-parallel steps require of cuDNN, as key=value;key=value",
    needs=(
        "workload.cp_size", "workload.cp_comm_type", "te.mask", "te.seqlen_q", "te.seqlen_kv", "te.layout",
        "te.heads", "te.kv_heads", "te.window_left", "te.window_right", "te.qkv_format",
    ),
    uses=("workload.cp_size_a2a", "te.seqlen_per_rank", "te.cp_packs_kv", "te.cp_ring_only"),
)  # fmt: skip
def _steps(
    cp: int, comm: str, mask: str, q: int, kv: int, layout: str, heads: int, kv_heads: int, left: int, right: int,
    fmt: str, a2a: int | str | None, per_rank: bool | None, packs: bool | None, ring_only: bool | None,
) -> tuple[str, ...] | None:  # fmt: skip
    if cp <= 1:
        return ()
    if per_rank and fmt != "thd":
        q, kv = q * cp, kv * cp  # steps are counted from global lengths
    three = "_".join([fmt] * 3)
    if ring_only or comm in (ABSENT, "p2p", "a2a+p2p"):
        ranks = 1 if ring_only else _a2a_ranks(cp, comm, a2a)
        if ranks is None:
            return None
        ring = max(cp // ranks, 1)
        packed = f"{fmt}_{fmt[:-2]}2hd" if packs else three
        shapes = _ring_steps(mask, max(q // ring, 1), max(kv // ring, 1))
        return tuple(_step(*shape, heads // ranks, kv_heads // ranks, -1, -1, packed) for shape in shapes)
    if comm == "a2a":
        return (_step(mask, q, kv, heads // cp, kv_heads // cp, left, right, three),)
    if "causal" in mask and not mask.endswith("bottom_right"):
        mask = f"{mask}_bottom_right"
    chunk = max(kv // (2 * cp), 1)
    lengths = sorted({chunk, kv}) if "causal" in mask else [kv]
    return tuple(_step(mask, max(q // (2 * cp), 1), length, heads, kv_heads, left, right, three) for length in lengths)


def _ring_steps(mask: str, q: int, kv: int) -> list[tuple[str, int, int]]:
    if "causal" not in mask:
        return [(mask, q, kv)]
    plain = "padding" if mask.startswith("padding") else "no_mask"
    return [(mask, q, kv), (plain, q, max(kv // 2, 1)), (plain, max(q // 2, 1), kv)]


def _step(mask: str, q: int, kv: int, heads: int, kv_heads: int, left: int, right: int, layout: str) -> str:
    return (
        f"te.mask={mask};te.seqlen_q={q};te.seqlen_kv={kv};te.heads={heads};te.kv_heads={kv_heads};"
        f"te.window_left={left};te.window_right={right};te.layout={layout}"
    )


@derived(
    "te.flash2_usable_from_2.3",
    BOOLEAN,
    "a flash-attn of 2.3 or later that this TransformerEngine accepts is installed",
    needs=("flash-attn.version", "te.flash2_accepted"),
    uses=("flash-attn.has_window",),
)
def _from_2_3(version: str, accepted: bool, has_window: bool | None) -> bool:
    return version != ABSENT and accepted and bool(has_window)


@derived(
    "te.cp_seqlens_divide",
    BOOLEAN,
    "both lengths divide by twice the context-parallel ranks",
    needs=("workload.seq_len_q", "workload.seq_len_kv", "workload.cp_size"),
)
def _cp_seqlens_divide(q: int, kv: int, cp: int) -> bool:
    return q % (2 * cp) == 0 and kv % (2 * cp) == 0
