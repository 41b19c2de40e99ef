"""Derived facts of sequence lengths: what a window cuts off."""

from __future__ import annotations

from doctor.facts.derived.registry import derived
from doctor.facts.kinds import BOOLEAN
from doctor.model import ABSENT


@derived(
    "workload.window_cuts_sequence",
    BOOLEAN,
    "the sequence is longer than the sliding window, so the window masks keys out",
    needs=("workload.window", "workload.seq_len_kv"),
)
def _window_cuts(window: tuple[int, int] | str, seq_len_kv: int) -> bool:
    return window != ABSENT and 0 <= int(window[0]) < seq_len_kv - 1


@derived(
    "workload.window_cuts_ring",
    BOOLEAN,
    "the sliding window masks keys of a sequence that ranks share; of unknown length it counts as longer",
    needs=("workload.window",),
    uses=("workload.seq_len_kv",),
)
def _window_cuts_ring(window: tuple[int, int] | str, seq_len_kv: int | None) -> bool:
    if window == ABSENT or int(window[0]) < 0:
        return False
    return seq_len_kv is None or _window_cuts(window, seq_len_kv)
