"""Derived facts of the FlashAttention version that vLLM takes: 2, 3, 4 or none.

Source: vllm, v1/attention/backends/fa_utils.py, `get_flash_attn_version` and `flash_attn_supports_kv_cache_dtype`, and
vllm_flash_attn/flash_attn_interface.py. What differs by release is in `rules/vllm/library.yaml` (`decisions`).
"""

from __future__ import annotations

from typing import Any

from doctor.facts.derived.registry import derived
from doctor.facts.derived.vllm import wanted
from doctor.facts.kinds import BOOLEAN, INTEGER, TEXT
from doctor.facts.vocabulary import Term, declare
from doctor.model import ABSENT

for _key, _kind, _meaning in (
    ("vllm.fa4_shipped", BOOLEAN, "FlashAttention 4 is part of this vLLM"),
    ("vllm.fa3_on_ampere", BOOLEAN, "this vLLM holds FlashAttention 3 for usable on SM 8.0"),
    ("vllm.fa3_becomes_4", BOOLEAN, "this vLLM takes FlashAttention 4 on Hopper for heads wider than 256"),
    ("vllm.fa4_batch_invariant", BOOLEAN, "this vLLM keeps FlashAttention 4 in batch-invariant mode"),
    ("vllm.fa4_blackwell_widths", TEXT, "heads over 128 that this vLLM gives FlashAttention 4 on Blackwell"),
    ("vllm.fa4_fp8_kv", TEXT, "where this vLLM lets FlashAttention 4 read an FP8 KV cache"),
):
    declare(Term(_key, _kind, _meaning, derived=True))

_FA_FACTS = (
    "gpu.sm", "vllm.has_fa2", "vllm.has_fa3", "vllm.fa4_shipped", "vllm.fa3_on_ampere", "vllm.fa3_becomes_4",
    "vllm.fa4_batch_invariant", "vllm.fa4_blackwell_widths", "vllm.fa_request", "env.VLLM_BATCH_INVARIANT",
)  # fmt: skip
_FA_JOB = (
    "workload.head_size_given_to_selector", "workload.bias", "workload.sinks", "workload.softcap",
    "vllm.kv_cache_quantized", "workload.block_size", "workload.multimodal_prefix_bidirectional",
    "workload.decode_context_parallel_size",
)  # fmt: skip


@derived("vllm.fa_request", TEXT, "the requested FlashAttention version; absent = automatic",
         needs=("vllm.fa_request_by", "vllm.gemma4_version"),
         uses=("env.VLLM_FLASH_ATTN_VERSION", "workload.flash_attn_version_option"))  # fmt: skip
def _fa_request(by: str, hook: str, variable: str | None, option: int | str | None) -> str | None:
    requested = wanted(by, variable, None if option is None else str(option))
    return hook if requested == ABSENT else requested


def _runs(version: str, sm: str, has2: bool, has3: bool, shipped4: bool, ampere3: bool) -> bool:
    """`is_fa_version_supported`."""
    major = int(sm.partition(".")[0])
    if version == "2":
        return has2 and major >= 8
    if version == "3":
        return has3 and (major == 9 or (ampere3 and major == 8 and sm not in ("8.6", "8.9")))
    return version == "4" and shipped4 and major in (9, 10, 11)


def _version(facts: tuple[Any, ...], head: int | None, alibi: bool, fallback: bool) -> str:
    """`get_flash_attn_version`: 2, 3, 4 or none. `head` None: without regard to the layer."""
    sm, has2, has3, shipped4, ampere3, becomes4, invariant4, widths, request, invariant = facts
    major = int(sm.partition(".")[0])

    def runs(version: str) -> bool:
        return _runs(version, sm, has2, has3, shipped4, ampere3)

    version = "3" if major == 9 and runs("3") else "4" if major == 10 and runs("4") else "2"
    if request != ABSENT:
        version = request
    if version == "3" and (major >= 10 if shipped4 else major == 10):
        version = "4" if runs("4") else "2"
    if alibi and version in ("3", "4"):
        version = "2"
    if becomes4 and version == "3" and major == 9 and runs("4") and head is not None and head > 256:
        version = "4"
    if version == "4" and not invariant4 and invariant == "1":
        version = "2"
    if version == "4" and major >= 10 and head is not None and head > 128:
        wide = {"none": (), "192": (192,), "256": (256,), "hd256": () if fallback else (256,)}[widths]
        if head not in wide:
            version = "2"
    return version if runs(version) else "none"


@derived("vllm.fa4_runs", BOOLEAN, "FlashAttention 4 of this vLLM runs on this GPU",
         needs=("gpu.sm", "vllm.fa4_shipped"))  # fmt: skip
def _fa4_runs(sm: str, shipped: bool) -> bool:
    return _runs("4", sm, False, False, shipped, False)


