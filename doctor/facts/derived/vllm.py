"""Derived facts of vLLM's selection: what a release makes of options, variables and modules.

Which release does what is in `rules/vllm/library.yaml` (`decisions`); here is only the arithmetic.
"""

from __future__ import annotations

from doctor.facts.derived.registry import derived, shape
from doctor.facts.kinds import BOOLEAN, INTEGER, TEXT, VERSION
from doctor.facts.vocabulary import Term, declare
from doctor.model import ABSENT

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
    ("vllm.knows_model", BOOLEAN, "this vLLM has a class of its own for the model"),
    ("vllm.model_since", VERSION, "the first vLLM release with a class for the model"),
    ("vllm.model_until", VERSION, "the last vLLM release with a class for the model"),
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


def wanted(by: str, variable: str | None, option: str | None) -> str | None:
    """What is requested: the variable wins where a release reads both; None where what counts is unknown."""
    if by == "option":
        return option
    if by == "env" or variable != ABSENT:
        return variable
    return option


@derived("vllm.request", TEXT, "the requested backend, as it was written; absent = automatic",
         needs=("vllm.request_by",),
         uses=("env.VLLM_ATTENTION_BACKEND", "workload.attention_backend_option"))  # fmt: skip
def _request(by: str, variable: str | None, option: str | None) -> str | None:
    upper = option.upper() if option not in (None, ABSENT) else option
    return wanted(by, variable, upper)


@derived("vllm.effective_request", TEXT, "the requested backend, if this vLLM knows the name",
         needs=("vllm.request", "vllm.known_name"))  # fmt: skip
def _effective_request(request: str, known: bool) -> str:
    return request if known else ABSENT


@derived("vllm.requested", TEXT, "the backend that this vLLM must use, by the user or by a hook of its own",
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
