"""Derived facts of transformers: the attention that a job requests, however it is written."""

from __future__ import annotations

import re

from doctor.facts.kinds import BOOLEAN, TEXT, VERSION
from doctor.facts.libraries.frameworks import caller_named
from doctor.facts.vocabulary import Term, declare
from doctor.model import ABSENT

from .registry import derived

for _key, _kind, _meaning in (
    ("hf.model_sdpa", BOOLEAN, "transformers lets this kind of model use SDPA"),
    ("hf.model_flash2", BOOLEAN, "transformers lets this kind of model use FlashAttention 2 (and 4)"),
    ("hf.model_flash3", BOOLEAN, "transformers lets this kind of model use FlashAttention 3"),
    ("hf.model_flex", BOOLEAN, "transformers lets this kind of model use flex attention"),
    ("hf.model_flash_kernel", TEXT, "the only flash kernel that this kind of model takes, where it does not take all"),
    ("hf.loads_hub_kernel", BOOLEAN, "transformers takes its attention kernel from the Hub, whatever the GPU is"),
    ("hf.knows_model", BOOLEAN, "this release of transformers knows the model_type"),
    ("hf.model_since", VERSION, "the first transformers release that knows the model_type"),
    ("hf.model_until", VERSION, "the last transformers release that knows the model_type"),
    ("hf.hub_code", TEXT, "what the code in the model's repository imports that transformers removed"),
    ("hf.hub_code_until", VERSION, "the last transformers release that runs the code in the model's repository"),
    ("hf.hub_code_calls", TEXT, "what the code in the model's repository calls that transformers removed"),
    ("hf.hub_code_calls_until", VERSION, "the last transformers release that the code in the model's repository fits"),
    ("hf.ships_code", BOOLEAN, "repositories of this model_type bring code of their own (auto_map)"),
    ("hf.wants_huggingface_hub", TEXT, "the huggingface-hub that this transformers release checks for at import"),
    ("hf.wants_tokenizers", TEXT, "the tokenizers that this transformers release checks for at import"),
    ("llf.wants_transformers", TEXT, "the transformers that this LLaMA-Factory release accepts"),
    ("llf.wants_peft", TEXT, "the peft that this LLaMA-Factory release accepts"),
    ("llf.wants_trl", TEXT, "the trl that this LLaMA-Factory release accepts"),
    ("axolotl.wants_transformers", TEXT, "the transformers that this axolotl release pins"),
    ("swift.wants_transformers", TEXT, "the transformers that this ms-swift release accepts"),
    ("hf.trainer_brings_kernels", BOOLEAN, "the trainer of the job requires the package `kernels` by itself"),
    ("hf.kernel_cached", BOOLEAN, "the attention kernel is in the Hub's cache on this machine"),
    ("hf.sdpa_writes_mask", BOOLEAN, "this release passes a mask tensor to SDPA even where is_causal is enough"),
    ("hf.sdpa_gqa", TEXT, "when SDPA gets enable_gqa=True: never, unmasked, unmasked_flash_dims"),
):
    declare(Term(_key, _kind, _meaning, derived=True))

#: Names that `attn_implementation` takes; everything else is a kernel of the Hub or an error.
NAMES = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
_HUB_KERNEL = r"[^/:|@\s]+/[^/:|@\s]+(@[^:|@\s]+)?(:[^/:|@\s]+)?"


@derived(
    "hf.request",
    TEXT,
    "the attention that the job requests of transformers: none, eager, sdpa, flash_attention_2 …, hub, other",
    needs=("workload.framework", "workload.attn_implementation"),
    uses=("flash-attn.version",),
)
def _request(framework: str, written: str, flash_attn: str | None) -> str | None:
    if not caller_named(framework).takes_attn_implementation:
        return ABSENT
    if written != ABSENT:
        name = written.removeprefix("paged|")
        if name in NAMES:
            return name
        return "hub" if re.fullmatch(_HUB_KERNEL, name) else "other"
    own = caller_named(framework).own_implementation
    if not own:
        return "none"
    # It sets flash_attention_2 itself where flash-attn can be imported.
    return None if flash_attn is None else "none" if flash_attn == ABSENT else own


@derived(
    "hf.hub_on_purpose",
    BOOLEAN,
    "the trainer requires `kernels`, so that its jobs take attention from the Hub without a package for it",
    uses=("hf.trainer_brings_kernels",),
)
def _on_purpose(brings: bool | None) -> bool:
    return brings is True
