"""Workload settings as users state them in their job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .libraries.frameworks import caller_named


def setting_text(name: str, value: Any) -> str:
    """Return what to write in the job for a workload key (with or without `workload.`) and its value."""
    key = name.removeprefix("workload.")
    if (call := attention_call(name, value)) is not None:
        return f"in the job's code: call `{call}`"
    if key == "attn_implementation":
        return f'in the model\'s configuration: {key}="{value}"'
    return f"in the job's configuration: {key} = {_shown(value)}"


def attention_call(name: str, value: Any) -> str | None:
    """Return the function to call where the setting chooses an attention library; None for any other setting."""
    return (caller_named(value).call or None) if name.removeprefix("workload.") == "framework" else None


def _shown(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
