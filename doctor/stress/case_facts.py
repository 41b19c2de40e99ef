"""Translate a case of the sweep into the facts of a workload, in the rulebook's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from doctor.facts.libraries.frameworks import FRAMEWORKS, caller_named
from doctor.model import ABSENT, Fact, Facts

Case = Mapping[str, Any]

#: Backends that compute no gradient, as in `kernels/sweep/calls.py`.
FORWARD_ONLY = ("fa3_fwd", "sage")
#: Libraries whose rules look at the selected backend; the sweep selects it by name.
SELECTED = ("sdpa", "te", "hf")
COPIED = (
    "dtype", "head_dim_qk", "head_dim_v", "num_heads", "num_kv_heads", "batch_size", "seq_len_q", "seq_len_kv",
    "dropout", "softcap", "deterministic",
)  # fmt: skip
#: Masks of the same name in both; others are a tensor, or a window on one of these.
NAMED = ("no_mask", "causal", "causal_bottom_right", "padding", "padding_causal")
WINDOWED = {"window": "causal_bottom_right", "window_both": "no_mask"}


def covered() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the backends of the sweep that rules cover: each with its framework, and with what serves it.

    What serves it is a backend, the prefix of a library that selects, or a library without backends.
    """
    return {backend: (item.word, served) for item in FRAMEWORKS.values() for backend, served in item.sweep.items()}


def case_facts(case: Case) -> Facts | None:
    """Return the facts of this case for the rules; None for a backend without rules."""
    known = covered().get(case["backend"])
    if known is None:
        return None
    framework, served = known
    facts_of_case = {
        key: case.get(key, {"dropout": 0.0, "softcap": 0.0, "deterministic": False}.get(key)) for key in COPIED
    }
    facts_of_case.update(framework=framework, cuda_graph=case.get("how") == "graph")
    facts_of_case["training"] = case.get("training", True) and case["backend"] not in FORWARD_ONLY
    facts_of_case.update(_layout(case), **_mask(case, framework))
    grouped = case["num_heads"] != case["num_kv_heads"]
    if framework == "torch_sdpa" and grouped:
        if case["backend"] in ("sdpa.efficient", "transformers.sdpa"):  # models repeat the heads for them
            facts_of_case["num_kv_heads"] = case["num_heads"]
        else:
            facts_of_case["enable_gqa"] = True
    if case["backend"] == "nested":
        facts_of_case.update(nested_tensors=True, nested_layout="jagged", nested_holes=_has_holes(case))
    if case["backend"] == "sage":
        facts_of_case["inference_kv_cache"] = True  # the sweep reads the keys again, as a cache does
    if case.get("alibi"):
        facts_of_case.update(bias="alibi", alibi_slopes="h")
    generation = next((name[-1] for name in served if name.startswith("fa.")), None)
    if generation is not None:
        facts_of_case["attn_implementation"] = f"flash_attention_{generation}"
    facts = [Fact(f"workload.{key}", value, "a case of the sweep") for key, value in facts_of_case.items()]
    for name in served:
        prefix, _, backend = name.partition(".")
        if backend and prefix in SELECTED:
            facts.append(Fact(f"{prefix}.selected", name, "selected by name"))
    return Facts(facts)


def _layout(case: Case) -> dict[str, Any]:
    layout = case.get("layout", "bhsd")
    form = {"sbhd": "sbhd", "thd": "thd"}.get(layout, "bshd")
    return {
        "qkv_layout": "_".join([form] * 3), "qkv_interleaved": layout in ("fused", "interleaved"),
        # TransformerEngine gets (batch, seq, heads, dim) or (seq, batch, heads, dim) in every layout in memory.
        "qkv_transposed": layout in ("bhsd", "expanded", "rowpad", "cache", "single") and _is_transposed(case),
        "qkv_unaligned": layout == "offset1",
        "kv_storage_offset": layout in ("offset1", "offset8") and not _keys_are_transposed(case),
        "zero_length_sequences": _has_empty_sequence(case),
        "singleton_strides": layout == "single" and _has_singleton(case),
    }  # fmt: skip


def _has_empty_sequence(case: Case) -> bool:
    """Return whether the second sequence is empty."""
    some = case.get("sequences", "some_empty") == "some_empty"
    return bool(case.get("layout") == "thd" and some and case["batch_size"] > 1)


