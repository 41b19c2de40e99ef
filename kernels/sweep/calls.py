"""Every attention that the sweep can run, as source text: lines to set up, the call, and a context around it.

The names in the text are those of `source`. A backend is an entry of BACKENDS, or `file:PATH:FUNCTION`: a function of
the user that is called like torch's scaled_dot_product_attention.
"""

from . import calls_cudnn, calls_te, source

SDPA = "from torch.nn.functional import scaled_dot_product_attention as sdpa"
FORCE = "from torch.nn.attention import SDPBackend, sdpa_kernel"
FIRST = "first = lambda x: x[0] if isinstance(x, tuple) else x"


def _joined(function, tensors, arguments):
    return "{}({})".format(function, ", ".join(list(tensors) + ["{}={}".format(*item) for item in arguments]))


def _sdpa_arguments(case):
    mask, arguments, setup = case["mask"], [], []
    if mask == "causal":
        arguments.append(("is_causal", True))
    elif mask == "causal_bottom_right":
        setup.append("from torch.nn.attention.bias import causal_lower_right")
        arguments.append(("attn_mask", "causal_lower_right({seq_len_q}, {seq_len_kv})".format(**case)))
    elif mask.startswith("additive"):
        arguments.append(("attn_mask", "bias"))
    elif mask != "no_mask":
        arguments.append(("attn_mask", "keep"))
    if case["dropout"]:
        arguments.append(("dropout_p", case["dropout"]))
    if case.get("scale"):
        arguments.append(("scale", case["scale"]))
    return arguments, setup


def _sdpa(member, function="sdpa", first=SDPA):
    def text(case):
        arguments, setup = _sdpa_arguments(case)
        group, tensors = case["num_heads"] // case["num_kv_heads"], ["q", "k", "v"]
        if group > 1 and member == "EFFICIENT_ATTENTION":  # it does not group heads; models repeat them
            tensors[1:] = ["{}.repeat_interleave({}, 1)".format(t, group) for t in "kv"]
        elif group > 1:
            arguments.append(("enable_gqa", True))
        context = None
        if member:
            setup, context = [FORCE] + setup, "sdpa_kernel(SDPBackend.{})".format(member)
        return {"setup": [first] + setup, "call": _joined(function, tensors, arguments), "context": context}

    return text


def _own(path, name):
    return _sdpa(None, "attention", "import runpy; attention = runpy.run_path({!r})[{!r}]".format(path, name))


def _varlen(case):
    arguments = [("scale", case["scale"])] if case.get("scale") else []
    if case["mask"] != "no_mask":
        arguments.append(("window_size", {"window": (source.window(case) or (0,))[0:1] + (0,)}.get(
            case["mask"], (-1, 0))))  # fmt: skip
    tensors = ["pack(q, lens_q)", "pack(k, lens_k)", "pack(v, lens_k)", "cq", "ck", "max(lens_q)", "max(lens_k)"]
    setup = ["from torch.nn.attention.varlen import varlen_attn"]
    return {"setup": setup, "call": "unpack({}, lens_q)".format(_joined("varlen_attn", tensors, arguments))}


def _nested(case):
    """Return the call with packed sequences in a nested tensor of the jagged layout, or narrowed from a padded one."""
    arguments = [("is_causal", True)] if case["mask"] == "causal" else []
    if case["dropout"]:
        arguments.append(("dropout_p", case["dropout"]))
    if case.get("scale"):
        arguments.append(("scale", case["scale"]))
    made = "nested_tensor_from_jagged(pack(t, n), c.long())"
    if case["sequences"] == "narrowed":
        made = (
            "torch.nested.narrow(t.transpose(1, 2).contiguous(), 1, 0, torch.tensor(n, device=t.device),"
            " layout=torch.jagged)"
        )
    prepare = [
        "jagged = lambda t, n, c: {}.transpose(1, 2)".format(made),
        "padded = lambda t: torch.nn.utils.rnn.pad_sequence(t.transpose(1, 2).unbind(), batch_first=True)",
    ]
    tensors = ["jagged(q, lens_q, cq)", "jagged(k, lens_k, ck)", "jagged(v, lens_k, ck)"]
    call = "padded({}).transpose(1, 2)".format(_joined("sdpa", tensors, arguments))
    return {"setup": [SDPA, "from torch.nested import nested_tensor_from_jagged"], "prepare": prepare, "call": call}


