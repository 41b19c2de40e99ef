"""The private functions of flash-attn 2.8 with its signatures, in float64: output, log-sum-exp and gradients."""

import torch


def _keep(length_q, length_k, causal, left, right):
    """Return which keys a query sees; the mask and the window end at the bottom-right corner, as in flash-attn."""
    i = torch.arange(length_q).view(-1, 1) + length_k - length_q
    j = torch.arange(length_k).view(1, -1)
    right = 0 if causal else right
    keep = torch.ones(length_q, length_k, dtype=torch.bool)
    keep &= (j >= i - left) if left >= 0 else True
    keep &= (j <= i + right) if right >= 0 else True
    return keep


def _scores(q, k, scale, keep):
    """Return the masked scores (heads, query, key) of one sequence with (tokens, heads, dim) tensors."""
    k = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    return scores.masked_fill(~keep, float("-inf"))


def _one_forward(q, k, v, scale, keep):
    scores = _scores(q, k, scale, keep)
    lse = scores.logsumexp(-1)
    p = torch.exp(scores - lse.unsqueeze(-1)).nan_to_num(0.0)
    v = v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)
    return torch.einsum("hqk,khd->qhd", p, v).to(q.dtype), lse.float()


def _one_backward(dout, q, k, v, out, lse, scale, keep):
    group = q.shape[1] // k.shape[1]
    p = torch.exp(_scores(q, k, scale, keep) - lse.double().unsqueeze(-1)).nan_to_num(0.0)
    wide_k, wide_v = (tensor.double().repeat_interleave(group, 1) for tensor in (k, v))
    delta = (dout.double() * out.double()).sum(-1).transpose(0, 1).unsqueeze(-1)
    ds = p * (torch.einsum("qhd,khd->hqk", dout.double(), wide_v) - delta) * scale
    dq = torch.einsum("hqk,khd->qhd", ds, wide_k)
    dk = torch.einsum("hqk,qhd->khd", ds, q.double()).unflatten(1, (-1, group)).sum(2)
    dv = torch.einsum("hqk,qhd->khd", p, dout.double()).unflatten(1, (-1, group)).sum(2)
    return dq, dk, dv


def _flash_attn_forward(
    q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
    return_softmax,
):  # fmt: skip
    keep = _keep(q.shape[1], k.shape[1], causal, window_size_left, window_size_right)
    pairs = [_one_forward(*one, softmax_scale, keep) for one in zip(q, k, v)]  # noqa: B905 - Python 3.8
    out, lse = (torch.stack(parts) for parts in zip(*pairs))  # noqa: B905
    return out, lse, None, None


def _flash_attn_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
    window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
):  # fmt: skip
    keep = _keep(q.shape[1], k.shape[1], causal, window_size_left, window_size_right)
    for number in range(q.shape[0]):
        tensors = (tensor[number] for tensor in (dout, q, k, v, out, softmax_lse))
        grads = _one_backward(*tensors, softmax_scale, keep)
        for place, grad in zip((dq, dk, dv), grads):  # noqa: B905
            place[number].copy_(grad)
    return softmax_lse


def _spans(cumulated):
    ends = [int(value) for value in cumulated]
    return list(zip(ends[:-1], ends[1:]))  # noqa: B905, RUF007


def _flash_attn_varlen_forward(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
    window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False,
    block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False,
):  # fmt: skip
    outs, lses = [], []
    for (a, b), (c, d) in zip(_spans(cu_seqlens_q), _spans(cu_seqlens_k)):  # noqa: B905
        keep = _keep(b - a, d - c, causal, window_size_left, window_size_right)
        out, lse = _one_forward(q[a:b], k[c:d], v[c:d], softmax_scale, keep)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses, 1), None, None


def _flash_attn_varlen_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
    softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
    zero_tensors=False,
):  # fmt: skip
    for (a, b), (c, d) in zip(_spans(cu_seqlens_q), _spans(cu_seqlens_k)):  # noqa: B905
        keep = _keep(b - a, d - c, causal, window_size_left, window_size_right)
        grads = _one_backward(dout[a:b], q[a:b], k[c:d], v[c:d], out[a:b], softmax_lse[:, a:b], softmax_scale, keep)
        for place, grad, (first, last) in zip((dq, dk, dv), grads, ((a, b), (c, d), (c, d))):  # noqa: B905
            place[first:last].copy_(grad)
    return softmax_lse
