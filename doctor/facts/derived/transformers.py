"""Derived facts of transformers: which attention a job asks for, whatever way it is written."""

from __future__ import annotations

import re

from doctor.facts.vocabulary import BOOLEAN, TEXT, Term, declare
from doctor.model import ABSENT

from .registry import derived

for _key, _kind, _meaning in (
    ("hf.model_sdpa", BOOLEAN, "transformers lets this kind of model use SDPA"),
    ("hf.model_flash2", BOOLEAN, "transformers lets this kind of model use FlashAttention 2 (and 4)"),
    ("hf.model_flash3", BOOLEAN, "transformers lets this kind of model use FlashAttention 3"),
    ("hf.model_flex", BOOLEAN, "transformers lets this kind of model use flex attention"),
    ("hf.model_flash_kernel", TEXT, "the one flash kernel this kind of model takes, where it takes not all of them"),
    ("hf.kernel_cached", BOOLEAN, "the attention kernel lies in the Hub's cache on this machine"),
    ("hf.sdpa_writes_mask", BOOLEAN, "this release writes a mask out for SDPA even where is_causal would do"),
    ("hf.sdpa_gqa", TEXT, "when SDPA gets enable_gqa=True: never, unmasked, unmasked_flash_dims"),
):
    declare(Term(_key, _kind, _meaning, derived=True))

#: what `attn_implementation` may say by name; everything else is a kernel of the Hub or a mistake
NAMES = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
_HUB_KERNEL = r"[^/:|@\s]+/[^/:|@\s]+(@[^:|@\s]+)?(:[^/:|@\s]+)?"


@derived(
    "hf.request",
    TEXT,
    "the attention the job asks transformers for: none, eager, sdpa, flash_attention_2 …, hub, other",
    needs=("workload.framework", "workload.attn_implementation"),
    uses=("flash-attn.version",),
)
def _request(framework: str, written: str, flash_attn: str | None) -> str | None:
    if framework not in ("transformers", "xtuner"):
        return ABSENT
    if written != ABSENT:
        name = written.removeprefix("paged|")
        if name in NAMES:
            return name
        return "hub" if re.fullmatch(_HUB_KERNEL, name) else "other"
    if framework != "xtuner":
        return "none"
    # XTuner fills in flash_attention_2 itself wherever flash-attn can be imported.
    return None if flash_attn is None else "none" if flash_attn == ABSENT else "flash_attention_2"
