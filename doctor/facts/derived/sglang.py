"""Derived facts of SGLang: what a release's command line refuses, and the facts that its decision lists give."""

from __future__ import annotations

from doctor.facts.derived.registry import derived
from doctor.facts.kinds import BOOLEAN, INTEGER, LIST, TEXT, VERSION
from doctor.facts.vocabulary import Term, declare
from doctor.model import ABSENT

for _key, _kind, _meaning in (
    ("sglang.knows_model", BOOLEAN, "this SGLang has a class of its own for the model"),
    ("sglang.model_since", VERSION, "the first SGLang release with a class for the model"),
    ("sglang.model_until", VERSION, "the last SGLang release with a class for the model"),
    ("sglang.options", LIST, "options of the release's command line that not every release has"),
    ("sglang.attention_backend_choices", LIST, "attention backends that the release's command line takes"),
    ("sglang.split_backend_choices", LIST, "backends that the options for prefill and decode take"),
    ("sglang.kv_cache_dtype_choices", LIST, "KV-cache dtypes that the release's command line takes"),
    ("sglang.speculative_algorithms", LIST, "algorithms of speculative decoding that the command line takes"),
    ("sglang.flashinfer", BOOLEAN, "the release takes FlashInfer for installed"),
    ("sglang.latent", BOOLEAN, "the release serves the model with latent attention (MLA)"),
    ("sglang.sparse", BOOLEAN, "the release serves the model with sparse latent attention"),
    ("sglang.hopper", BOOLEAN, "SM 9.x with CUDA 12.3 or later"),
    ("sglang.sm100", BOOLEAN, "SM 10.x with CUDA 12.8 or later"),
    ("sglang.sm120", BOOLEAN, "SM 12.x with CUDA 12.8 or later"),
    ("sglang.one_branch", BOOLEAN, "no speculation, or one branch a step with pages of one token"),
    ("sglang.fa3_architecture", BOOLEAN, "the release prefers FlashAttention 3 for this architecture"),
    ("sglang.model_default", TEXT, "backend that the release sets for this model family; absent = none"),
    ("sglang.early", TEXT, "backend by option or model family, before the general default; absent = none"),
    ("sglang.default", TEXT, "backend that the release sets where nothing else does"),
    ("sglang.chosen", TEXT, "backend of both phases, before its KV-cache dtype is checked"),
    ("sglang.paired_prefill", TEXT, "prefill backend that the check of hybrid linear attention looks at"),
    ("sglang.paired_decode", TEXT, "decode backend that the check of hybrid linear attention looks at"),
    ("sglang.early_prefill", TEXT, "prefill backend by option or model family; absent = none"),
    ("sglang.early_decode", TEXT, "decode backend by option or model family; absent = none"),
    ("sglang.explicit_prefill", TEXT, "prefill backend as an option for it or for both phases gives it"),
    ("sglang.chosen_by_option", TEXT, "backend of both phases by option or model family; absent = the default"),
    ("sglang.deterministic_checked", TEXT, "backend that the check of deterministic inference looks at"),
    ("sglang.nvfp4_prefill", TEXT, "backend of the prefill phase that an NVFP4 KV cache demands; absent = none"),
    ("sglang.base", TEXT, "backend of both phases, before the options for one phase"),
    ("sglang.prefill", TEXT, "backend of the prefill phase"),
    ("sglang.decode", TEXT, "backend of the decode phase"),
    ("sglang.page_size", INTEGER, "tokens of a KV-cache page after the backends' demands"),
    ("sglang.kv_cache_dtype", TEXT, "KV-cache dtype after the model's defaults"),
    ("sglang.window_of_model", BOOLEAN, "the release's model class passes a sliding window to the backend"),
):
    declare(Term(_key, _kind, _meaning, derived=True))


@derived(
    "sglang.options_agree",
    BOOLEAN,
    "the options for prefill and decode name the same backend",
    needs=("workload.prefill_attention_backend_option", "workload.decode_attention_backend_option"),
)
def _options_agree(prefill: str, decode: str) -> bool:
    return prefill == decode != ABSENT


@derived(
    "sglang.phases_agree",
    BOOLEAN,
    "prefill and decode run on the same backend",
    needs=("sglang.prefill", "sglang.decode"),
)
def _phases_agree(prefill: str, decode: str) -> bool:
    return prefill == decode


@derived(
    "sglang.no_backend_option",
    BOOLEAN,
    "no option names an attention backend",
    needs=(
        "workload.attention_backend_option",
        "workload.prefill_attention_backend_option",
        "workload.decode_attention_backend_option",
    ),
)
def _no_backend_option(*options: str) -> bool:
    return all(option == ABSENT for option in options)


@derived(
    "sglang.unknown_option",
    TEXT,
    "first option that the release's command line does not know; absent = none",
    needs=("sglang.options",),
    uses=(
        "workload.page_size",
        "workload.prefill_attention_backend_option",
        "workload.decode_attention_backend_option",
        "workload.speculative_algorithm",
        "workload.deterministic_inference",
        "workload.disable_mla",
        "workload.hierarchical_cache",
        "workload.enable_flashinfer_mla",
        "workload.enable_flashmla",
    ),
)
def _unknown_option(options: tuple[str, ...], *values: object) -> str:
    for name, value in zip(_OPTION_NAMES, values, strict=True):
        if value not in (None, ABSENT, False) and name not in options:
            return f"--{name}"
    return ABSENT


_OPTION_NAMES = (
    "page-size", "prefill-attention-backend", "decode-attention-backend", "speculative-algorithm",
    "enable-deterministic-inference", "disable-mla", "enable-hierarchical-cache", "enable-flashinfer-mla",
    "enable-flashmla",
)  # fmt: skip


@derived(
    "sglang.unknown_choice",
    TEXT,
    "first option with a value that the release's command line does not take; absent = none",
    needs=(
        "sglang.attention_backend_choices",
        "sglang.split_backend_choices",
        "sglang.kv_cache_dtype_choices",
        "sglang.speculative_algorithms",
    ),
    uses=(
        "workload.attention_backend_option",
        "workload.prefill_attention_backend_option",
        "workload.decode_attention_backend_option",
        "workload.kv_cache_dtype",
        "workload.speculative_algorithm",
    ),
)
def _unknown_choice(
    backends: tuple[str, ...],
    split: tuple[str, ...],
    dtypes: tuple[str, ...],
    algorithms: tuple[str, ...],
    base: str | None,
    prefill: str | None,
    decode: str | None,
    dtype: str | None,
    algorithm: str | None,
) -> str:
    for name, value, choices in (
        ("attention-backend", base, backends),
        ("prefill-attention-backend", prefill, split),
        ("decode-attention-backend", decode, split),
        ("kv-cache-dtype", dtype, dtypes),
        ("speculative-algorithm", algorithm, algorithms),
    ):
        if value not in (None, ABSENT) and value not in choices and "any" not in choices:
            return f"--{name} {value}"
    return ABSENT
