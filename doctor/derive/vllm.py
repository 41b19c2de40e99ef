"""Derived facts of vLLM's selection: what a release makes of options, variables and modules before it compares backends.

Which release does what is in `rules/vllm/library.yaml` (`implies`); here is only the arithmetic. Source of the
FlashAttention version: vllm, v1/attention/backends/fa_utils.py, `get_flash_attn_version`.
"""

from __future__ import annotations

from ..model import ABSENT
from ..vocabulary import BOOLEAN, INTEGER, TEXT, Term, declare
from . import derived
from .arithmetic import shape

for _key, _kind, _meaning in (
    ("vllm.engine", TEXT, "V0 or V1: the engine that this vLLM starts"),
    ("vllm.v1_refusal", TEXT, "what keeps this vLLM from its V1 engine"),
    ("vllm.v1_refusal_kv", TEXT, "whether the KV-cache dtype keeps this vLLM from its V1 engine"),
    ("vllm.request_by", TEXT, "where this vLLM reads the wanted backend: env, both, option"),
    ("vllm.fa_request_by", TEXT, "where this vLLM reads the wanted FlashAttention version: env, both, option"),
    ("vllm.known_name", BOOLEAN, "this vLLM has a backend of the requested name"),
    ("vllm.forced", TEXT, "backend that a configuration hook of vLLM sets"),
    ("vllm.direct", TEXT, "backend that vLLM before 0.11.1 takes without a comparison; `error`: it refuses"),
    ("vllm.kv_cache_dtype_by_model", TEXT, "KV-cache dtype that the model's hook sets"),
    ("vllm.block_size_by_hook", INTEGER, "KV-cache block size that a configuration hook sets"),
    ("vllm.gemma4_version", TEXT, "FlashAttention version that Gemma 4's hook sets"),
    ("vllm.fa4_shipped", BOOLEAN, "FlashAttention 4 is part of this vLLM"),
    ("vllm.fa3_on_ampere", BOOLEAN, "this vLLM holds FlashAttention 3 for usable on SM 8.0"),
    ("vllm.fa3_becomes_4", BOOLEAN, "this vLLM takes FlashAttention 4 on Hopper for heads wider than 256"),
    ("vllm.fa4_batch_invariant", BOOLEAN, "this vLLM keeps FlashAttention 4 in batch-invariant mode"),
    ("vllm.fa4_blackwell_widths", TEXT, "heads over 128 that this vLLM gives FlashAttention 4 on Blackwell"),
    ("vllm.fa4_fp8_kv", TEXT, "where this vLLM lets FlashAttention 4 read an FP8 KV cache"),
    ("vllm.trtllm_sinks", BOOLEAN, "FlashInfer has TRTLLM kernels with attention sinks for this GPU"),
):
    declare(Term(_key, _kind, _meaning, derived=True))

_FA2 = ("_vllm_fa2_C", "vllm_flash_attn_c")
_QUANTIZED = ("fp8", "nvfp4", "turboquant_", "int4_per", "int8_per", "ultraquant_", "octave_")


def _present(missing: tuple[str, ...] | str | None, *names: str) -> bool:
    """Whether none of the compiled modules is missing; a wheel that nothing is said of is complete."""
    lacking = {item.rpartition(".")[2] for item in missing} if isinstance(missing, tuple) else set()
    return not lacking.intersection(names)


@derived("vllm.has_fa2", BOOLEAN, "the FlashAttention 2 module of vLLM can be imported",
         uses=("machine.compiled_modules_missing",))  # fmt: skip
def _has_fa2(missing: tuple[str, ...] | str | None) -> bool:
    return _present(missing, *_FA2)


@derived("vllm.has_fa3", BOOLEAN, "the FlashAttention 3 module of vLLM can be imported",
         uses=("machine.compiled_modules_missing",))  # fmt: skip
def _has_fa3(missing: tuple[str, ...] | str | None) -> bool:
    return _present(missing, "_vllm_fa3_C")


@derived("vllm.has_fa_package", BOOLEAN, "a FlashAttention module of vLLM can be imported",
         needs=("vllm.has_fa2", "vllm.has_fa3"))  # fmt: skip
def _has_fa_package(fa2: bool, fa3: bool) -> bool:
    return fa2 or fa3


@derived("vllm.has_flashmla", BOOLEAN, "the FlashMLA module of vLLM can be imported",
         uses=("machine.compiled_modules_missing",))  # fmt: skip
def _has_flashmla(missing: tuple[str, ...] | str | None) -> bool:
    return _present(missing, "_flashmla_C")


@derived("vllm.has_flashmla_extension", BOOLEAN, "both FlashMLA modules of vLLM can be imported",
         uses=("machine.compiled_modules_missing",))  # fmt: skip