def _flex(case):
    arguments = []
    setup = [
        "from torch.nn.attention.flex_attention import create_block_mask, flex_attention",
        "flex = torch.compile(flex_attention, dynamic=False)",
    ]
    prepare = []
    if case["mask"] == "additive":
        at = ", ".join("0" if size == "1" else name for size, name in zip(case["bias_shape"], "bhij"))  # noqa: B905
        prepare.append("score = lambda s, b, h, i, j: s + bias[{}]".format(at))
        arguments.append(("score_mod", "score"))
    elif case["softcap"]:
        prepare.append("score = lambda s, b, h, i, j: {c} * torch.tanh(s / {c})".format(c=case["softcap"]))
        arguments.append(("score_mod", "score"))
    elif case["alibi"]:
        prepare.append("score = lambda s, b, h, i, j: s + alibi[h, i, j]")
        arguments.append(("score_mod", "score"))
    if case["mask"] not in ("no_mask", "additive"):
        seen = {"causal": "i >= j", "causal_bottom_right": "i + {} >= j"}.get(case["mask"], "keep[b, 0, i, j]")
        prepare.append("keep = keep.expand({batch_size}, -1, {seq_len_q}, -1)".format(**case))  # read at every index
        prepare.append("blocks = create_block_mask(lambda b, h, i, j: {}, {}, None, {}, {}, device=q.device)".format(
            seen.format(case["seq_len_kv"] - case["seq_len_q"]), case["batch_size"], case["seq_len_q"],
            case["seq_len_kv"]))  # fmt: skip
        arguments.append(("block_mask", "blocks"))
    if case["num_heads"] != case["num_kv_heads"]:
        arguments.append(("enable_gqa", True))
    return {"setup": setup, "prepare": prepare, "call": _joined("flex", ["q", "k", "v"], arguments)}


def _flash(module, plain, varlen, extra=True):
    """Return the call writer of flash-attn 2, 3 or 4, which differ in their module and their options."""

    def text(case):
        arguments = []
        window = source.window(case)
        if window:
            arguments.append(("window_size", window))
        elif case["mask"] != "no_mask":
            arguments.append(("causal", True))
        if case["dropout"]:
            arguments.append(("dropout_p", case["dropout"]))
        if case["softcap"]:
            arguments.append(("softcap", case["softcap"]))
        if case["alibi"]:
            arguments.append(("alibi_slopes", "slopes"))
        if case.get("scale"):
            arguments.append(("softmax_scale", case["scale"]))
        if case["deterministic"] and extra:
            arguments.append(("deterministic", True))
        if case["layout"] == source.VARLEN:
            tensors = ["pack(q, lens_q)", "pack(k, lens_k)", "pack(v, lens_k)"]
            names = ("cu_seqlens_q", "cq"), ("cu_seqlens_k", "ck")
            names += ("max_seqlen_q", "max(lens_q)"), ("max_seqlen_k", "max(lens_k)")
            call = "unpack(first({}), lens_q)".format(_joined(varlen, tensors, list(names) + arguments))
            setup = ["from {} import {}".format(module, varlen), FIRST]
        else:
            tensors = ["{}.transpose(1, 2)".format(t) for t in "qkv"]
            call = "first({}).transpose(1, 2)".format(_joined(plain, tensors, arguments))
            setup = ["from {} import {}".format(module, plain), FIRST]
        return {"setup": setup, "call": call}

    return text


def _xformers(case):
    arguments = []
    bias = {
        "causal": "LowerTriangularMask()", "causal_bottom_right": "LowerTriangularFromBottomRightMask()",
        "no_mask": None,
    }.get(case["mask"], "bias.expand(*q.shape[:3], k.shape[2])")  # fmt: skip
    if bias:
        arguments.append(("attn_bias", bias))
    if case["dropout"]:
        arguments.append(("p", case["dropout"]))
    tensors = ["{}.transpose(1, 2)".format(t) for t in "qkv"]
    setup = [
        "from xformers.ops import LowerTriangularMask, memory_efficient_attention",
        "from xformers.ops.fmha.attn_bias import LowerTriangularFromBottomRightMask",
    ]
    call = _joined("memory_efficient_attention", tensors, arguments)
    return {"setup": setup, "call": call + ".transpose(1, 2)"}


