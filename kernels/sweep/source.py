"""Write a case of the sweep as Python source: the sweep executes the lines that a reproduction script prints.

Every function returns text over the names torch, q, k, v, keep (boolean, True where a query sees a key, or None), bias
(additive, or None), lens_q, lens_k, slopes, scale. Tensors are (batch, heads, seq, dim) in every layout in memory.
"""

DEFAULTS = {
    "dtype": "bfloat16",
    "batch_size": 2,
    "num_heads": 4,
    "num_kv_heads": 4,
    "head_dim_qk": 64,
    "head_dim_v": 64,
    "seq_len_q": 128,
    "seq_len_kv": 128,
    "mask": "no_mask",
    "layout": "bhsd",
    "grad": "dense",
    "dropout": 0.0,
    "softcap": 0.0,
    "alibi": False,
    "bias_shape": "b1ss",
    "bias_grad": False,
    "alone": False,
    "sequences": "some_empty",
    "deterministic": False,
    "training": True,
    "how": "eager",
    "before": "nothing",
    "seed": 0,
    "device": "cuda",
}

PLAIN = ("no_mask", "causal", "causal_bottom_right")
VARLEN = "thd"
#: Additive masks that may have a gradient: those of ordinary numbers.
LEARNED = ("additive", "additive_low")


def filled(request):
    """Return the case with defaults: one flat dict. Other keys stay as they are."""
    case = dict(DEFAULTS)
    case.update({key: value for key, value in request.items() if value is not None})
    if "head_dim_v" not in request:
        case["head_dim_v"] = case["head_dim_qk"]
    if "num_kv_heads" not in request:
        case["num_kv_heads"] = case["num_heads"]
    if "seq_len_kv" not in request:
        case["seq_len_kv"] = case["seq_len_q"]
    if case["num_heads"] % case["num_kv_heads"]:
        raise ValueError("num_heads {num_heads} is no multiple of num_kv_heads {num_kv_heads}".format(**case))
    return case


