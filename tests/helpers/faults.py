"""Attention functions with one planted fault each, called like torch's own. Run with `file:THIS:NAME`."""

import itertools
import os

import torch
from torch.nn.attention.bias import CausalBias
from torch.nn.functional import scaled_dot_product_attention as sdpa

_calls = itertools.count()
_last = {}


def healthy(q, k, v, **how):
    return sdpa(q, k, v, **how)


def wrong_stride(q, k, v, **how):
    """Reads k as if it lay in memory (batch, heads, seq, dim), as incident E does."""
    b, h, s, d = k.shape
    if k.is_contiguous() or 0 in k.stride():
        return sdpa(q, k, v, **how)
    first = k.as_strided((b, h, s, d), (h * s * d, s * d, d, 1)) if _room(k, h * s * d * b) else k.flip(2)
    return sdpa(q, first, v, **how)


def _room(t, count):
    return t.untyped_storage().nbytes() // t.element_size() - t.storage_offset() >= count


def wrong_alignment(q, k, v, attn_mask=None, is_causal=False, **how):
    """Takes the causal mask for bottom-right."""
    if is_causal:
        i = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
        attn_mask = torch.arange(k.shape[2], device=q.device) <= i
    return sdpa(q, k, v, attn_mask=attn_mask, **how)


def dropped_tail(q, k, v, attn_mask=None, is_causal=False, **how):
    """Forgets the keys of the last tile where the length is no multiple of 64."""
    tail = k.shape[2] % 64
    if k.shape[2] < 64 or not tail or isinstance(attn_mask, CausalBias):
        return sdpa(q, k, v, attn_mask=attn_mask, is_causal=is_causal, **how)
    keep = torch.arange(k.shape[2], device=q.device) < k.shape[2] - tail
    keep = keep.expand(q.shape[2], -1)
    if is_causal:
        keep = keep & torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None:
        keep = keep & attn_mask if attn_mask.dtype == torch.bool else attn_mask.masked_fill(~keep, float("-inf"))
    return sdpa(q, k, v, attn_mask=keep, **how)


def scale_off(q, k, v, **how):
    """1 % too steep."""
    how["scale"] = 1.01 * (how.get("scale") or q.shape[-1] ** -0.5)
    return sdpa(q, k, v, **how)


def swapped_heads(q, k, v, **how):
    """Gives the first group of queries the last key head."""
    if q.shape[1] == k.shape[1] or k.shape[1] == 1:
        return sdpa(q, k, v, **how)
    return sdpa(q, k.flip(1), v.flip(1), **how)


def stale_output(q, k, v, **how):
    """Now and then returns what was left from the call before, where shapes allow."""
    out = sdpa(q, k, v, **how)
    key = (tuple(out.shape), out.dtype)
    old, _last[key] = _last.get(key), out.detach().clone()
    if old is None or next(_calls) % 2:
        return out
    return out + (old - out).detach()


def unwritten_rows(q, k, v, **how):
    """Leaves the last rows as they were in fresh memory."""
    out = sdpa(q, k, v, **how)
    if out.shape[2] % 64 in (0, 1):
        return out
    left = torch.full_like(out, float("nan"))
    return torch.cat([out[:, :, :-1], left[:, :, -1:]], 2)


class _NanRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return t.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        grad[-1, -1, -1] = float("nan")
        return grad


def nan_gradient(q, k, v, **how):
    """One row of dk is not a number."""
    return sdpa(q, _NanRow.apply(k), v, **how)


class _Jitter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return t.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 + 1e-3 * (next(_calls) % 2)) if grad.dtype == torch.float32 else grad * (1 + next(_calls) % 2)


def varying_output(q, k, v, **how):
    """The last bits differ from call to call."""
    out = sdpa(q, k, v, **how)
    return out * (1 + (next(_calls) % 2) * 2 * torch.finfo(out.dtype).eps)


def varying_gradient(q, k, v, **how):
    """A gradient that is another one every second time."""
    return sdpa(_Jitter.apply(q), k, v, **how)


_layouts = {}


