"""Derived facts: one module per subject; importing the package registers every derivation."""

from . import (
    context_parallel,
    environment,
    flex_attention,
    install,
    lockstep,
    masks,
    sequence,
    serving,
    sglang,
    shapes,
    torch_sdpa,
    transformer_engine,
    transformer_engine_bias,
    transformers,
    vllm,
    vllm_flash_attn,
)

__all__ = [
    "context_parallel",
    "environment",
    "flex_attention",
    "install",
    "lockstep",
    "masks",
    "sequence",
    "serving",
    "sglang",
    "shapes",
    "torch_sdpa",
    "transformer_engine",
    "transformer_engine_bias",
    "transformers",
    "vllm",
    "vllm_flash_attn",
]
