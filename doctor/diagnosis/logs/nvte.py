"""TransformerEngine's debug output (NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2) as facts, workload and reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from doctor.errors import DoctorError
from doctor.facts.vocabulary import fact
from doctor.facts.workload import workload_facts
from doctor.model import ABSENT, Fact, Facts

from .scan import Match

CONFIG = r"Running with config ?= ?\{"
DISABLING = r"Disabling \w*(?:Flash|Fused|Unfused)\w*Attention[\w ]{0,20}(?: as | for | due |:|\.)"
AVAILABLE = r"Available backends = \{"

_ITEM = re.compile(r"'(\w+)': ('[^']*'|\([^()]*\)|\{[^{}]*\}|<[^<>]*>|[^,{}]+)")
_VERSIONS = {
    "transformer_engine_version": "transformer-engine.version",
    "flash_attn_version": "flash-attn.version",
    "flash_attn_3_version": "flash-attn-3.version",
    "flash_attn_4_version": "flash-attn-4.version",
    "cudnn_version": "cudnn.version",
}
_WORKLOAD = {
    "qkv_dtype": "dtype", "qkv_layout": "qkv_layout", "batch_size": "batch_size", "num_heads": "num_heads",
    "num_gqa_groups": "num_kv_heads", "max_seqlen_q": "seq_len_q", "max_seqlen_kv": "seq_len_kv",
    "head_dim_qk": "head_dim_qk", "head_dim_v": "head_dim_v", "attn_mask_type": "mask", "window_size": "window",
    "core_attention_bias_type": "bias", "core_attention_bias_shape": "bias_shape", "attention_dropout": "dropout",
    "deterministic": "deterministic", "is_training": "training", "fp8": "fp8",
    "pad_between_seqs": "pad_between_seqs", "cp_comm_type": "cp_comm_type", "softmax_type": "softmax_type",
}  # fmt: skip
_REASON = re.compile(r"Disabling .*")


def config_facts(match: Match) -> Facts:
    """Return the facts and the workload of a `Running with config={...}` line; what does not fit is left out."""
    given = {key: text.strip().strip("'") for key, text in _ITEM.findall(match.text)}
    source = f"TransformerEngine's configuration, line {match.line}"
    facts = list(_environment(given, source))
    for key, name in _WORKLOAD.items():
        value = _value(name, given.get(key))
        if value is None:
            continue
        try:
            facts.extend(workload_facts({name: value}, lambda key: source).values())
        except DoctorError:
            continue
    if given:
        facts.extend(workload_facts({"framework": "transformer_engine"}, lambda key: source).values())
    return Facts(facts)


def reasons(matches: tuple[Match, ...]) -> tuple[str, ...]:
    """Return what TransformerEngine printed about each backend that it left out, each once."""
    found = (_REASON.search(match.text) for match in matches)
    return tuple(dict.fromkeys(item[0].strip() for item in found if item))


def _environment(given: Mapping[str, str], source: str) -> Iterator[Fact]:
    for key, name in _VERSIONS.items():
        text = given.get(key)
        if text is not None and text != "None":
            found = fact(name, ABSENT if text == "not installed" else text, source)
            if found.known:
                yield found
    capability = re.fullmatch(r"sm(\d{1,2})(\d)", given.get("compute_capability", ""))
    if capability:
        yield fact("gpu.sm", f"{int(capability[1])}.{capability[2]}", source)


def _value(name: str, text: str | None) -> object:
    """Return a value of the configuration in the words of a workload."""
    if text in (None, "None"):
        return None
    text = str(text).removeprefix("torch.").replace("Float8Tensor", "float8")
    if text in ("True", "False"):
        return text == "True"
    if name == "window":
        numbers = [int(number) for number in re.findall(r"-?\d+", text)]
        return numbers if len(numbers) == 2 else None
    return text.replace("arbitrary,", "arbitrary").strip()
