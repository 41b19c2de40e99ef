"""The words of serving workloads (vLLM, SGLang) and of the machine a server runs on, as rows of the vocabulary.

A row reads key, kind, meaning, allowed values, default. A default of `absent` means that a null says "not given".
"""

from __future__ import annotations

from typing import Any

from doctor.model import ABSENT

from .kinds import BOOLEAN, INTEGER, LIST, TEXT

ATTENTION_TYPES = ("decoder", "encoder", "encoder_only", "encoder_decoder")

SERVING_ROWS: tuple[tuple[Any, ...], ...] = (
    ("machine.nvcc", BOOLEAN, "nvcc and ninja are on PATH, so that FlashInfer can compile its kernels"),
    ("machine.nvidia_artifactory_reachable", BOOLEAN, "NVIDIA's server of prebuilt FlashInfer kernels answers"),
    ("machine.compiled_modules_missing", LIST, "compiled modules of the serving library that cannot be imported"),
    ("workload.model", TEXT, "name of the model, for the reader only", (), ABSENT),
    ("workload.kv_cache_dtype", TEXT, "dtype of the KV cache: auto, fp8, fp8_e4m3, fp8_e5m2, bfloat16 …", (), "auto"),
    ("workload.block_size", INTEGER, "tokens of a KV-cache block, if the user gave it", (), ABSENT),
    ("workload.sliding_window", INTEGER, "sliding window in tokens, as the model config has it", (), ABSENT),
    ("workload.mla", BOOLEAN, "multi-head latent attention", (), False),
    ("workload.mla_sparse", BOOLEAN, "latent attention with a top-k indexer (DeepSeek V3.2)", (), False),
    ("workload.sinks", BOOLEAN, "learned attention sinks (gpt-oss)"),
    ("workload.attention_type", TEXT, "what a serving layer attends to", ATTENTION_TYPES, "decoder"),
    ("workload.multimodal_prefix_bidirectional", BOOLEAN,
     "image tokens of the prompt attend to each other in both directions (Gemma 3)", (), False),
    ("workload.non_causal", BOOLEAN, "decoder attention without a causal mask", (), False),
    ("workload.decode_context_parallel_size", INTEGER, "ranks that share the KV cache of a decode step", (), 1),
    ("workload.attention_backend_option", TEXT, "attention backend as given on the command line", (), ABSENT),
    ("workload.flash_attn_version_option", INTEGER, "FlashAttention version as given by option", (), ABSENT),
    ("workload.kv_lora_rank", INTEGER, "width of the compressed key/value vector of latent attention", (), ABSENT),
    ("workload.qk_nope_head_dim", INTEGER, "width of a query/key head without its rotary part", (), ABSENT),
    ("workload.qk_rope_head_dim", INTEGER, "width of the rotary part of a query/key head", (), ABSENT),
    ("workload.index_topk", INTEGER, "tokens that the sparse indexer keeps", (), ABSENT),
    ("workload.head_dims_of_layers", LIST, "head widths of the layers, where they differ (Gemma 4)", (), ABSENT),
    ("workload.architecture", TEXT, "first entry of `architectures` in the model config", (), ABSENT),
    ("workload.hybrid_linear_attention", BOOLEAN, "most layers use linear attention (Qwen3-Next)", (), False),
    ("workload.dual_chunk", BOOLEAN, "the model config has dual chunk attention", (), False),
    ("workload.page_size", INTEGER, "tokens of a KV-cache page, if the user gave it", (), ABSENT),
    ("workload.prefill_attention_backend_option", TEXT, "prefill attention backend by option", (), ABSENT),
    ("workload.decode_attention_backend_option", TEXT, "decode attention backend by option", (), ABSENT),
    ("workload.speculative_algorithm", TEXT, "speculative decoding: EAGLE, EAGLE3, NEXTN …", (), ABSENT),
    ("workload.speculative_num_steps", INTEGER, "draft steps, if the user gave them", (), ABSENT),
    ("workload.speculative_eagle_topk", INTEGER, "branches of a draft step, if the user gave them", (), ABSENT),
    ("workload.deterministic_inference", BOOLEAN, "batch-invariant kernels are required", (), False),
    ("workload.hierarchical_cache", BOOLEAN, "the KV cache spills to host memory (HiCache)", (), False),
    ("workload.disable_radix_cache", BOOLEAN, "prefix caching is off", (), False),
    ("workload.disable_mla", BOOLEAN, "latent attention is computed as ordinary attention", (), False),
    ("workload.enable_flashinfer_mla", BOOLEAN, "SGLang before 0.4.8: FlashInfer for latent attention", (), False),
    ("workload.enable_flashmla", BOOLEAN, "SGLang before 0.4.8: FlashMLA for latent attention", (), False),
    ("workload.prefix_caching", BOOLEAN, "the KV cache of shared prefixes is reused, as the user said", (), ABSENT),
    ("workload.chunked_prefill", BOOLEAN, "long prompts are computed in chunks, as the user said", (), ABSENT),
    ("workload.enforce_eager", BOOLEAN, "the server captures no CUDA graphs", (), False),
    ("workload.tensor_parallel_size", INTEGER, "ranks that share the heads of a layer", (), 1),
    ("workload.quantization", TEXT, "format of quantized weights: awq, gptq, fp8, bitsandbytes …", (), ABSENT),
    ("workload.head_size_given_to_selector", INTEGER,
     "head width as the server's selector gets it; latent attention: compressed and rotary width"),
)  # fmt: skip
