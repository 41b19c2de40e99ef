"""A case of the sweep in the words of the rulebook: the facts of its workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model import ABSENT, Fact, Facts

#: Backend of the sweep → (who calls attention, backend as the rules name it; None where the library chooses).
SPOKEN_OF: dict[str, tuple[str, str | None]] = {
    "sdpa.default": ("torch_sdpa", None),
    **{f"sdpa.{name}": ("torch_sdpa", f"sdpa.{name}") for name in ("flash", "efficient", "cudnn", "math")},
    **{f"flash{number}": ("flash_attn", f"fa.flash{number}") for number in (2, 3, 4)},
    **{f"te.{name}": ("transformer_engine", f"te.{name}")
       for name in ("flash2", "flash3", "flash4", "fused", "unfused")},
    "xformers": ("xformers", None),
    "transformers.sdpa": ("torch_sdpa", None),  # with a written-out mask
}  # fmt: skip
PREFIX = {"torch_sdpa": "sdpa", "flash_attn": "fa", "transformer_engine": "te", "xformers": "xf"}
SAME = (
    "dtype", "head_dim_qk", "head_dim_v", "num_heads", "num_kv_heads", "batch_size", "seq_len_q", "seq_len_kv",
    "dropout", "softcap", "deterministic",
)  # fmt: skip
#: Masks by the name that both use; others are a tensor, or a window on one of these.
NAMED = ("no_mask", "causal", "causal_bottom_right", "padding", "padding_causal")
WINDOWED = {"window": "causal_bottom_right", "window_both": "no_mask"}


def described(case: Mapping[str, Any]) -> Facts | None:
    """What the rules are told of this case; None for a backend that no rule speaks of."""
    if case["backend"] not in SPOKEN_OF:
        return None
    framework, forced = SPOKEN_OF[case["backend"]]
    told = {key: case.get(key, {"dropout": 0.0, "softcap": 0.0, "deterministic": False}.get(key)) for key in SAME}
    told.update(framework=framework, training=case.get("training", True), cuda_graph=case.get("how") == "graph")
    told.update(_layout(case), **_mask(case, framework))
    grouped = case["num_heads"] != case["num_kv_heads"]
    if framework == "torch_sdpa" and grouped:
        if case["backend"] in ("sdpa.efficient", "transformers.sdpa"):  # they get repeated heads
            told["num_kv_heads"] = case["num_heads"]
        else:
            told["enable_gqa"] = True
    if case.get("alibi"):
        told.update(bias="alibi", alibi_slopes="h")
    facts = [Fact(f"workload.{key}", value, "a case of the sweep") for key, value in told.items()]
    if forced and framework in ("torch_sdpa", "transformer_engine"):
        facts.append(Fact(f"{PREFIX[framework]}.selected", forced, "asked for by name"))
    if framework == "flash_attn" and forced:
        facts.append(Fact("workload.attn_implementation", f"flash_attention_{forced[-1]}", "asked for by name"))
    return Facts(facts)


def _layout(case: Mapping[str, Any]) -> dict[str, Any]:
    layout = case.get("layout", "bhsd")
    form = {"sbhd": "sbhd", "thd": "thd"}.get(layout, "bshd")
    return {
        "qkv_layout": "_".join([form] * 3), "qkv_interleaved": layout in ("fused", "interleaved"),
        # TransformerEngine gets (batch, seq, heads, dim) or (seq, batch, heads, dim), whatever lies in memory.
        "qkv_transposed": layout in ("bhsd", "expanded", "rowpad", "cache") and _lies_otherwise(case),
    }  # fmt: skip


def _lies_otherwise(case: Mapping[str, Any]) -> bool:
    """Whether a tensor (batch, heads, seq, dim) that is looked at as (batch, seq, heads, dim) is no contiguous one."""
    padded = case.get("layout") in ("rowpad", "cache")
    if case["head_dim_qk"] != case["head_dim_v"] and padded:
        return False  # keys and values have unlike strides, which TransformerEngine notices
    return padded or bool(case["num_heads"] > 1 and case["seq_len_q"] > 1 and case["seq_len_kv"] > 1)


def _mask(case: Mapping[str, Any], framework: str) -> dict[str, Any]:
    mask = case["mask"]
    if mask.startswith("additive"):
        return _additive(case, framework)
    if framework == "torch_sdpa":
        if case["backend"].startswith("transformers.") and mask not in ("no_mask", "causal"):
            return {"mask": "arbitrary"}
        if mask in NAMED:
            return {"mask": mask}
        if mask != "window" or case["seq_len_kv"] == 1:  # a window over one key is none
            return {"mask": "arbitrary", "mask_dtype": "boolean"}
    said: dict[str, Any] = {"mask": WINDOWED.get(mask, mask)}
    if mask in WINDOWED:
        size = case.get("window_size") or max(1, case["seq_len_kv"] // 5)
        said["window"] = (size, 0 if mask == "window" else size)
    if framework == "transformer_engine" and case.get("layout") == "thd":
        plain = said["mask"]
        said["mask"] = "padding" if plain == "no_mask" else f"padding_{plain}"
    return said


def _additive(case: Mapping[str, Any], framework: str) -> dict[str, Any]:
    learned = bool(case.get("bias_grad") and case.get("training", True))
    if framework == "torch_sdpa":
        told = {"mask": "arbitrary", "mask_dtype": "float" if case["mask"] == "additive_float32" else ABSENT}
        return {**told, "bias_requires_grad": learned}
    shape = str(case.get("bias_shape", "b1ss"))
    shape = ("1" if case["batch_size"] == 1 else shape[0]) + ("1" if case["num_heads"] == 1 else shape[1]) + shape[2:]
    return {"mask": "no_mask", "bias": "post_scale_bias", "bias_shape": shape, "bias_requires_grad": learned}