@derived("vllm.fa_version", TEXT, "the FlashAttention version on this GPU for every layer: 2, 3, 4 or none",
         needs=_FA_FACTS)  # fmt: skip
def _fa_version(*facts: Any) -> str:
    return _version(facts, None, False, False)


@derived("vllm.fa_version_for_selector", TEXT, "the FlashAttention version that the selector expects for the layer",
         needs=(*_FA_FACTS, *_FA_JOB))  # fmt: skip
def _fa_selector(*facts: Any) -> str:
    head, _, sinks, softcap, quantized, block, prefix, ranks = facts[len(_FA_FACTS) :]
    page = isinstance(block, int) and block % 128 != 0
    fallback = bool(sinks or softcap or quantized or page or prefix or ranks != 1)
    return _version(facts[: len(_FA_FACTS)], head, False, fallback)


@derived("vllm.fa_version_of_layer", TEXT, "the FlashAttention version that the layer takes",
         needs=(*_FA_FACTS, *_FA_JOB))  # fmt: skip
def _fa_layer(*facts: Any) -> str:
    head, bias, sinks, softcap, quantized, _, prefix, ranks = facts[len(_FA_FACTS) :]
    fallback = bool(sinks or softcap or quantized or prefix or ranks != 1)
    return _version(facts[: len(_FA_FACTS)], head, bias == "alibi", fallback)


@derived("vllm.fa_page", INTEGER, "tokens that a block must divide by for FlashAttention",
         needs=("vllm.fa_version_of_page", "gpu.sm", "workload.head_size_given_to_selector", "vllm.fa4_fp8_kv",
                "vllm.kv_cache_dtype", "vllm.fa4_blackwell_widths", "vllm.fa_version_for_width"))  # fmt: skip
def _fa_page(paged: str, sm: str, head: int, fp8: str, dtype: str, widths: str, wide: str) -> int:
    major = int(sm.partition(".")[0])
    if fp8 == "blackwell_or_512" and major == 9 and dtype in ("fp8", "fp8_e4m3") and head == 512 and wide == "4":
        return 64
    return 128 if widths == "hd256" and major in (10, 11) and head == 256 and paged == "4" else 16


@derived("vllm.fa_version_of_page", TEXT, "the FlashAttention version that decides on the page size",
         needs=(*_FA_FACTS, *_FA_JOB))  # fmt: skip
def _fa_of_page(*facts: Any) -> str:
    head, _, _, softcap, quantized, _, prefix, ranks = facts[len(_FA_FACTS) :]
    fallback = bool(softcap or quantized or prefix or ranks != 1)
    return _version(facts[: len(_FA_FACTS)], head, False, fallback)


@derived("vllm.fa_version_for_width", TEXT, "the FlashAttention version for the head width alone",
         needs=(*_FA_FACTS, "workload.head_size_given_to_selector"))  # fmt: skip
def _fa_for_width(*facts: Any) -> str:
    return _version(facts[:-1], facts[-1], False, True)


@derived("vllm.block_fits_fa_page", BOOLEAN, "no block size was given, or one that FlashAttention's page divides",
         needs=("workload.block_size", "vllm.fa_page"))  # fmt: skip
def _block_fits_page(given: int | str, page: int) -> bool:
    return not isinstance(given, int) or given % page == 0


def _serves_fp8(version: str, sm: str, head: int | None, four: str) -> bool:
    """`flash_attn_supports_kv_cache_dtype` for fp8 and fp8_e4m3."""
    major = int(sm.partition(".")[0])
    if major == 9:
        return version == "3" or (version == "4" and four == "blackwell_or_512" and head in (None, 512))
    return major == 10 and version == "4" and four != "nowhere"


@derived("vllm.flash_attn_reads_fp8", BOOLEAN, "FlashAttention reads an FP8 KV cache, as the selector sees it",
         needs=("vllm.fa_version", "vllm.fa_version_for_selector", "gpu.sm", "workload.head_size_given_to_selector",
                "vllm.fa4_fp8_kv"))  # fmt: skip
def _selector_fp8(plain: str, selector: str, sm: str, head: int, four: str) -> bool:
    if four == "nowhere":
        return _serves_fp8(plain, sm, None, four)
    return _serves_fp8(plain, sm, None, four) and _serves_fp8(selector, sm, head, four)


@derived("vllm.flash_attn_layer_reads_fp8", BOOLEAN, "FlashAttention reads an FP8 KV cache, as the layer sees it",
         needs=("vllm.fa_version", "vllm.fa_version_of_layer", "gpu.sm", "workload.head_size_given_to_selector",
                "vllm.fa4_fp8_kv"))  # fmt: skip
def _layer_fp8(plain: str, layer: str, sm: str, head: int, four: str) -> bool:
    if four == "nowhere":
        return _serves_fp8(plain, sm, None, four)
    return _serves_fp8(layer, sm, head, four)
