"""What correct float32 kernels return for a problem: one result for each arithmetic in use.

Two kinds of product are in use: plain ones, and those of tensor cores, which split each number into two of 11 bits
(memory-efficient kernels: CUTLASS, OpMultiplyAddFastF32). Both compute backward's probabilities from the stored
logarithm of the row sum. That logarithm is rounded once or twice, which costs more than everything else where scores
are large. How it is rounded is up to the kernel, so its cost is a result of its own.
"""

#: Products have at least this many rows: with fewer, libraries add in another order and err less.
ROWS = 64


def results(torch, problem, backward, tensor_cores):
    """Return a list of {out, dq, dk, dv, dscores}; `dscores` is per query head and unscaled."""
    made = [_attention(torch, problem, backward, _product)]
    if tensor_cores:
        made.append(_attention(torch, problem, backward, _product_of_halves))
        made.append(_attention(torch, problem, backward, _exact, torch.float64, rounding=2.0**-24))
    return made


def _attention(torch, problem, backward, product, dtype=None, rounding=0.0):
    """Compute attention; `rounding` is the relative error of the stored logarithm, alternating in sign by row."""
    q, k, v, dout = (problem[name].detach().to(dtype or torch.float32) for name in ("q", "k", "v", "dout"))
    bias, keep, softcap = problem.get("bias"), problem.get("keep"), problem.get("softcap")
    group, scale = q.shape[1] // k.shape[1], problem["scale"]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores, slope = product(torch, q, k.mT) * scale, None
    if softcap:
        scores = torch.tanh(scores / softcap)
        slope = 1.0 - scores * scores
        scores = scores * softcap
    for term in (bias, problem.get("alibi")):
        scores = scores if term is None else scores + term.detach().to(scores.dtype)
    if keep is not None and bias is None:
        scores = scores.masked_fill(~keep, float("-inf"))
    got = {"out": product(torch, scores.softmax(-1).nan_to_num(0.0), v)}  # a row without keys gives zero
    if not backward:
        return got
    stored = scores.logsumexp(-1, keepdim=True)
    if rounding:
        stored[..., ::2, :] *= 1.0 + rounding
        stored[..., 1::2, :] *= 1.0 - rounding
    p = torch.exp(scores - stored).nan_to_num(0.0)
    ds = p * (product(torch, dout, v.mT) - (got["out"] * dout).sum(-1, keepdim=True))
    got["dscores"] = ds
    ds = ds * scale if slope is None else ds * scale * slope
    dk, dv = product(torch, ds.mT, q), product(torch, p.mT, dout)
    if group > 1:
        dk, dv = (t.unflatten(1, (-1, group)).sum(2) for t in (dk, dv))
    return dict(got, dq=product(torch, ds, k), dk=dk, dv=dv)


def _exact(torch, a, b):
    return a @ b


def _product(torch, a, b):
    rows, columns = a.shape[-2], b.shape[-1]
    return (_padded(torch, a) @ _padded(torch, b.mT).mT)[..., :rows, :columns]


def _padded(torch, tensor):
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
    """Round to the nearest numbers of 11 bits: drop the lowest 13 of 24."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)
