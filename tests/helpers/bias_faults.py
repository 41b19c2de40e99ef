"""Attention functions whose gradient of the additive mask has one planted fault each. Run with `file:THIS:NAME`."""

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa


class _Through(torch.autograd.Function):
    """The mask as it is; its gradient as the fault makes it."""

    @staticmethod
    def forward(ctx, bias, change):
        ctx.change = change
        return bias.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.change(grad), None


def _with(q, k, v, attn_mask, change, how):
    if attn_mask is not None and attn_mask.requires_grad:
        full = attn_mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        attn_mask = _Through.apply(full, change)
    return sdpa(q, k, v, attn_mask=attn_mask, **how)


def healthy(q, k, v, **how):
    return sdpa(q, k, v, **how)


def first_head_alone(q, k, v, attn_mask=None, **how):
    """Forgets to add up what the heads share."""

    def change(grad):
        first = torch.zeros_like(grad)
        first[:, :1] = grad[:, :1]
        return first

    return _with(q, k, v, attn_mask, change, how)


def tail_lost(q, k, v, attn_mask=None, **how):
    """Leaves out the keys beyond the last multiple of 8."""

    def change(grad):
        grad = grad.clone()
        grad[..., grad.shape[-1] // 8 * 8 :] = 0
        return grad

    return _with(q, k, v, attn_mask, change, how)


def scaled(q, k, v, attn_mask=None, **how):
    """Gives the gradient of the scores before they are scaled."""
    return _with(q, k, v, attn_mask, lambda grad: grad * q.shape[-1] ** -0.5, how)


def off_dbias(q, k, v, attn_mask=None, **how):
    """Three times further from the truth than one rounding to the type."""

    def change(grad):
        eps = torch.finfo(grad.dtype).eps
        sign = torch.ones_like(grad)
        sign[..., ::2] = -1
        return grad * (1 + 3 * 0.42 * eps * 2 * sign)

    return _with(q, k, v, attn_mask, change, how)


def writes_bias(q, k, v, attn_mask=None, **how):
    """Uses the mask's memory as its own."""
    out = sdpa(q, k, v, attn_mask=attn_mask, **how)
    if attn_mask is not None:
        attn_mask.data[..., -1] += 1
    return out
