"""The distributions of the attention stack: who calls, and who is called."""

from __future__ import annotations

from collections.abc import Iterable

STACK = frozenset({
    "accelerate", "apex", "axolotl", "causal-conv1d", "colossalai", "deepspeed", "diffusers", "fla-core",
    "flash-attn", "flash-attn-3", "flash-attn-4", "flash-linear-attention", "flashinfer-python", "kernels",
    "liger-kernel", "llamafactory", "llmtuner", "lmdeploy", "mamba-ssm", "mbridge", "megatron-bridge",
    "megatron-core", "megatron-fsdp", "ms-swift", "nanotron", "nemo-toolkit", "nvidia-modelopt", "open-clip-torch",
    "openrlhf", "optimum", "peft", "ring-flash-attn", "sageattention", "sentence-transformers", "sglang", "swift",
    "timm", "torchtitan", "transformer-engine", "transformer-engine-cu12", "transformer-engine-torch",
    "transformers", "trl", "unsloth", "unsloth-zoo", "verl", "vllm", "vllm-flash-attn", "xformers", "xtuner",
    "yunchang",
})  # fmt: skip

#: Distributions of attention itself: a job of the stack that has one runs it.
KERNELS = frozenset({
    "flash-attn", "flash-attn-3", "flash-attn-4", "flashinfer-python", "ring-flash-attn", "sageattention",
    "transformer-engine", "transformer-engine-cu12", "transformer-engine-torch", "vllm-flash-attn", "xformers",
    "yunchang",
})  # fmt: skip

#: Trainers of transformers' models: a training job through transformers may be one of each that is installed.
TRAINERS = frozenset({"axolotl", "llamafactory", "llmtuner", "ms-swift", "openrlhf", "trl", "unsloth", "verl"})


def may_have_pairs(distributions: Iterable[str], has_code: bool = False) -> bool:
    """Return whether installed distributions, or the user's own code and one of them, can call each other."""
    return len(STACK.intersection(distributions)) + has_code >= 2
