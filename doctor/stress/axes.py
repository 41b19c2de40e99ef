"""The axes of the sweep's cases with their values, and which values each backend's interface can express.

A value is the part of a case that it sets. Everything that an interface can express is run, even where a refusal is
expected: only what cannot be written as a call is left out here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Case = Mapping[str, Any]
Value = Mapping[str, Any]


def _heads(*rows: tuple[int, int, int]) -> tuple[Value, ...]:
    return tuple({"batch_size": b, "num_heads": h, "num_kv_heads": g} for b, h, g in rows)


def _dims(*rows: tuple[int, int]) -> tuple[Value, ...]:
    return tuple({"head_dim_qk": qk, "head_dim_v": v} for qk, v in rows)


def _lengths(*rows: tuple[int, int]) -> tuple[Value, ...]:
    return tuple({"seq_len_q": q, "seq_len_kv": kv} for q, kv in rows)


def _each(key: str, *values: Any) -> tuple[Value, ...]:
    return tuple({key: value} for value in values)


#: Lengths at the edges of tiles, decoding, multiples of nothing, more queries than keys and fewer, long with short.
LENGTHS = _lengths(
    (128, 128), (1, 300), (300, 100), (1, 1), (63, 63), (64, 64), (65, 65), (127, 127), (129, 129), (192, 192),
    (320, 320), (1000, 1000), (65, 129), (129, 65), (100, 300), (17, 513), (1, 1000), (255, 1025),
    (2, 2051), (2051, 2),
)  # fmt: skip
#: Usual head dims, the pairs of multi-head latent attention, odd multiples of 8, and one that is no multiple of 8.
DIMS = _dims(
    (128, 128), (64, 64), (192, 128), (256, 256), (72, 72), (96, 96), (40, 40), (32, 32), (80, 80), (8, 8),
    (128, 64), (64, 128), (160, 160), (200, 200), (192, 192), (36, 36),
)  # fmt: skip
HEADS = _heads((2, 4, 4), (2, 8, 2), (1, 8, 1), (4, 6, 2), (3, 1, 1), (1, 16, 16))

#: Shapes of an additive mask by its letters, `+` where it is a parameter.
BIASES = ("b1ss", "bhss", "1hss", "b11s", "bhss+", "b1ss+", "1hss+", "b11s+")
#: Axes that most interfaces cannot express: these use the first value.
RARELY_EXPRESSIBLE = ("bias", "sequences")
#: Axes whose other values apply to some cases only.
RESTING = ("bias",)


def _biases(*shapes: str) -> tuple[Value, ...]:
    return tuple({"bias_shape": shape[:4], "bias_grad": shape.endswith("+")} for shape in shapes)


AXES: dict[str, tuple[Value, ...]] = {
    "lengths": LENGTHS,
    "dims": DIMS,
    "mask": _each(
        "mask", "no_mask", "causal", "causal_bottom_right", "padding", "padding_causal", "window", "window_both",
        "boolean", "blind", "additive", "additive_extreme", "additive_inf", "additive_low", "additive_float32",
    ),
    "layout": _each(
        "layout", "bshd", "bhsd", "sbhd", "fused", "interleaved", "expanded", "offset8", "rowpad", "cache", "thd"
    ),
    "heads": HEADS,
    "dtype": _each("dtype", "bfloat16", "float16", "float32"),
    "grad": _each("grad", "dense", "expanded", "transposed"),
    # What an additive mask is broadcast over, and whether it is a parameter with a gradient.
    "bias": _biases(*BIASES),
    "sequences": _each("sequences", "some_empty", "none_empty", "narrowed"),
    # Models have a cap of 30; one of 5 changes unit scores enough to show where it is applied. A scale of 1 is T5's: it
    # exposes a kernel that ignores its argument, and with scores far apart running sums must be rescaled.
    "feature": ({}, {"dropout": 0.1}, {"softcap": 30.0}, {"alibi": True}, {"softcap": 5.0}, {"scale": 1.0}),
    "promise": _each("deterministic", False, True),
    "how": _each("how", "eager", "graph"),
}  # fmt: skip


@dataclass(frozen=True)
class Domain:
    """What one backend's interface can express: per axis a test of values, and a test of whole cases."""

    keep: Mapping[str, Callable[[Value], bool]] = field(default_factory=dict)
    fits: Callable[[Case], bool] = lambda case: True
    share: float = 1.0  # of cases, over that of other backends; less if a case is slow
    slow: bool = False  # seconds each: after all others
    compiles: bool = True  # whether cases through torch.compile make sense

    def axes(self, device: str) -> dict[str, tuple[Value, ...]]:
        """Return the axes of this backend on this device."""
        kept = {}
        for name, values in AXES.items():
            test = self.keep.get(name)
            mine = tuple(value for value in values if (test is None or test(value)) and _on(device, name, value))
            if test is None and name in RARELY_EXPRESSIBLE:
                mine = values[:1]
            kept[name] = mine or values[:1]
        return kept


