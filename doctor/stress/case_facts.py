"""A case of the sweep in the words of the rulebook: the facts of its workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from doctor.model import ABSENT, Fact, Facts

Case = Mapping[str, Any]

#: Backend of the sweep → (who calls attention, what serves it as the rules name it, one after the other: a backend, a
#: library's prefix where that chooses, a library that has no backends). Of those not named here no rule speaks.
SPOKEN_OF: dict[str, tuple[str, tuple[str, ...]]] = {
    "sdpa.default": ("torch_sdpa", ("sdpa",)),
    **{f"sdpa.{name}": ("torch_sdpa", (f"sdpa.{name}",)) for name in ("flash", "efficient", "cudnn", "math")},
    "nested": ("torch_sdpa", ("sdpa",)),
    **{f"flash{number}": ("flash_attn", (f"fa.flash{number}",)) for number in (2, 3, 4)},
    "fa3_fwd": ("flash_attn", ("fa.flash3",)),
    **{f"te.{name}": ("transformer_engine", (f"te.{name}",))
       for name in ("flash2", "flash3", "flash4", "fused", "unfused")},
    "xformers": ("xformers", ("xf",)),
    "sage": ("sageattention", ("sageattention",)),
    "transformers.sdpa": ("torch_sdpa", ("sdpa",)),  # with a written-out mask
    "transformers.flash2": ("transformers", ("hf.flash_attention_2", "fa.flash2")),
}  # fmt: skip
#: Those that compute no gradient, as the sweep's own program has it.
FORWARD_ONLY = ("fa3_fwd", "sage")
#: Of these the rules look at what was chosen, and the sweep asks by name.
CHOSEN = ("sdpa", "te", "hf")
SAME = (
    "dtype", "head_dim_qk", "head_dim_v", "num_heads", "num_kv_heads", "batch_size", "seq_len_q", "seq_len_kv",
    "dropout", "softcap", "deterministic",
)  # fmt: skip
#: Masks by the name that both use; others are a tensor, or a window on one of these.
NAMED = ("no_mask", "causal", "causal_bottom_right", "padding", "padding_causal")
WINDOWED = {"window": "causal_bottom_right", "window_both": "no_mask"}


def case_facts(case: Case) -> Facts | None:
    """What the rules are told of this case; None for a backend that no rule speaks of."""
    if case["backend"] not in SPOKEN_OF:
        return None
    framework, served = SPOKEN_OF[case["backend"]]
    told = {key: case.get(key, {"dropout": 0.0, "softcap": 0.0, "deterministic": False}.get(key)) for key in SAME}
    told.update(framework=framework, cuda_graph=case.get("how") == "graph")
    told["training"] = case.get("training", True) and case["backend"] not in FORWARD_ONLY
    told.update(_layout(case), **_mask(case, framework))
    grouped = case["num_heads"] != case["num_kv_heads"]
    if framework == "torch_sdpa" and grouped:
        if case["backend"] in ("sdpa.efficient", "transformers.sdpa"):  # they get repeated heads
            told["num_kv_heads"] = case["num_heads"]
        else:
            told["enable_gqa"] = True
    if case["backend"] == "nested":
        told.update(nested_tensors=True, nested_layout="jagged", nested_holes=_has_holes(case))
    if case.get("alibi"):
        told.update(bias="alibi", alibi_slopes="h")
    generation = next((name[-1] for name in served if name.startswith("fa.")), None)
    if generation is not None:
        told["attn_implementation"] = f"flash_attention_{generation}"
    facts = [Fact(f"workload.{key}", value, "a case of the sweep") for key, value in told.items()]
    for name in served:
        prefix, _, backend = name.partition(".")
        if backend and prefix in CHOSEN:
            facts.append(Fact(f"{prefix}.selected", name, "asked for by name"))
    return Facts(facts)


def _layout(case: Case) -> dict[str, Any]:
    layout = case.get("layout", "bhsd")
    form = {"sbhd": "sbhd", "thd": "thd"}.get(layout, "bshd")
    return {
        "qkv_layout": "_".join([form] * 3), "qkv_interleaved": layout in ("fused", "interleaved"),
        # TransformerEngine gets (batch, seq, heads, dim) or (seq, batch, heads, dim), whatever lies in memory.
        "qkv_transposed": layout in ("bhsd", "expanded", "rowpad", "cache", "single") and _lies_otherwise(case),
        "qkv_unaligned": layout == "offset1",
        "kv_storage_offset": layout in ("offset1", "offset8") and not _keys_lie_otherwise(case),
        "zero_length_sequences": _has_empty_sequence(case),
        "singleton_strides": layout == "single" and _says_nothing(case),
    }  # fmt: skip


def _has_empty_sequence(case: Case) -> bool:
    """The second one, unless the case says that there is none."""
    some = case.get("sequences", "some_empty") == "some_empty"
    return bool(case.get("layout") == "thd" and some and case["batch_size"] > 1)


def _has_holes(case: Case) -> bool:
    """Whether a sequence before the last is shorter than the rows it is narrowed from: the second has one token."""
    longer = case["seq_len_q"] > 1 or case["seq_len_kv"] > 1
    return bool(case.get("sequences") == "narrowed" and case["batch_size"] > 2 and longer)


def _says_nothing(case: Case) -> bool:
    """Whether queries, or keys that are not repeated for their group, have one head or one token."""
    grouped = case["num_heads"] != case["num_kv_heads"]
    if grouped and case["backend"] == "transformers.sdpa":
        return False  # plain math multiplies them
    repeated = grouped and case["backend"] == "sdpa.efficient"
    sizes = [case["num_heads"], case["seq_len_q"]]
    return 1 in (sizes if repeated else [*sizes, case["num_kv_heads"], case["seq_len_kv"]])


def _lies_otherwise(case: Case) -> bool:
    """Whether a tensor (batch, heads, seq, dim) that is looked at as (batch, seq, heads, dim) is no contiguous one."""
    padded = case.get("layout") in ("rowpad", "cache")
    if case["head_dim_qk"] != case["head_dim_v"] and padded:
        return False  # keys and values have unlike strides, which TransformerEngine notices
    queries = case["num_heads"] > 1 and case["seq_len_q"] > 1
    return bool(padded or queries or _keys_lie_otherwise(case))


def _keys_lie_otherwise(case: Case) -> bool:
    return bool(case["num_kv_heads"] > 1 and case["seq_len_kv"] > 1)


def _mask(case: Case, framework: str) -> dict[str, Any]:
    mask = case["mask"]
    if framework == "torch_sdpa":
        return {**_sdpa_mask(case), "fully_masked_rows": _has_blind_rows(case)}
    if mask.startswith("additive"):
        return {"mask": "no_mask", "bias": "post_scale_bias", "bias_shape": _bias_shape(case), **_trained(case)}
    said: dict[str, Any] = {"mask": WINDOWED.get(mask, mask)}
    if mask in WINDOWED:
        said["window"] = (_reach(case), 0 if mask == "window" else _reach(case))
    if framework == "transformer_engine" and case.get("layout") == "thd":
        plain = said["mask"]
        said["mask"] = "padding" if plain == "no_mask" else f"padding_{plain}"
    return said


def _sdpa_mask(case: Case) -> dict[str, Any]:
    mask = case["mask"]
    if mask.startswith("additive"):
        kind = "float" if mask == "additive_float32" else ABSENT
        return {"mask": "arbitrary", "mask_dtype": kind, **_trained(case)}
    if case["backend"].startswith("transformers.") and mask not in ("no_mask", "causal"):
        return {"mask": "arbitrary"}
    if mask in NAMED:
        return {"mask": mask}
    if mask != "window" or case["seq_len_kv"] == 1:  # a window over one key is none
        return {"mask": "arbitrary", "mask_dtype": "boolean"}
    return {"mask": WINDOWED[mask], "window": (_reach(case), 0)}


def _reach(case: Case) -> int:
    return int(case.get("window_size") or max(1, case["seq_len_kv"] // 5))


def _has_blind_rows(case: Case) -> bool:
    """Whether a query sees no key; every other mask of the sweep shows each query the first key."""
    beyond = int(
        case["seq_len_q"] - case["seq_len_kv"]
    )  # queries before the diagonal from the lower right reaches a key
    reach = {"causal_bottom_right": 0, "window": 0, "window_both": _reach(case)}.get(case["mask"])
    return bool(case["mask"] == "blind" or (reach is not None and beyond > reach))


def _bias_shape(case: Case) -> str:
    """The shape of an additive mask in TransformerEngine's letters: 1 where it has but one."""
    older = "bhss" if case["mask"] == "additive" and case["seed"] % 2 else "b1ss"  # in journals
    sizes = {"b": case["batch_size"], "h": case["num_heads"]}
    return "".join("1" if sizes.get(letter) == 1 else letter for letter in case.get("bias_shape") or older)


def _trained(case: Case) -> dict[str, Any]:
    return {"bias_requires_grad": True, "qkv_frozen": bool(case.get("alone"))} if case.get("bias_grad") else {}