def _sage(case):
    call = _joined("sageattn", ["q", "k", "v"], [("tensor_layout", "'HND'"), ("is_causal", case["mask"] == "causal")])
    return {"setup": ["from sageattention import sageattn"], "call": call}


def _transformers(kind):
    source, function = {
        "sdpa": ("transformers.integrations.sdpa_attention", "sdpa_attention_forward"),
        "eager": ("transformers.models.llama.modeling_llama", "eager_attention_forward"),
        "flash2": ("transformers.integrations.flash_attention", "flash_attention_forward"),
    }[kind]

    def text(case):
        setup = ["from flash_attn import flash_attn_func"] if kind == "flash2" else []
        setup += [
            "from {} import {} as forward".format(source, function),
            "from types import SimpleNamespace",
            "config = SimpleNamespace(_attn_implementation={!r}, dtype=torch.{})".format(
                {"flash2": "flash_attention_2"}.get(kind, kind), case["dtype"]
            ),
            "module = SimpleNamespace(num_key_value_groups={}, is_causal={}, training=True, config=config,"
            " modules=lambda: [], named_modules=lambda: [], layer_idx=0)".format(
                case["num_heads"] // case["num_kv_heads"], case["mask"] == "causal"
            ),
        ]
        mask, prepare = "None", []
        if kind != "flash2" and (kind == "eager" or case["mask"] != "causal") and case["mask"] != "no_mask":
            mask = "given"  # a float mask, as model code makes it
            prepare.append("given = torch.zeros((), **opts).masked_fill(~keep, torch.finfo(q.dtype).min)"
                           if not case["mask"].startswith("additive") else "given = bias")  # fmt: skip
        arguments = [("dropout", case["dropout"]), ("scaling", "scale")]
        call = _joined("forward", ["module", "q", "k", "v", mask], arguments)
        return {"setup": setup, "prepare": prepare, "call": call + "[0].transpose(1, 2)"}

    return text


BACKENDS = {
    "sdpa.default": _sdpa(None),
    "sdpa.flash": _sdpa("FLASH_ATTENTION"),
    "sdpa.efficient": _sdpa("EFFICIENT_ATTENTION"),
    "sdpa.cudnn": _sdpa("CUDNN_ATTENTION"),
    "sdpa.math": _sdpa("MATH"),
    "varlen": _varlen,
    "nested": _nested,
    "flex": _flex,
    "flash2": _flash("flash_attn", "flash_attn_func", "flash_attn_varlen_func"),
    "flash3": _flash("flash_attn_interface", "flash_attn_func", "flash_attn_varlen_func"),
    "fa3_fwd": _flash("fa3_fwd_interface", "flash_attn_func", "flash_attn_varlen_func", extra=False),
    "flash4": _flash("flash_attn.cute", "flash_attn_func", "flash_attn_varlen_func"),
    **{name: calls_te.backend(name) for name in calls_te.CHOICES},
    "cudnn": calls_cudnn.text,
    "xformers": _xformers,
    "sage": _sage,
    "transformers.sdpa": _transformers("sdpa"),
    "transformers.eager": _transformers("eager"),
    "transformers.flash2": _transformers("flash2"),
}

#: Backends that compute no gradient.
FORWARD_ONLY = ("fa3_fwd", "sage")
#: Quantized backends, and those that compute in the storage type: the permitted error over the bound of others.
LOOSER = {"sage": 6.0, "transformers.eager": 2.0, "te.unfused": 2.0}


def looser(case):
    """Return the permitted error of this case over the bound of other backends."""
    # sage computes in int8: it errs 1.0 to 1.3 % in either type, and the spacings of the two are as 8 to 1.
    finer = 8.0 if case["backend"] == "sage" and case["dtype"] == "float16" else 1.0
    if case["dtype"] == "float32":  # scores kept in float32 lose nothing
        return 1.0
    return LOOSER.get(case["backend"], 1.0) * finer


def text(case):
    """Return {setup, prepare, call, context} of the case's backend."""
    name = case["backend"]
    if name.startswith("file:"):
        path, _, function = name[5:].rpartition(":")
        made = _own(path, function)(case)
    elif name in BACKENDS:
        made = BACKENDS[name](case)
    else:
        raise ValueError("unknown backend {!r}".format(name))
    made.setdefault("prepare", [])
    made.setdefault("context", None)
    if case["layout"] == source.VARLEN:
        made["prepare"] = list(source.PACK) + made["prepare"]
    return made