def _on(device: str, name: str, value: Value) -> bool:
    if not device.startswith("cpu"):
        return True
    if name == "how":
        return bool(value["how"] == "eager")
    if name == "lengths":  # a CPU needs seconds for what a GPU does in a millisecond
        return int(value["seq_len_q"]) * int(value["seq_len_kv"]) <= 40_000
    if name == "heads":
        return bool(value["num_heads"] <= 8)
    return True


def _one_of(key: str, *values: Any) -> Callable[[Value], bool]:
    return lambda value: value.get(key) in values


def _only(*features: str) -> Callable[[Value], bool]:
    return lambda value: all(key in features for key in value)


def _mha(value: Value) -> bool:
    return bool(value["num_heads"] == value["num_kv_heads"])


_not_varlen = {"layout": lambda value: value["layout"] != "thd"}
_half = {"dtype": _one_of("dtype", "bfloat16", "float16")}
_flash_masks = {"mask": _one_of("mask", "no_mask", "causal", "causal_bottom_right", "window", "window_both")}
_plain = {"mask": _one_of("mask", "no_mask", "causal", "causal_bottom_right")}


def _any_bias(*shapes: str) -> dict[str, Callable[[Value], bool]]:
    shapes_kept = _biases(*shapes)
    return {"bias": lambda value: value in shapes_kept}


def consistent(case: Case) -> bool:
    """Return whether the values of the axes are compatible."""
    if (case["bias_shape"], case["bias_grad"]) != ("b1ss", False) and not _has_bias(case):
        return False
    square = case["seq_len_q"] == case["seq_len_kv"]
    equal = case["num_heads"] == case["num_kv_heads"]
    layout, mask = case["layout"], case["mask"]
    if layout in ("fused", "interleaved") and not (square and case["head_dim_qk"] == case["head_dim_v"]):
        return False
    if layout == "interleaved" and not equal:
        return False
    if layout == "thd" and mask not in ("no_mask", "causal", "causal_bottom_right", "window", "window_both"):
        return False
    if mask == "padding_causal" and not square:
        return False
    # The same bits from a replayed graph with dropout need a registered generator, which is not tested.
    return not (case.get("dropout") and (case["how"] == "graph" or mask in ("blind", "additive_inf")))


def _has_bias(case: Case) -> bool:
    """Return whether the case has a bias of ordinary numbers, and its gradient a reference if it has one."""
    plain = not (case.get("softcap") or case.get("alibi") or case.get("dropout"))
    masks = ("additive", "additive_low") if case["bias_grad"] else ("additive", "additive_low", "additive_float32")
    return bool(case["mask"] in masks and (plain or not case["bias_grad"]))


def _top_left_is_square(case: Case) -> bool:
    """Return whether a bottom-right causal mask is the one of the case: top-left needs a square."""
    return bool(case["mask"] != "causal" or (case["layout"] != "thd" and case["seq_len_q"] == case["seq_len_kv"]))


def _flash2(case: Case) -> bool:
    return _top_left_is_square(case) and not (case.get("softcap") and case.get("dropout"))


def _flex(case: Case) -> bool:
    return not (case["mask"] == "additive" and (case.get("softcap") or case.get("alibi")))


def _keys_for_all(case: Case) -> bool:
    """Return whether no sequence has queries but no keys: torch's math for nested tensors raises there."""
    return bool(case["seq_len_kv"] > 1 or case["seq_len_q"] == 1 or case["sequences"] != "some_empty")


def _seeing(case: Case) -> bool:
    """Return whether every query sees a key: with the lowest float as mask, a row without keys sees all of them."""
    if case["mask"] == "causal":  # one query among many keys is decoding there, and sees all
        return bool(case["seq_len_q"] == case["seq_len_kv"])
    return not (case["mask"] in ("causal_bottom_right", "window", "window_both") and _longer(case))


def _longer(case: Case) -> bool:
    return bool(case["seq_len_q"] > case["seq_len_kv"])


def _te(case: Case) -> bool:
    """Return whether the case means the same in TransformerEngine, which counts ALiBi and windows from a corner."""
    if case["mask"] in ("window", "window_both") or case.get("alibi"):
        square = case["seq_len_q"] == case["seq_len_kv"] and case["layout"] != "thd"
        return bool(square and not (case.get("alibi") and case["mask"] in ("additive", "padding")))
    return True


def _te_unfused(case: Case) -> bool:
    """Return whether every query sees a key: masked scores get -10000 added, so a row without keys sees all."""
    return _te(case) and not (case["mask"] == "causal_bottom_right" and (_longer(case) or case["layout"] == "thd"))


