"""Which words of a workload reach a kernel, so that a run is of the job that was described.

Every word is CARRIED by some programs, IRRELEVANT to a kernel run, or NOT_CARRIED; a test compares the three with the
vocabulary. A run that lacks a word which bears on it is inconclusive, and its reason names the word. A program that
carries a word may decline some of its values; its reason then names the word itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from doctor.facts.vocabulary import TERMS
from doctor.model import ABSENT

SDPA, TE, FLASH = "sdpa", "te_attention", "flash_attention"
VIEWS, CUDNN, RANKS = "strided_qkv", "cudnn_sdpa", "context_parallel"
#: The programs that run the attention of a job.
PROGRAMS = (SDPA, TE, FLASH, VIEWS, CUDNN, RANKS)

#: Words that a program makes smaller: a run of a smaller job is judged for the smaller job.
SIZES = ("batch_size", "num_heads", "num_kv_heads", "seq_len_q", "seq_len_kv", "cp_size")


class Carriers(NamedTuple):
    """The programs that pass a word on, and those whose library has no such argument."""

    programs: tuple[str, ...] = PROGRAMS
    without: tuple[str, ...] = ()


CARRIED: Mapping[str, Carriers] = {
    **dict.fromkeys(
        (
            "dtype", "head_dim_qk", "head_dim_v", "num_heads", "num_kv_heads", "batch_size", "seq_len_q", "seq_len_kv",
            "mask", "training", "qkv_layout", "qkv_interleaved", "bottom_right_diagonal", "fully_masked_rows",
        ),
        Carriers(),
    ),
    "window": Carriers((SDPA, TE, FLASH, CUDNN, RANKS)),
    "qkv_frozen": Carriers((SDPA, FLASH, VIEWS, CUDNN)),
    "dropout": Carriers((SDPA, TE, FLASH)),
    "softcap": Carriers((TE, FLASH)),
    "deterministic": Carriers((SDPA, TE, FLASH, RANKS)),
    "sdpa_backend": Carriers((SDPA, VIEWS, RANKS), without=(TE, FLASH, CUDNN)),
    "enable_gqa": Carriers((SDPA, VIEWS, RANKS), without=(TE, FLASH, CUDNN)),
    "mask_dtype": Carriers((SDPA,), without=(FLASH, VIEWS, CUDNN, RANKS)),
    "cp_size": Carriers((TE, RANKS)),
    "cp_comm_type": Carriers((TE,)),
    "cp_size_a2a": Carriers((RANKS,), without=(TE,)),
    **dict.fromkeys(
        (
            "bias", "bias_shape", "bias_requires_grad", "alibi_slopes", "softmax_type", "return_max_logit",
            "num_splits", "cuda_graph", "fp8", "fp8_recipe", "fp8_dpa", "fp8_mha", "pad_between_seqs",
        ),
        Carriers((TE,)),
    ),
}  # fmt: skip

#: Reason → words that change nothing about a kernel run.
IRRELEVANT: Mapping[str, tuple[str, ...]] = {
    "it only names the model; other words have its shape": ("model", "model_type", "architecture"),
    "it decides which program runs": ("given", "framework", "attn_implementation", "diffusers_backend"),
    "it says where a length comes from": ("seq_len_assumed",),
    "it is about what is around the attention call": (
        "rope_parameters", "finetuning", "trainer", "training_method", "gradient_accumulation_steps", "liger_kernel",
        "cross_entropy_fusion", "quantization", "optimizer_offload", "deepspeed_optimizer",
        "zero_quantized", "pipeline_parallel_size", "expert_parallel_size", "sharding", "moe_grouped_gemm",
    ),
    "the backward pass repeats the same call": ("gradient_checkpointing", "fsdp_activation_checkpointing"),
    "it is about another attention of the model, which is a workload of its own": (
        "vision_attn_implementation", "text_attn_implementation", "other_attention", "layer_types",
        "head_dims_of_layers", "hybrid_linear_attention",
    ),
    "a training job expands the compressed vectors; the widths of its heads are carried": (
        "mla", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "head_size_given_to_selector",
    ),
    "the window that follows from it is carried": ("sliding_window",),
    "it refines another word, which counts itself": (
        "torch_compile_mode", "dynamic_shapes", "nested_layout", "nested_holes", "packing_strategy", "index_topk",
    ),
}  # fmt: skip

#: Reason → words that bear on a run and that no program takes.
NOT_CARRIED: Mapping[str, tuple[str, ...]] = {
    "no program makes tensors with such addresses or strides": (
        "qkv_transposed", "qkv_unaligned", "kv_storage_offset", "singleton_strides",
    ),
    "no program makes this call": (
        "nested_tensors", "varlen_attn", "mha_fast_path", "need_weights", "higher_order_gradients",
        "flash_attention_impl", "kernel_options", "torch_compile", "remote_code",
    ),
    "no program packs or pads samples so": (
        "packing", "padding_free", "use_varlen_attn", "pack_to_max_length", "zero_length_sequences", "left_padding",
        "reset_attention_mask", "dataloader_mask",
    ),
    "no program has a cache of keys and values": ("inference_kv_cache", "cache_implementation"),
    "no program computes this kind of attention": (
        "sinks", "mla_sparse", "dual_chunk", "attention_type", "multimodal_prefix_bidirectional", "non_causal",
    ),
    "no reader knows what these options do": ("not_understood",),
    "no program divides the sequence in this way": ("sequence_parallel",),
    "its ranks do not divide the heads": ("tensor_parallel_size",),
    "no program runs this attention of Megatron": ("attention_backend",),
    "no program runs the attention of a server": (
        "kv_cache_dtype", "block_size", "page_size", "decode_context_parallel_size", "attention_backend_option",
        "flash_attn_version_option", "prefill_attention_backend_option", "decode_attention_backend_option",
        "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "deterministic_inference",
        "hierarchical_cache", "disable_radix_cache", "disable_mla", "enable_flashinfer_mla", "enable_flashmla",
        "prefix_caching", "chunked_prefill", "enforce_eager",
    ),
}  # fmt: skip

#: Words that mean something only where another one is above its default.
_ONLY_WITH = {"cp_comm_type": "cp_size", "cp_size_a2a": "cp_size"}
_WHY = {word: reason for table in (IRRELEVANT, NOT_CARRIED) for reason, words in table.items() for word in words}
_IRRELEVANT = frozenset(word for words in IRRELEVANT.values() for word in words)
_FULL_WINDOW = [-1, -1]


def dropped(kernel: str, request: Mapping[str, Any], decided: Collection[str] = ()) -> dict[str, str]:
    """Return each word of the job in this request that does not reach the kernel, with the reason.

    `decided`: words that the rule decides itself, by its request or because its claim holds whatever they say.
    """
    found = {}
    for word, value in request.items():
        if f"workload.{word}" not in TERMS or word in decided or word in _IRRELEVANT or not _bears(word, request):
            continue
        carriers = CARRIED.get(word, Carriers(()))
        if kernel not in (*carriers.programs, *carriers.without):
            found[word] = _WHY.get(word, f"`{kernel}` does not take {word} = {_shown(value)}")
    return found


def unknown_words(kernel: str, keys: Iterable[str], decided: Collection[str] = ()) -> dict[str, str]:
    """Return those of these workload keys whose values are not known, and that bear on a run of this kernel."""
    words = [key.removeprefix("workload.") for key in keys]
    return {
        word: "its value is not known"
        for word in words
        if word not in _IRRELEVANT and word not in decided and kernel not in CARRIED.get(word, Carriers(())).without
    }


def changed_words(shrunk: Any, decided: Collection[str] = ()) -> dict[str, str]:
    """Return the words that a program replaced by another value, and that are no sizes."""
    if not isinstance(shrunk, Mapping):
        return {}
    return {
        str(word): f"it was run with {_shown(item[1])} for {_shown(item[0])}"
        for word, item in shrunk.items()
        if word not in SIZES and word not in decided and isinstance(item, (list, tuple)) and len(item) == 2
    }


def sentence(words: Mapping[str, str]) -> str:
    """Return why a run is not of the job, naming each word: `workload.softcap` did not reach the kernel (…)."""
    return "; ".join(f"`workload.{word}` did not reach the kernel: {reason}" for word, reason in words.items())


def _bears(word: str, request: Mapping[str, Any]) -> bool:
    """Return whether the value of a word can change a run: it is not what a job without the word has."""
    value, other = request[word], _ONLY_WITH.get(word)
    if other is not None and not _bears(other, {other: 1, **request}):
        return False
    if value in (None, ABSENT) or value == TERMS[f"workload.{word}"].default:
        return False
    if word == "window":
        return list(value) != _FULL_WINDOW
    return word in CARRIED or value is not False


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
