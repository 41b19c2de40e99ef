"""SGLang's command line as workload words: the options that decide about attention, each with its type.

Options that no rule reads are ignored, as are values that belong to them. Which option and which value a release
accepts is a matter of the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from doctor.errors import DoctorError

#: option -> (workload key, kind): `text`, `integer`, or `flag` for one without a value
OPTIONS: Mapping[str, tuple[str, str]] = {
    "--attention-backend": ("attention_backend_option", "text"),
    "--prefill-attention-backend": ("prefill_attention_backend_option", "text"),
    "--decode-attention-backend": ("decode_attention_backend_option", "text"),
    "--kv-cache-dtype": ("kv_cache_dtype", "text"),
    "--page-size": ("page_size", "integer"),
    "--speculative-algorithm": ("speculative_algorithm", "text"),
    "--speculative-algo": ("speculative_algorithm", "text"),
    "--speculative-num-steps": ("speculative_num_steps", "integer"),
    "--speculative-eagle-topk": ("speculative_eagle_topk", "integer"),
    "--enable-deterministic-inference": ("deterministic_inference", "flag"),
    "--enable-hierarchical-cache": ("hierarchical_cache", "flag"),
    "--enable-flashinfer-mla": ("enable_flashinfer_mla", "flag"),
    "--enable-flashmla": ("enable_flashmla", "flag"),
    "--disable-mla": ("disable_mla", "flag"),
    "--disable-radix-cache": ("disable_radix_cache", "flag"),
    "--tensor-parallel-size": ("tensor_parallel_size", "integer"),
    "--tp-size": ("tensor_parallel_size", "integer"),
    "--tp": ("tensor_parallel_size", "integer"),
    "--quantization": ("quantization", "text"),
    "--disable-cuda-graph": ("enforce_eager", "flag"),
}


def read_options(arguments: Sequence[Any]) -> dict[str, Any]:
    """Return the workload words of a command line, unprefixed; DoctorError for an option without its value."""
    words: dict[str, Any] = {}
    given = [str(argument) for argument in arguments]
    position = 0
    while position < len(given):
        option, equals, value = given[position].partition("=")
        position += 1
        if option not in OPTIONS:
            continue
        key, kind = OPTIONS[option]
        if kind == "flag":
            words[key] = True
            continue
        if not equals:
            if position >= len(given) or given[position].startswith("--"):
                raise DoctorError(f"`{option}` needs a value")
            value = given[position]
            position += 1
        words[key] = _integer(option, value) if kind == "integer" else value
    return words


def _integer(option: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise DoctorError(f"`{option}` needs an integer, found `{value}`") from None
