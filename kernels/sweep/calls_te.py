"""TransformerEngine's DotProductAttention as backends of the sweep, each forced by NVTE_* variables."""

from . import source

#: Backend → (the NVTE_ variable that enables it, the distribution it needs besides TransformerEngine).
CHOICES = {
    "te.flash2": ("FLASH_ATTN_V2", "flash-attn"),
    "te.flash3": ("FLASH_ATTN_V3", "flash-attn-3"),
    "te.flash4": ("FLASH_ATTN_V4", "flash-attn-4"),
    "te.fused": ("FUSED_ATTN", None),
    "te.unfused": ("UNFUSED_ATTN", None),
}
SWITCHES = ("FLASH_ATTN_V2", "FLASH_ATTN_V3", "FLASH_ATTN_V4", "FUSED_ATTN", "UNFUSED_ATTN")
CACHE = "from transformer_engine.pytorch.attention.dot_product_attention.dot_product_attention import"


def backend(name):
    """Return the function that writes a case for this backend."""
    switch, needs = CHOICES[name]
    flags = ["NVTE_{}='{:d}'".format(other, other == switch) for other in SWITCHES]
    flags.append("NVTE_FLASH_ATTN='{:d}'".format(switch.startswith("FLASH")))

    def text(case):
        setup = ["from importlib.metadata import version; version({!r})".format(needs)] if needs else []
        setup += [
            "import os, transformer_engine.pytorch as te",
            "os.environ.update({}, NVTE_ALLOW_NONDETERMINISTIC_ALGO='{:d}')".format(
                ", ".join(flags), not case["deterministic"]
            ),
            CACHE + " _attention_backends",
            "_attention_backends['backend_selection_requires_update'] = True",
            _layer(case),
        ]
        return {"setup": setup, "prepare": _masks(case), "call": _call(case)}

    return text


def _form(case):
    return {"sbhd": "sbhd", source.VARLEN: "thd"}.get(case["layout"], "bshd")


def _layer(case):
    mask = {"window": "causal_bottom_right", "window_both": "no_mask"}.get(case["mask"], case["mask"])
    mask = "no_mask" if mask.startswith("additive") else mask
    if case["layout"] == source.VARLEN:
        mask = "padding" if mask == "no_mask" else "padding_" + mask
    arguments = [("num_gqa_groups", case["num_kv_heads"]), ("attention_dropout", case["dropout"]),
                 ("qkv_format", repr(_form(case))), ("attn_mask_type", repr(mask))]  # fmt: skip
    window = source.window(case)
    if window:
        arguments.append(("window_size", window))
    if case["softcap"]:
        arguments.append(("softcap", case["softcap"]))
    if mask.startswith("padding"):  # queries and keys each have their lengths
        arguments.append(("attention_type", "'cross'"))
    return "layer = te.DotProductAttention({}, ({}, {}), {})".format(
        case["num_heads"], case["head_dim_qk"], case["head_dim_v"], ", ".join("{}={}".format(*a) for a in arguments)
    )


def _masks(case):
    """Return the lines that make the padding masks of queries and keys."""
    if case["mask"] != "padding":
        return []
    line = "{} = torch.arange({}, device=q.device) >= torch.tensor({}, device=q.device)[:, None, None, None]"
    full = [case["seq_len_q"]] * case["batch_size"]
    return [line.format("beyond_q", case["seq_len_q"], full), line.format("beyond_k", case["seq_len_kv"], "lens_k"),
            "unseen = (beyond_q, beyond_k)"]  # fmt: skip


def _call(case):
    form, arguments = _form(case), []
    if case["mask"].startswith("additive"):
        arguments += [("core_attention_bias_type", "'post_scale_bias'"), ("core_attention_bias", "bias")]
    elif case["alibi"]:
        arguments += [("core_attention_bias_type", "'alibi'"), ("alibi_slopes", "slopes")]
    heads = "({}, {})".format(case["num_heads"], case["head_dim_v"])
    if form == "thd":
        tensors = ["pack(q, lens_q)", "pack(k, lens_k)", "pack(v, lens_k)"]
        arguments += [("cu_seqlens_q", "cq"), ("cu_seqlens_kv", "ck"), ("max_seqlen_q", "max(lens_q)"),
                      ("max_seqlen_kv", "max(lens_k)")]  # fmt: skip
        return "unpack({}.unflatten(1, {}), lens_q)".format(_joined(tensors, arguments), heads)
    order, back = ((2, 0, 1, 3), (1, 2, 0, 3)) if form == "sbhd" else ((0, 2, 1, 3),) * 2
    tensors = ["{}.permute{}".format(t, order) for t in "qkv"]
    if case["mask"] == "padding":
        arguments.append(("attention_mask", "unseen"))
    return "{}.unflatten(2, {}).permute{}".format(_joined(tensors, arguments), heads, back)


def _joined(tensors, arguments):
    return "layer({})".format(", ".join(tensors + ["{}={}".format(*item) for item in arguments]))