class _Remembered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return t.clone()

    @staticmethod
    def backward(ctx, grad):
        first = _layouts.setdefault((tuple(grad.shape), grad.dtype), grad.stride())
        if first == grad.stride() or 0 in first or 0 in grad.stride() or grad.storage_offset():
            return grad
        return grad.as_strided(grad.shape, first)


def remembers_layout(q, k, v, **how):
    """Reads every gradient as the first of its shape lay, as a cache without the strides in its key does."""
    return _Remembered.apply(sdpa(q, k, v, **how))


class _Kept(_Remembered):
    @staticmethod
    def backward(ctx, grad):
        torch._planted = getattr(torch, "_planted", {})  # outlives the case, as a library's cache does
        first = torch._planted.setdefault((tuple(grad.shape), grad.dtype), grad.stride())
        if first == grad.stride() or 0 in first or 0 in grad.stride() or grad.storage_offset():
            return grad
        return grad.as_strided(grad.shape, first)


def remembers_for_good(q, k, v, **how):
    """The same in a cache of the process: a case of that shape fails ever after."""
    return _Kept.apply(sdpa(q, k, v, **how))


class _Off(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, forward, backward):
        ctx.off = backward
        return _off(t, forward)

    @staticmethod
    def backward(ctx, grad):
        return _off(grad, ctx.off), None, None


#: What a healthy kernel errs by, of the size of the tensor: output, gradients.
HEALTHY = {torch.bfloat16: (2.2e-3, 2.7e-3), torch.float16: (2.7e-4, 3.4e-4), torch.float32: (4e-7, 4e-7)}


def _off(t, times):
    """t, off by so many times what is healthy: the same everywhere, in no direction."""
    if not times:
        return t.clone()
    wave = torch.cos(torch.arange(t.numel(), device=t.device, dtype=torch.float64).square_() * 0.754877666)
    size = times * t.double().norm() / max(1, t.numel()) ** 0.5 * 2**0.5
    return (t.double() + size * wave.view(t.shape)).to(t.dtype)


def off_out(q, k, v, **how):
    """An output that is off by three times what is healthy."""
    return _Off.apply(sdpa(q, k, v, **how), 3 * HEALTHY[q.dtype][0], 0)


def off_dq(q, k, v, **how):
    return sdpa(_Off.apply(q, 0, 3 * HEALTHY[q.dtype][1]), k, v, **how)


def off_dk(q, k, v, **how):
    return sdpa(q, _Off.apply(k, 0, 3 * HEALTHY[q.dtype][1]), v, **how)


def off_dv(q, k, v, **how):
    return sdpa(q, k, _Off.apply(v, 0, 3 * HEALTHY[q.dtype][1]), **how)


def writes_input(q, k, v, **how):
    out = sdpa(q, k, v, **how)
    with torch.no_grad():
        q.data[0, 0, 0] += 1
    return out


def crashes(q, k, v, **how):
    """Dies where keys are long."""
    if k.shape[2] > 200:
        os.kill(os.getpid(), 11)
    return sdpa(q, k, v, **how)


def hangs(q, k, v, **how):
    if k.shape[2] == 65:
        import time

        time.sleep(3600)
    return sdpa(q, k, v, **how)


def forgets_dropout(q, k, v, dropout_p=0.0, **how):
    return sdpa(q, k, v, **how)


class _Redrawn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, mask, p, how):
        ctx.save_for_backward(q, k, v)
        ctx.mask, ctx.p, ctx.how = mask, p, how
        return sdpa(q, k, v, attn_mask=mask, dropout_p=p, **how)

    @staticmethod
    def backward(ctx, dout):
        with torch.enable_grad():
            kept = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            mask = ctx.mask
            if ctx.needs_input_grad[3]:
                mask = mask.detach().requires_grad_()
                kept.append(mask)
            out = sdpa(*kept[:3], attn_mask=mask, dropout_p=ctx.p, **ctx.how)
        return (*torch.autograd.grad(out, kept, dout), *[None] * (6 - len(kept)))


def redraws_dropout(q, k, v, attn_mask=None, dropout_p=0.0, **how):
    """Backward drops others than forward."""
    return _Redrawn.apply(q, k, v, attn_mask, dropout_p, how)