def _has_flashmla_extension(missing: tuple[str, ...] | str | None) -> bool:
    return _present(missing, "_flashmla_C", "_flashmla_extension_C")


@derived("vllm.has_flashinfer", BOOLEAN, "FlashInfer is installed and can get its kernels",
         needs=("flashinfer-python.version",), uses=("flashinfer-cubin.version", "machine.nvcc"))  # fmt: skip
def _has_flashinfer(version: str, cubin: str | None, nvcc: bool | None) -> bool | None:
    if version == ABSENT:
        return False
    return True if cubin not in (None, ABSENT) or nvcc else nvcc


@derived("vllm.has_trtllm_kernels", BOOLEAN, "FlashInfer's prebuilt kernels are installed or can be fetched",
         uses=("flashinfer-cubin.version", "machine.nvidia_artifactory_reachable"))  # fmt: skip
def _has_trtllm_kernels(cubin: str | None, reachable: bool | None) -> bool | None:
    return True if cubin not in (None, ABSENT) else reachable


def _wanted(by: str, variable: str | None, option: str | None) -> str | None:
    """What is asked for: the variable wins where a release reads both; None where what counts is unknown."""
    if by == "option":
        return option
    if by == "env" or variable != ABSENT:
        return variable
    return option


@derived("vllm.request", TEXT, "the backend asked for, as it was written; absent = automatic",
         needs=("vllm.request_by",),
         uses=("env.VLLM_ATTENTION_BACKEND", "workload.attention_backend_option"))  # fmt: skip
def _request(by: str, variable: str | None, option: str | None) -> str | None:
    upper = option.upper() if option not in (None, ABSENT) else option
    return _wanted(by, variable, upper)


@derived("vllm.effective_request", TEXT, "the backend asked for, if this vLLM knows the name",
         needs=("vllm.request", "vllm.known_name"))  # fmt: skip
def _effective_request(request: str, known: bool) -> str:
    return request if known else ABSENT


@derived("vllm.requested", TEXT, "the backend that this vLLM is told to use, by the user or by a hook of its own",
         needs=("vllm.request", "vllm.forced"))  # fmt: skip
def _requested(request: str, forced: str) -> str:
    return forced if request in (ABSENT, "AUTO") else request.lower()


@derived("vllm.kv_cache_dtype", TEXT, "KV-cache dtype after the model's hook",
         needs=("vllm.kv_cache_dtype_by_model", "workload.kv_cache_dtype"))  # fmt: skip
def _kv_cache_dtype(by_model: str, given: str) -> str:
    return given if by_model == ABSENT else by_model


@derived("vllm.kv_cache_quantized", BOOLEAN, "the KV cache holds another format than the activations",
         needs=("vllm.kv_cache_dtype",))  # fmt: skip
def _quantized(dtype: str) -> bool:
    return dtype.startswith(_QUANTIZED)


@derived("vllm.kv_cache_fp8", BOOLEAN, "the name of the KV-cache dtype begins with fp8", needs=("vllm.kv_cache_dtype",))
def _fp8(dtype: str) -> bool:
    return dtype.startswith("fp8")


@derived("vllm.kv_cache_turboquant", BOOLEAN, "the KV cache is a TurboQuant format", needs=("vllm.kv_cache_dtype",))
def _turboquant(dtype: str) -> bool:
    return dtype.startswith("turboquant_")


@derived("vllm.block_size", INTEGER, "KV-cache block size after the configuration hooks",
         needs=("vllm.block_size_by_hook", "workload.block_size"))  # fmt: skip
def _block_size(by_hook: int | str, given: int | str) -> int:
    if isinstance(by_hook, int):
        return by_hook
    return given if isinstance(given, int) else 16  # 16: CacheConfig's default


def _block_fits(tokens: int) -> None:
    @derived(f"vllm.block_fits_{tokens}", BOOLEAN, f"no block size was given, or one that {tokens} divides",
             needs=("workload.block_size",))  # fmt: skip
    def _fits(given: int | str) -> bool:
        return not isinstance(given, int) or given % tokens == 0


for _tokens in (16, 32, 64, 128):
    _block_fits(_tokens)


@shape("vllm.head_size_multiple_of_8", BOOLEAN, "8 divides the head width",
       needs=("workload.head_size_given_to_selector",))  # fmt: skip
def _multiple_of_8(size: int) -> bool:
    return size % 8 == 0


@shape("vllm.index_topk_multiple_of_128", BOOLEAN, "128 divides the tokens that the indexer keeps",
       needs=("workload.index_topk",))  # fmt: skip
def _topk(topk: int) -> bool:
    return topk % 128 == 0


@shape("vllm.gathered_heads", INTEGER, "query heads times decode-context-parallel ranks",
       needs=("workload.num_heads", "workload.decode_context_parallel_size"))  # fmt: skip
