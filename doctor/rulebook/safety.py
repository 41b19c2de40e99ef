"""How safe a remedy is, and why not: as its rule states it, else derived from what it changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from doctor.model import FixSafety

_BATCHES = "the job then sees other batches than now"
_ATTENTION = "this is another attention function: the results differ"
#: Settings of a job that change its results, with the sentence for the user. Another backend only rounds differently.
CHANGES_NUMBERS: Mapping[str, str] = {
    "dtype": "another dtype rounds differently and takes other memory",
    "kv_cache_dtype": "another dtype of the cache rounds differently",
    "fp8": "another precision rounds differently",
    "mask": _ATTENTION, "window": _ATTENTION, "softcap": _ATTENTION, "bias": _ATTENTION,
    "softmax_type": _ATTENTION, "sliding_window": _ATTENTION,
    "dropout": "another dropout trains another model",
    "deterministic": "two runs no longer give the same numbers",
    "batch_size": _BATCHES, "seq_len_q": _BATCHES, "seq_len_kv": _BATCHES, "left_padding": _BATCHES,
    "packing": _BATCHES, "pack_to_max_length": _BATCHES, "use_varlen_attn": _BATCHES,
}  # fmt: skip

#: A cache in the dtype of the model rounds nothing.
_AS_COMPUTED = frozenset({("kv_cache_dtype", "auto"), ("kv_cache_dtype", "bfloat16"), ("kv_cache_dtype", "float16")})


def stated_safety(item: Mapping[str, Any]) -> tuple[FixSafety, str | None]:
    """Return the safety of one entry of `fix`, and a sentence for what is not safe."""
    if "safety" in item:
        return FixSafety(str(item["safety"])), item.get("risk")
    config = {str(key).removeprefix("workload."): str(value) for key, value in (item.get("config") or {}).items()}
    changed = (name for name, value in config.items() if (name, value) not in _AS_COMPUTED)
    why = next((CHANGES_NUMBERS[name] for name in changed if name in CHANGES_NUMBERS), None)
    if why is not None and not item.get("call"):  # next to a call, `config` says what the line of code results in
        return FixSafety.CHANGES_NUMBERS, why
    return FixSafety.SAFE, None