def _has_holes(case: Case) -> bool:
    """Return whether a sequence before the last is shorter than the rows it is cut from: the second has one token."""
    longer = case["seq_len_q"] > 1 or case["seq_len_kv"] > 1
    return bool(case.get("sequences") == "narrowed" and case["batch_size"] > 2 and longer)


def _has_singleton(case: Case) -> bool:
    """Return whether queries, or keys that are not repeated for their group, have one head or one token."""
    grouped = case["num_heads"] != case["num_kv_heads"]
    if grouped and case["backend"] == "transformers.sdpa":
        return False  # plain math multiplies them
    repeated = grouped and case["backend"] == "sdpa.efficient"
    sizes = [case["num_heads"], case["seq_len_q"]]
    return 1 in (sizes if repeated else [*sizes, case["num_kv_heads"], case["seq_len_kv"]])


def _is_transposed(case: Case) -> bool:
    """Return whether a tensor (batch, heads, seq, dim) viewed as (batch, seq, heads, dim) is not contiguous."""
    padded = case.get("layout") in ("rowpad", "cache")
    if case["head_dim_qk"] != case["head_dim_v"] and padded:
        return False  # keys and values have different strides, which TransformerEngine notices
    queries = case["num_heads"] > 1 and case["seq_len_q"] > 1
    return bool(padded or queries or _keys_are_transposed(case))


def _keys_are_transposed(case: Case) -> bool:
    return bool(case["num_kv_heads"] > 1 and case["seq_len_kv"] > 1)


def _mask(case: Case, framework: str) -> dict[str, Any]:
    mask = case["mask"]
    if framework == "torch_sdpa":
        return {**_sdpa_mask(case), "fully_masked_rows": _has_blind_rows(case)}
    if mask.startswith("additive"):
        return {"mask": "no_mask", "bias": "post_scale_bias", "bias_shape": _bias_shape(case), **_trained(case)}
    words: dict[str, Any] = {"mask": WINDOWED.get(mask, mask)}
    if mask in WINDOWED:
        words["window"] = (_reach(case), 0 if mask == "window" else _reach(case))
    if caller_named(framework).kernel == "te_attention" and case.get("layout") == "thd":
        plain = words["mask"]
        words["mask"] = "padding" if plain == "no_mask" else f"padding_{plain}"
    return words


def _sdpa_mask(case: Case) -> dict[str, Any]:
    mask = case["mask"]
    if mask.startswith("additive"):
        kind = "float32" if mask == "additive_float32" else ABSENT
        return {"mask": "arbitrary", "mask_dtype": kind, **_trained(case)}
    if case["backend"].startswith("transformers.") and mask not in ("no_mask", "causal"):
        return {"mask": "arbitrary"}
    if mask in NAMED:
        return {"mask": mask}
    if mask != "window" or case["seq_len_kv"] == 1:  # a window over one key limits nothing
        return {"mask": "arbitrary", "mask_dtype": "boolean"}
    return {"mask": WINDOWED[mask], "window": (_reach(case), 0)}


def _reach(case: Case) -> int:
    return int(case.get("window_size") or max(1, case["seq_len_kv"] // 5))


def _has_blind_rows(case: Case) -> bool:
    """Return whether a query sees no key; with every other mask of the sweep each query sees the first key."""
    beyond = int(
        case["seq_len_q"] - case["seq_len_kv"]
    )  # queries before the diagonal from the lower right reaches a key
    reach = {"causal_bottom_right": 0, "window": 0, "window_both": _reach(case)}.get(case["mask"])
    return bool(case["mask"] == "blind" or (reach is not None and beyond > reach))


def _bias_shape(case: Case) -> str:
    """Return the shape of an additive mask in TransformerEngine's letters: 1 for a dimension of one."""
    older = "bhss" if case["mask"] == "additive" and case["seed"] % 2 else "b1ss"  # in older journals
    sizes = {"b": case["batch_size"], "h": case["num_heads"]}
    return "".join("1" if sizes.get(letter) == 1 else letter for letter in case.get("bias_shape") or older)


def _trained(case: Case) -> dict[str, Any]:
    return {"bias_requires_grad": True, "qkv_frozen": bool(case.get("alone"))} if case.get("bias_grad") else {}