_te_masks = ("no_mask", "causal", "causal_bottom_right", "padding", "window", "window_both", "additive")
_te_any = {"mask": _one_of("mask", *_te_masks), "feature": _only("dropout", "softcap", "alibi")}
_te_flash = {**_te_any, **_half, "mask": _one_of("mask", *_te_masks[:-1])}
_sdpa = {
    **_not_varlen,
    "feature": _only("dropout", "scale"),
    **_any_bias("b1ss", "bhss", "bhss+", "b1ss+", "1hss+", "b11s+"),
}
_te_bias = _any_bias("b1ss", "bhss", "bhss+", "b1ss+", "1hss+")
DOMAINS: dict[str, Domain] = {
    # cuDNN builds a plan for each new shape, most of a second: backends that use it have fewer cases.
    "sdpa.default": Domain(_sdpa, share=0.9),
    "sdpa.efficient": Domain(_sdpa),
    "sdpa.flash": Domain({**_sdpa, **_plain, **_half, **_any_bias("b1ss")}),
    # It takes no mask with a gradient: one such shape, and more that are broadcast instead.
    "sdpa.cudnn": Domain({**_sdpa, **_half, **_any_bias("b1ss", "bhss", "1hss", "b11s", "1hss+")}, share=0.5),
    "sdpa.math": Domain(_sdpa, share=0.85),
    "varlen": Domain({"layout": _one_of("layout", "thd"), **_half, "feature": _only(), "heads": _mha,
                      "mask": _one_of("mask", "no_mask", "causal_bottom_right", "window")}, share=0.5),
    # Nested tensors of the jagged layout: grouped heads have no gradients there, and sizes are read on the host.
    "nested": Domain({"layout": _one_of("layout", "thd"), "feature": _only("dropout"), "heads": _mha,
                      "how": _one_of("how", "eager"), "sequences": lambda v: True,
                      "mask": _one_of("mask", "no_mask", "causal")}, _keys_for_all, share=0.3, compiles=False),
    "flash2": Domain({**_half, **_flash_masks}, _flash2),
    "flash3": Domain({**_half, **_flash_masks, "feature": _only("softcap", "scale")}, _top_left_is_square),
    "fa3_fwd": Domain({**_half, **_flash_masks, "feature": _only("softcap", "scale")}, _top_left_is_square),
    "flash4": Domain({**_half, **_flash_masks, "feature": _only("softcap", "scale")}, _top_left_is_square, share=0.1),
    "te.flash2": Domain(_te_flash, _te),
    "te.flash3": Domain(_te_flash, _te),
    "te.flash4": Domain({**_te_flash, "feature": _only()}, _te, share=0.1),
    "te.fused": Domain({**_te_any, **_half, **_te_bias}, _te, share=0.7),
    "te.unfused": Domain({**_te_any, **_te_bias}, _te_unfused, share=0.4),
    "cudnn": Domain({**_not_varlen, **_half, "feature": _only(),
                     "how": _one_of("how", "eager"), **_any_bias("b1ss", "bhss"),
                     "mask": lambda v: v["mask"] in (*_te_masks, "padding_causal", "additive_low", "additive_inf")},
                    share=0.4, compiles=False),
    "xformers": Domain({**_not_varlen, "heads": _mha, "feature": _only("dropout"),
                        **_any_bias("b1ss", "bhss", "bhss+", "b1ss+"),
                        "mask": _one_of("mask", "no_mask", "causal", "causal_bottom_right", "additive")}),
    "sage": Domain({**_not_varlen, **_half, "feature": _only(), "promise": _one_of("deterministic", False),
                    "mask": _one_of("mask", "no_mask", "causal")}, _top_left_is_square, share=0.3),
    "transformers.sdpa": Domain({**_sdpa, **_any_bias("b1ss", "1hss+"), "mask": lambda v: v["mask"] != "blind"},
                                _seeing, share=0.3),
    "transformers.eager": Domain({**_not_varlen, "feature": _only(), **_any_bias("b1ss", "1hss+", "b11s+"),
                                  # Scores are held in the storage type: near -100 they lose all precision.
                                  "mask": lambda v: v["mask"] not in ("blind", "additive_low", "additive_extreme")},
                                 _seeing, share=0.3),
    "transformers.flash2": Domain({**_not_varlen, **_half, "feature": _only(),
                                   "promise": _one_of("deterministic", False),  # only by an environment variable
                                   "mask": _one_of("mask", "no_mask", "causal")}, _top_left_is_square, share=0.3),
    "flex": Domain({**_not_varlen, "feature": _only("softcap", "alibi"), "how": _one_of("how", "eager"),
                    **_any_bias("b1ss", "bhss", "bhss+", "b1ss+", "1hss+"),
                    "mask": lambda v: v["mask"] == "additive" or not v["mask"].startswith("additive")},
                   _flex, share=0.02, slow=True),
}  # fmt: skip
#: A function of the user, called like torch's.
OWN = Domain(_sdpa)


def domain(backend: str) -> Domain:
    """Return what this backend's interface can express."""
    return OWN if backend.startswith("file:") else DOMAINS[backend]
