"""Derived facts of flash-attn: which generation a call means where only one is known, and what a call can pass."""

from __future__ import annotations

from doctor.facts.derived.registry import derived
from doctor.facts.kinds import BOOLEAN, TEXT
from doctor.model import ABSENT


def _installed(*versions: str | None) -> bool:
    return any(version not in (None, ABSENT) for version in versions)


@derived(
    "fa.only_generation",
    TEXT,
    "the generation of flash-attn, if exactly one is known to be installed: 2, 3 or 4",
    uses=(
        "flash-attn.version",
        "flash-attn-3.version",
        "flashattn-hopper.version",
        "fa3-fwd.version",
        "flash-attn-4.version",
    ),
)
def _only_generation(
    second: str | None, third: str | None, hopper: str | None, forward: str | None, fourth: str | None
) -> str:
    found = {"2": _installed(second), "3": _installed(third, hopper, forward), "4": _installed(fourth)}
    names = [generation for generation, there in found.items() if there]
    return names[0] if len(names) == 1 else ABSENT


@derived(
    "fa.mask_is_a_tensor",
    BOOLEAN,
    "the job has an arbitrary mask; false where no mask is stated, since flash-attn has no argument for one",
    uses=("workload.mask",),
)
def _mask_tensor(mask: str | None) -> bool:
    return mask == "arbitrary"


@derived(
    "workload.more_queries_than_keys",
    BOOLEAN,
    "seq_len_q is greater than seq_len_kv",
    needs=("workload.seq_len_q", "workload.seq_len_kv"),
)
def _more_queries(queries: int, keys: int) -> bool:
    return queries > keys
