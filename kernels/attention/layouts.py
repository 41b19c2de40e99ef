"""Layouts of q, k, v in memory: plain ones, and views of one fused projection. The logical order is always bhsd."""

from ..protocol import Unavailable


def laid_out(tensor, layout):
    """Return the same values as (batch, heads, seq, dim) with this layout in memory."""
    if layout == "bhsd":
        return tensor.contiguous()
    order = {"bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3)}[layout]
    back = [order.index(axis) for axis in range(4)]
    return tensor.permute(order).contiguous().permute(back)


FUSED = ("sb(h+2hg)d", "bs(h+2hg)d", "sbh3d", "bsh3d", "sbg(r+2)d", "bsg(r+2)d")


def fused_views(torch, layout, q, k, v):
    """Return (q, k, v) with the same values, as views of one fused projection with this layout in memory.

    `(h+2hg)`: all query heads, then all key heads, then all value heads (with h = hg also known as 3hd). `h3`: q, k, v
    of one head next to each other. `g(r+2)`: per group its r query heads, its key and its value. With more than one
    group such a projection yields its queries by reshape, which copies, so only k and v are views.
    """
    order = (2, 0, 1, 3) if layout.startswith("s") else (0, 2, 1, 3)
    b, h, s, d = q.shape
    g = k.shape[1]
    if layout.endswith("(h+2hg)d"):
        fused = laid_out(torch.cat([q, k, v], 1), "sbhd" if order[0] == 2 else "bshd")
        return fused[:, :h], fused[:, h : h + g], fused[:, h + g :]
    if layout.endswith("h3d"):
        if h != g:
            raise Unavailable("layout {} needs as many key heads as query heads".format(layout))
        parts = [q, k, v]
        fused = torch.stack([t.permute(order) for t in parts], 3).contiguous()
        back = [order.index(axis) for axis in range(4)]
        return tuple(fused.select(3, i).permute(back) for i in range(3))
    if layout.endswith("g(r+2)d"):
        grouped = torch.cat([q.reshape(b, g, h // g, s, d), k.unsqueeze(2), v.unsqueeze(2)], 2)
        fused = laid_out(grouped.reshape(b, -1, s, d), "sbhd" if order[0] == 2 else "bshd")
        fused = fused.unflatten(1, (g, h // g + 2))
        return fused[:, :, : h // g].reshape(b, h, s, d), fused[:, :, h // g], fused[:, :, h // g + 1]
    raise ValueError("unknown fused layout {!r}".format(layout))


def packed_strides(shape, layout):
    """Return the strides of a dense (batch, heads, seq, dim) tensor with this layout in memory."""
    b, h, s, d = shape
    return {
        "bhsd": (h * s * d, s * d, d, 1),
        "bshd": (s * h * d, d, h * d, 1),
        "sbhd": (h * d, d, b * h * d, 1),
    }[layout]


#: Layouts of TransformerEngine's names → the layout in memory here. Those of packed sequences are none of these.
PLAIN = {name: form for form in ("bshd", "sbhd", "bhsd") for name in (form, "{0}_{0}_{0}".format(form))}
PROJECTIONS = {
    "sb3hd": "sb(h+2hg)d", "bs3hd": "bs(h+2hg)d", "sbh3d": "sbh3d", "bsh3d": "bsh3d",
}  # fmt: skip


def layout_of(case):
    """Return the layout in memory of the job's q, k and v; raise Unavailable for one that this program cannot make."""
    named = case.get("qkv_layout") or "bshd_bshd_bshd"
    layout = PLAIN.get(named) or PROJECTIONS.get(named)
    if layout is None:
        raise Unavailable("this program does not lay out q, k and v as qkv_layout {}".format(named))
    if layout in FUSED or not case.get("qkv_interleaved"):
        return layout
    return ("sb" if layout == "sbhd" else "bs") + "(h+2hg)d"


def form_of(layout):
    """Return the plain layout of a layout: that of the output and its gradient."""
    return layout if layout not in FUSED else "sbhd" if layout.startswith("s") else "bshd"


def job_inputs(torch, case, layout, q, k, v):
    """Return (q, k, v) with the same values in this layout: copies, or views of one fused projection."""
    if layout not in FUSED:
        return tuple(laid_out(tensor, layout) for tensor in (q, k, v))
    if case["head_dim_qk"] != case["head_dim_v"] or case["seq_len_q"] != case["seq_len_kv"]:
        raise Unavailable(
            "q, k and v of one projection (qkv_interleaved) have one head dim and one length; here they are"
            " {head_dim_qk} / {head_dim_v} and {seq_len_q} / {seq_len_kv}".format(**case)
        )
    return fused_views(torch, layout, q, k, v)