def lengths(case):
    """Return the tokens of each query sequence and of each key sequence; varlen has a full, an empty, a short one …

    Some kernels take no empty sequence, and libraries another path if there is one: `sequences` says whether.
    """
    b, sq, sk = case["batch_size"], case["seq_len_q"], case["seq_len_kv"]
    if case["layout"] != VARLEN:
        return [sq] * b, [max(1, sk - i * (sk // 3 + 1)) for i in range(b)]
    some = [1.0, 0.0, -1, 0.6] if case["sequences"] == "some_empty" else [1.0, -1, 0.6, 0.3]
    shares = (some * b)[:b]  # -1: one token
    least = case["sequences"] != "some_empty"

    def tokens(full):
        return [1 if share < 0 else max(int(full * share), least) for share in shares]

    return tokens(sq), tokens(sk)


def _tensor(case, name, heads, length, dim):
    """Return a randn expression of shape (batch, heads, length, dim) with the layout of the case in memory."""
    b, layout = case["batch_size"], case["layout"]
    opts = "**opts"
    if layout == "bshd":
        return "torch.randn({}, {}, {}, {}, {}).transpose(1, 2)".format(b, length, heads, dim, opts)
    if layout == "sbhd":
        return "torch.randn({}, {}, {}, {}, {}).permute(1, 2, 0, 3)".format(length, b, heads, dim, opts)
    if layout in ("offset8", "offset1"):
        off = int(layout[6:])
        count = b * heads * length * dim
        return "torch.randn({} + {o}, {})[{o}:].view({}, {}, {}, {})".format(count, opts, b, heads, length, dim, o=off)
    if layout == "rowpad":
        return "torch.randn({}, {}, {}, {} + 8, {})[..., :{}]".format(b, heads, length, dim, opts, dim)
    if layout == "cache":  # the filled part of a buffer of fixed length
        return "torch.randn({}, {}, {} + 5, {}, {})[:, :, :{}]".format(b, heads, length, dim, opts, length)
    if layout == "single":  # the stride of a dimension of one is arbitrary, and kernels that use it fail
        sizes, strides = (b, heads, length), (heads * length * dim, length * dim, dim)
        odd = tuple(stride if size > 1 else 3 for size, stride in zip(sizes, strides))  # noqa: B905 - Python 3.8
        return "torch.randn({}, {}).as_strided({}, {})".format(
            b * heads * length * dim, opts, (*sizes, dim), (*odd, 1))  # fmt: skip
    if layout == "expanded" and name != "q":
        return "torch.randn({}, 1, {}, {}, {}).expand({}, {}, -1, -1)".format(b, length, dim, opts, b, heads)
    return "torch.randn({}, {}, {}, {}, {})".format(b, heads, length, dim, opts)


def inputs(case):
    """Return the lines that make opts, q, k, v and the incoming gradient dout."""
    b, h, g = case["batch_size"], case["num_heads"], case["num_kv_heads"]
    sq, sk, d, dv = case["seq_len_q"], case["seq_len_kv"], case["head_dim_qk"], case["head_dim_v"]
    lines = [
        "torch.manual_seed({})".format(case["seed"]),
        "opts = dict(device={!r}, dtype=torch.{})".format(case["device"], case["dtype"]),
    ]
    if case["layout"] == "fused":
        lines.append("qkv = torch.randn({}, {}, {}, {}, **opts).transpose(1, 2)".format(b, sq, h + 2 * g, d))
        lines.append("q, k, v = qkv.split([{}, {}, {}], 1)".format(h, g, g))
    elif case["layout"] == "interleaved":
        lines.append("q, k, v = torch.randn({}, {}, {}, 3, {}, **opts).permute(3, 0, 2, 1, 4)".format(b, sq, h, d))
    else:
        lines += ["{} = {}".format(n, _tensor(case, n, *shape)) for n, shape in
                  (("q", (h, sq, d)), ("k", (g, sk, d)), ("v", (g, sk, dv)))]  # fmt: skip
    lines.append(
        "q, k, v = (t.detach().requires_grad_({}) for t in (q, k, v))".format(
            "q" in gradients(case) and bool(case["training"])
        )
    )
    if case["grad"] == "expanded":  # as out.sum().backward() passes it
        lines.append("dout = torch.ones((), **opts).expand({}, {}, {}, {})".format(b, h, sq, dv))
    elif case["grad"] == "transposed":
        lines.append("dout = torch.randn({}, {}, {}, {}, **opts).transpose(1, 2)".format(b, sq, h, dv))
    else:
        lines.append("dout = torch.randn({}, {}, {}, {}, **opts)".format(b, h, sq, dv))
    return lines


def masks(case):
    """Return the lines that make keep, bias, slopes and scale, all on the device of q."""
    mask, sq, sk, b = case["mask"], case["seq_len_q"], case["seq_len_kv"], case["batch_size"]
    lens_q, lens_k = lengths(case)
    varlen = case["layout"] == VARLEN
    lines = ["i, j = torch.arange({}, device=q.device)[:, None], torch.arange({}, device=q.device)".format(sq, sk)]
    terms = []
    if varlen:
        lines.append("lens_q, lens_k = {}, {}".format(lens_q, lens_k))
        lines.append("nq, nk = (torch.tensor(n, device=q.device)[:, None, None, None] for n in (lens_q, lens_k))")
        terms += ["(i < nq)", "(j < nk)"]
        diagonal = "nk - nq"
    else:
        diagonal = str(sk - sq)
    shift = {"causal": "0", "causal_bottom_right": diagonal, "window": diagonal, "window_both": diagonal}.get(mask)
    if shift is not None:
        at = "i" if shift == "0" else "i + {}".format(shift)
        if mask == "window_both":
            terms.append("(j >= {a} - {w}) & (j <= {a} + {w})".format(a=at, w=window(case)[0]))
        elif mask == "window":
            terms.append("(j >= {a} - {w}) & (j <= {a})".format(a=at, w=window(case)[0]))
        else:
            terms.append("(j <= {})".format(at))
    if mask == "padding" or mask == "padding_causal":
        lines.append("lens_k = {}".format(lens_k))
        terms.append("(j < torch.tensor(lens_k, device=q.device)[:, None, None, None])")
        terms += ["(j <= i)"] if mask == "padding_causal" else []
    if mask in ("boolean", "blind", "additive_extreme", "additive_inf"):
        lines.append("keep = torch.rand({}, 1, {}, {}, device=q.device) < 0.7".format(b, sq, sk))
        lines.append("keep[..., 0] = True")
        if mask == "blind":
            lines.append("keep[:, :, ::5] = False")
    elif terms:
        lines.append("keep = {}".format(" & ".join(terms)))
        if not varlen and mask not in ("padding", "padding_causal"):
            lines.append("keep = keep[None, None]")
    else:
        lines.append("keep = None")
    if mask == "additive":
        lines.append("bias = torch.randn({}, **opts)".format(_bias_size(case)))
    elif mask == "additive_low":  # the softmax does not change, the stored logarithm does
        lines.append("bias = torch.randn({}, **opts) - 100".format(_bias_size(case)))
    elif mask == "additive_float32":  # as generate_square_subsequent_mask returns it, whatever the dtype of q
        lines.append("bias = torch.randn({}, device=q.device)".format(_bias_size(case)))
    elif mask == "additive_extreme":  # the lowest number of the dtype, as in model code
        lines.append("bias = torch.zeros_like(keep, dtype=q.dtype).masked_fill(~keep, torch.finfo(q.dtype).min)")
    elif mask == "additive_inf":
        lines.append("bias = torch.zeros_like(keep, dtype=q.dtype).masked_fill(~keep, float('-inf'))")
    else:
        lines.append("bias = None")
    if learned(case):
        lines[-1] = "bias = ({}).requires_grad_()".format(lines[-1].partition(" = ")[2])
    if case["alibi"]:
        lines.append("slopes = torch.exp2(-8.0 / {h} * torch.arange(1, {h} + 1, device=q.device))".format(
            h=case["num_heads"]))  # fmt: skip
        lines.append("alibi = -slopes[:, None, None] * (i + ({}) - j).abs()".format(diagonal))
    else:
        lines.append("slopes = alibi = None")
    lines.append("scale = {!r}".format(case.get("scale") or case["head_dim_qk"] ** -0.5))
    return lines


def scores(case):
    """Return the shape of the scores: (batch, heads, queries, keys)."""
    return tuple(case[name] for name in ("batch_size", "num_heads", "seq_len_q", "seq_len_kv"))


def _bias_size(case):
    """Return the dimensions of the additive mask: those of the scores, or 1 where `bias_shape` says so."""
    full = zip(case["bias_shape"], scores(case))  # noqa: B905 - Python 3.8
    return ", ".join("1" if letter == "1" else str(size) for letter, size in full)


def learned(case):
    """Return whether the additive mask is a parameter, as a position bias is, and has a gradient."""
    return bool(case["bias_grad"] and case["training"] and case["mask"] in LEARNED)


def given(case):
    """Return the names of the tensors that a backend is given and must not change."""
    return ("q", "k", "v", "bias") if case["mask"].startswith("additive") else ("q", "k", "v")


def gradients(case):
    """Return the names of the tensors with a gradient: the bias `alone`, or q, k, v and a learned bias."""
    if not learned(case):
        return ("q", "k", "v")
    return ("bias",) if case["alone"] else ("q", "k", "v", "bias")


def window(case):
    """Return (left, right) of a sliding window, or None."""
    if case["mask"] not in ("window", "window_both"):
        return None
    size = case.get("window_size") or max(1, case["seq_len_kv"] // 5)
    return (size, 0 if case["mask"] == "window" else size)


PACK = (
    "pack = lambda t, n: torch.cat([t[b, :, :m].transpose(0, 1) for b, m in enumerate(n)])",
    "unpack = lambda t, n: torch.nn.utils.rnn.pad_sequence(t.split(n), batch_first=True).transpose(1, 2)",
    "cq, ck = (torch.tensor([sum(n[:b]) for b in range(len(n) + 1)], dtype=torch.int32, device=q.device)"
    " for n in (lens_q, lens_k))",
)


def other_grad(case):
    """Return the incoming gradient with another layout in memory: it fills caches that ignore the layout."""
    return "dout.contiguous()" if case["grad"] == "transposed" else "dout.transpose(1, 2).contiguous().transpose(1, 2)"


#: The reference in a few lines, by autograd in float64; `keep` may be None.
REFERENCE = (
    "r = [t.detach().double().requires_grad_() for t in (q, k, v)]",
    "n = q.shape[1] // k.shape[1]",
    "s = scale * r[0] @ r[1].repeat_interleave(n, 1).mT",
)


def reference(case):
    """Return the lines that make want = [out, dq, dk, dv] in float64, with the gradient of a learned bias."""
    lines = list(REFERENCE)
    bias = "bias.double()"
    if learned(case):
        lines[0], bias = lines[0].replace("(q, k, v)", "(q, k, v, bias)"), "r[3]"
    if case["softcap"]:
        lines.append("s = {c} * torch.tanh(s / {c})".format(c=case["softcap"]))
    if case["mask"].startswith("additive"):
        lines.append("s = s + {}".format(bias))
    if case["alibi"]:
        lines.append("s = s + alibi")
    lines.append("p = s.softmax(-1)")
    hides = case["mask"] != "no_mask" and not case["mask"].startswith("additive")
    if hides or case["layout"] == VARLEN:
        lines[-1] = "p = s.masked_fill(~keep, -1e300).softmax(-1) * keep"
    lines.append("ref = p @ r[2].repeat_interleave(n, 1)")
    leaves = "r" if "q" in gradients(case) else "r[3]"
    lines.append("want = [ref, *torch.autograd.grad(ref, {}, dout.double())]".format(leaves))
    return lines
