"""Workload settings as users state them in their job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: How to use an attention library from a job's own code, by the value of `workload.framework`.
_CALLS = {
    "torch_sdpa": "torch.nn.functional.scaled_dot_product_attention",
    "flash_attn": "flash_attn.flash_attn_func",
    "xformers": "xformers.ops.memory_efficient_attention",
    "flex_attention": "torch.nn.attention.flex_attention.flex_attention",
    "transformer_engine": "transformer_engine.pytorch.DotProductAttention",
}


def setting_text(name: str, value: Any) -> str:
    """Return what to write in the job for a workload key (with or without `workload.`) and its value."""
    key = name.removeprefix("workload.")
    if key == "framework" and value in _CALLS:
        return f"in the job's code: call `{_CALLS[value]}`"
    if key == "attn_implementation":
        return f'in the model\'s configuration: {key}="{value}"'
    return f"in the job's configuration: {key} = {_shown(value)}"


def attention_call(name: str, value: Any) -> str | None:
    """Return the function to call where the setting chooses an attention library; None for any other setting."""
    return _CALLS.get(str(value)) if name.removeprefix("workload.") == "framework" else None


def _shown(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
