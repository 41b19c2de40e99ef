"""What float32 alone makes of a case: the arithmetic of a healthy kernel, whose errors a kernel of that type may have.

Two kinds of product are in use: plain ones, and those of tensor cores, which take each number as the sum of two of 11
bits (memory-efficient kernels: CUTLASS, OpMultiplyAddFastF32). Both read backward's probabilities off the stored
logarithm of the sum of a row. That is rounded once or twice, which costs more than all the rest where scores are large;
how often and where to is the kernel's own, so what a rounding costs stands beside the two arithmetics.
"""

#: So many rows at least go into a product: with fewer, libraries add up in another order, and err less.
ROWS = 64


def ways(torch, made, softcap, training, tensor_cores):
    """What each arithmetic gives: a list of {out, dq, dk, dv, dscores}, the last before the scale and per head."""
    found = [_attention(torch, made, softcap, training, _product)]
    if tensor_cores:
        found.append(_attention(torch, made, softcap, training, _product_of_halves))
        found.append(_attention(torch, made, softcap, training, _exact, torch.float64, rounding=2.0**-24))
    return found


def _attention(torch, made, softcap, training, product, dtype=None, rounding=0.0):
    """`rounding`: of what relative size is the error of the stored logarithm, up in one row and down in the next."""
    q, k, v, dout = (made[name].detach().to(dtype or torch.float32) for name in ("q", "k", "v", "dout"))
    bias, keep, group, scale = made["bias"], made["keep"], q.shape[1] // k.shape[1], made["scale"]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores, slope = product(torch, q, k.mT) * scale, None
    if softcap:
        scores = torch.tanh(scores / softcap)
        slope = 1.0 - scores * scores
        scores = scores * softcap
    for term in (bias, made["alibi"]):
        scores = scores if term is None else scores + term.detach().to(scores.dtype)
    if keep is not None and bias is None:
        scores = scores.masked_fill(~keep, float("-inf"))
    got = {"out": product(torch, scores.softmax(-1).nan_to_num(0.0), v)}  # a row that sees nothing gives zero
    if not training:
        return got
    stored = scores.logsumexp(-1, keepdim=True)
    if rounding:
        stored[..., ::2, :] *= 1.0 + rounding
        stored[..., 1::2, :] *= 1.0 - rounding
    p = torch.exp(scores - stored).nan_to_num(0.0)
    ds = p * (product(torch, dout, v.mT) - (got["out"] * dout).sum(-1, keepdim=True))
    got["dscores"] = ds
    ds = ds * scale if slope is None else ds * scale * slope
    of_keys, of_values = product(torch, ds.mT, q), product(torch, p.mT, dout)
    if group > 1:
        of_keys, of_values = (t.unflatten(1, (-1, group)).sum(2) for t in (of_keys, of_values))
    return dict(got, dq=product(torch, ds, k), dk=of_keys, dv=of_values)


def _exact(torch, a, b):
    return a @ b


def _product(torch, a, b):
    rows, columns = a.shape[-2], b.shape[-1]
    return (_tall(torch, a) @ _tall(torch, b.mT).mT)[..., :rows, :columns]


def _tall(torch, tensor):
    missing = ROWS - tensor.shape[-2]
    if missing <= 0:
        return tensor
    return torch.cat([tensor, tensor[..., :1, :].expand(*tensor.shape[:-2], missing, -1)], -2)


def _product_of_halves(torch, a, b):
    (high_a, low_a), (high_b, low_b) = _halves(torch, a), _halves(torch, b)
    small = _product(torch, low_a, high_b) + _product(torch, high_a, low_b)
    return small + _product(torch, high_a, high_b)


def _halves(torch, tensor):
    high = _tf32(torch, tensor)
    return high, _tf32(torch, tensor - high)


def _tf32(torch, tensor):
    """The nearest numbers of 11 bits: the lowest 13 of the 24 are rounded off."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)