def _gathered_heads(heads: int, ranks: int) -> int:
    return heads * ranks


@derived("workload.head_dim_of_widest_layer", INTEGER, "the widest head of any layer",
         needs=("workload.head_dims_of_layers",), uses=("workload.head_dim_qk",))  # fmt: skip
def _widest(dims: tuple[str, ...] | str, head_dim: int | None) -> int | None:
    return head_dim if dims == ABSENT else max(map(int, dims))


# -- FlashAttention ----------------------------------------------------------------------------------------------------

_FA_FACTS = (
    "gpu.sm", "vllm.has_fa2", "vllm.has_fa3", "vllm.fa4_shipped", "vllm.fa3_on_ampere", "vllm.fa3_becomes_4",
    "vllm.fa4_batch_invariant", "vllm.fa4_blackwell_widths", "vllm.fa_request", "env.VLLM_BATCH_INVARIANT",
)  # fmt: skip
_FA_JOB = (
    "workload.head_size_given_to_selector", "workload.bias", "workload.sinks", "workload.softcap",
    "vllm.kv_cache_quantized", "workload.block_size", "workload.multimodal_prefix_bidirectional",
    "workload.decode_context_parallel_size",
)  # fmt: skip


@derived("vllm.fa_request", TEXT, "the FlashAttention version asked for; absent = automatic",
         needs=("vllm.fa_request_by", "vllm.gemma4_version"),
         uses=("env.VLLM_FLASH_ATTN_VERSION", "workload.flash_attn_version_option"))  # fmt: skip
def _fa_request(by: str, hook: str, variable: str | None, option: int | str | None) -> str | None:
    wanted = _wanted(by, variable, None if option is None else str(option))
    return hook if wanted == ABSENT else wanted


def _runs(version: str, sm: str, has2: bool, has3: bool, shipped4: bool, ampere3: bool) -> bool:
    """`is_fa_version_supported`."""
    major = int(sm.partition(".")[0])
    if version == "2":
        return has2 and major >= 8
    if version == "3":
        return has3 and (major == 9 or (ampere3 and major == 8 and sm not in ("8.6", "8.9")))
    return version == "4" and shipped4 and major in (9, 10, 11)


def _version(
    sm: str, has2: bool, has3: bool, shipped4: bool, ampere3: bool, becomes4: bool, invariant4: bool, widths: str,
    request: str, invariant: str, head: int | None, alibi: bool, fallback: bool,
) -> str:  # fmt: skip
    """`get_flash_attn_version`: 2, 3, 4 or none. `head` None: without regard to the layer."""
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


@derived("vllm.fa_version", TEXT, "the FlashAttention version on this GPU whatever the layer: 2, 3, 4 or none",
         needs=_FA_FACTS)  # fmt: skip
def _fa_version(*facts: object) -> str:
    return _version(*facts, None, False, False)  # type: ignore[arg-type]


@derived("vllm.fa_version_for_selector", TEXT, "the FlashAttention version that the selector expects for the layer",
         needs=(*_FA_FACTS, *_FA_JOB))  # fmt: skip
def _fa_selector(*facts: object) -> str:
    head, _, sinks, softcap, quantized, block, prefix, ranks = facts[len(_FA_FACTS) :]
    page = isinstance(block, int) and block % 128 != 0
    fallback = bool(sinks or softcap or quantized or page or prefix or ranks != 1)
    return _version(*facts[: len(_FA_FACTS)], head, False, fallback)  # type: ignore[arg-type]


@derived("vllm.fa_version_of_layer", TEXT, "the FlashAttention version that the layer takes",
         needs=(*_FA_FACTS, *_FA_JOB))  # fmt: skip
def _fa_layer(*facts: object) -> str:
    head, bias, sinks, softcap, quantized, _, prefix, ranks = facts[len(_FA_FACTS) :]
    fallback = bool(sinks or softcap or quantized or prefix or ranks != 1)
    return _version(*facts[: len(_FA_FACTS)], head, bias == "alibi", fallback)  # type: ignore[arg-type]


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
def _fa_of_page(*facts: object) -> str:
    head, _, _, softcap, quantized, _, prefix, ranks = facts[len(_FA_FACTS) :]
    fallback = bool(softcap or quantized or prefix or ranks != 1)
    return _version(*facts[: len(_FA_FACTS)], head, False, fallback)  # type: ignore[arg-type]


@derived("vllm.fa_version_for_width", TEXT, "the FlashAttention version for the head width alone",
         needs=(*_FA_FACTS, "workload.head_size_given_to_selector"))  # fmt: skip
def _fa_for_width(*facts: object) -> str:
    return _version(*facts[:-1], facts[-1], False, True)  # type: ignore[arg-type]


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
