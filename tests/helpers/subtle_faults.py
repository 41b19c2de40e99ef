"""Attention functions with one subtle fault each, as real kernels have had them. Run with `file:THIS:NAME`.

Each is right for most cases: it shows only where a length, mask, layout, type or group of heads requires it.
"""

import itertools

import torch
from torch.nn.attention.bias import CausalBias
from torch.nn.functional import scaled_dot_product_attention as sdpa

TILE = 64
_calls = itertools.count()


def _seen(q, k, attn_mask, is_causal):
    """(boolean mask or None, additive mask or None) of what was requested."""
    rows, columns = q.shape[2], k.shape[2]
    if is_causal:
        return torch.ones(rows, columns, dtype=torch.bool, device=q.device).tril(), None
    if isinstance(attn_mask, CausalBias):
        return torch.ones(rows, columns, dtype=torch.bool, device=q.device).tril(columns - rows), None
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return attn_mask, None
    return None, attn_mask


def _attend(q, k, v, keep, bias, **how):
    if keep is not None and bias is not None:
        bias = bias.masked_fill(~keep, float("-inf"))
    return sdpa(q, k, v, attn_mask=keep if bias is None else bias, **how)


class _Behind(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, change):
        ctx.change = change
        return t.view_as(t)

    @staticmethod
    def backward(ctx, grad):
        return ctx.change(grad), None


def behind(t, change):
    """`t`, whose gradient is changed on its way back."""
    return _Behind.apply(t, change)


# Masks


def causal_off_at_seam(q, k, v, attn_mask=None, is_causal=False, **how):
    """The last row of each tile sees one key too many."""
    keep, bias = _seen(q, k, attn_mask, is_causal)
    if is_causal or isinstance(attn_mask, CausalBias):
        ahead = keep.roll(1, -1)
        ahead[:, 0] = True
        seam = torch.arange(q.shape[2], device=q.device) % TILE == TILE - 1
        keep = keep | (ahead & seam[:, None])
    return _attend(q, k, v, keep, bias, **how)


def decodes_from_the_first(q, k, v, attn_mask=None, is_causal=False, **how):
    """One query, causal to the bottom right: it sees the first key alone instead of all."""
    keep, bias = _seen(q, k, attn_mask, is_causal)
    if isinstance(attn_mask, CausalBias) and q.shape[2] == 1:
        keep = keep & (torch.arange(k.shape[2], device=q.device) == 0)
    return _attend(q, k, v, keep, bias, **how)


def mask_of_batch_0(q, k, v, attn_mask=None, is_causal=False, **how):
    """The first sequence's mask for all."""
    keep, bias = (t if t is None or t.dim() < 4 else t[:1] for t in _seen(q, k, attn_mask, is_causal))
    return _attend(q, k, v, keep, bias, **how)


def bias_of_head_0(q, k, v, attn_mask=None, is_causal=False, **how):
    """The first head's bias for all."""
    keep, bias = _seen(q, k, attn_mask, is_causal)
    return _attend(q, k, v, keep, bias if bias is None or bias.dim() < 4 else bias[:, :1], **how)


def bias_transposed(q, k, v, attn_mask=None, is_causal=False, **how):
    """An additive mask read by columns; where it is not square that is seen and put right."""
    keep, bias = _seen(q, k, attn_mask, is_causal)
    square = bias is not None and bias.shape[-1] == bias.shape[-2]
    return _attend(q, k, v, keep, bias.mT if square else bias, **how)


def bias_scaled(q, k, v, attn_mask=None, is_causal=False, **how):
    """The bias is added before the scores are scaled."""
    keep, bias = _seen(q, k, attn_mask, is_causal)
    bias = bias if bias is None else bias * (how.get("scale") or q.shape[-1] ** -0.5)
    return _attend(q, k, v, keep, bias, **how)


def mean_of_nothing(q, k, v, attn_mask=None, is_causal=False, **how):
    """A row that sees no key gets the mean of all values."""
    keep, bias = _seen(q, k, attn_mask, is_causal)
    return _attend(q, k, v, keep if keep is None else keep | ~keep.any(-1, keepdim=True), bias, **how)


# Heads, dims and scale


def groups_interleaved(q, k, v, **how):
    """Query head h goes with key head h modulo their number."""
    group = q.shape[1] // k.shape[1]
    return sdpa(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1), **how)


def scale_of_v(q, k, v, **how):
    """1 / sqrt of the values' head dim."""
    how["scale"] = how.get("scale") or v.shape[-1] ** -0.5
    return sdpa(q, k, v, **how)


def scale_of_padded(q, k, v, **how):
    """1 / sqrt of the head dim that the kernel pads to."""
    how["scale"] = how.get("scale") or (-(-q.shape[-1] // 32) * 32) ** -0.5
    return sdpa(q, k, v, **how)


def scale_ignored(q, k, v, scale=None, **how):
    """Always 1 / sqrt of the head dim, whatever scale is requested."""
    return sdpa(q, k, v, **how)


def odd_dims_cut(q, k, v, **how):
    """Where the head dim is an odd multiple of 8, the last 8 numbers of q are not read."""
    if q.shape[-1] % 16 == 8:
        how["scale"] = how.get("scale") or q.shape[-1] ** -0.5
        q, k = q[..., :-8], k[..., :-8]
    return sdpa(q, k, v, **how)


def last_odd_row(q, k, v, **how):
    """The last query of an odd length gets its neighbour's row."""
    out = sdpa(q, k, v, **how)
    if out.shape[2] % 2 == 0 or out.shape[2] < 3:
        return out
    return torch.cat([out[:, :, :-1], out[:, :, -2:-1]], 2)


def last_split_lost(q, k, v, attn_mask=None, is_causal=False, **how):
    """One query among many keys: the keys are split among blocks, and what the last one found is not added."""
    keep, bias = _seen(q, k, attn_mask, is_causal)
    if q.shape[2] == 1 and k.shape[2] > 2 * TILE:
        within = torch.arange(k.shape[2], device=q.device) < k.shape[2] // TILE * TILE
        keep = within[None] if keep is None else keep & within
    return _attend(q, k, v, keep, bias, **how)


# Where tensors are


def _as_if(t, strides, offset=None):
    """What is read where the strides, or the place of the first number, are taken for others; t if that is outside."""
    offset = t.storage_offset() if offset is None else offset
    last = offset + sum((size - 1) * stride for size, stride in zip(t.shape, strides, strict=True))
    return t.as_strided(t.shape, strides, offset) if last < t.untyped_storage().nbytes() // t.element_size() else t


def offset_ignored(q, k, v, **how):
    """k is read from where its storage begins."""
    return sdpa(q, _as_if(k, k.stride(), 0), v, **how)


def rows_side_by_side(q, k, v, **how):
    """Rows of v are taken to follow one another without a gap, where heads are not between them."""
    gap = v.shape[-1] < v.stride(2) < 2 * v.shape[-1]
    return sdpa(q, k, _as_if(v, (*v.stride()[:2], v.shape[-1], 1)) if gap else v, **how)


def gradient_expanded(q, k, v, **how):
    """The gradient of an expanded key has the key's strides: all heads write to one place, the last one stays."""

    def last(grad):
        return grad[:, -1:].expand_as(grad).clone()

    return sdpa(q, behind(k, last) if k.stride(1) == 0 and k.shape[1] > 1 else k, v, **how)


def gradient_taken_for_dense(q, k, v, **how):
    """The incoming gradient is read as if its heads lay one after the other."""
    out = sdpa(q, k, v, **how)
    return behind(out, lambda grad: grad if 0 in grad.stride() else _as_if(grad, torch.empty(grad.shape).stride()))


# Gradients


def dk_misses_a_head(q, k, v, **how):
    """dk lacks what the last query head of each group adds."""
    group = q.shape[1] // k.shape[1]
    if group == 1:
        return sdpa(q, k, v, **how)
    how["enable_gqa"] = False
    wide = k.repeat_interleave(group, 1)
    lacks = (torch.arange(wide.shape[1], device=q.device) % group == group - 1)[:, None, None]
    wide = behind(wide, lambda grad: grad.masked_fill(lacks, 0))
    return sdpa(q, wide, v.repeat_interleave(group, 1), **how)


def far_keys_lost_in_dq(q, k, v, **how):
    """dq is zero where keys are more than 1024."""
    return sdpa(behind(q, torch.zeros_like) if k.shape[2] > 1024 else q, k, v, **how)


def _by_hand(q, k, v, attn_mask, is_causal, scale, enable_gqa=False, dropout_p=0.0, exp=None, lse=None):
    """In float32, step by step; `lse` changes the logarithm that backward makes the probabilities from."""
    if dropout_p:
        return sdpa(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    keep, bias = _seen(q, k, attn_mask, is_causal)
    group = q.shape[1] // k.shape[1]
    wide = [t.repeat_interleave(group, 1).float() for t in (k, v)]
    s = (q.float() @ wide[0].mT) * (scale or q.shape[-1] ** -0.5)
    s = s if bias is None else s + bias.float()
    s = s if keep is None else s.masked_fill(~keep, float("-inf"))
    if exp is not None:
        return (exp(s) @ wide[1]).to(q.dtype)
    total = s.detach().logsumexp(-1, keepdim=True)
    p = _Softmax.apply(s, total, lse(total))
    return (p @ wide[1]).to(q.dtype)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, s, total, kept):
        ctx.save_for_backward(s, kept)
        return (s - total).exp().nan_to_num(0.0)

    @staticmethod
    def backward(ctx, grad):
        s, kept = ctx.saved_tensors
        p = (s - kept).exp().nan_to_num(0.0)
        return p * (grad - (p * grad).sum(-1, keepdim=True)), None, None


def logsumexp_in_half(q, k, v, attn_mask=None, is_causal=False, scale=None, **how):
    """Forward hands backward the logarithm of its sums in the type of the inputs."""
    return _by_hand(q, k, v, attn_mask, is_causal, scale, lse=lambda total: total.to(q.dtype).float(), **how)


def largest_not_taken_off(q, k, v, attn_mask=None, is_causal=False, scale=None, **how):
    """Exponentials of the scores as they are: nothing is left of low ones, and high ones are infinite."""

    def exp(s):
        raised = s.exp()
        return (raised / raised.sum(-1, keepdim=True)).masked_fill((s == float("-inf")).all(-1, keepdim=True), 0.0)

    return _by_hand(q, k, v, attn_mask, is_causal, scale, exp=exp, **how)


def sums_not_rescaled(q, k, v, attn_mask=None, is_causal=False, scale=None, **how):
    """Where a later tile's largest score is far above the first one's, the sum so far is not brought to its size."""

    def exp(s):
        first, later = s[..., :TILE].amax(-1, keepdim=True), s.amax(-1, keepdim=True)
        jumps = (later - first > 6.0) & first.isfinite()
        raised = (s - later).exp().nan_to_num(0.0)
        early = torch.arange(s.shape[-1], device=s.device) < TILE
        raised = torch.where(jumps & early, (s - first).exp(), raised)
        return raised / raised.sum(-1, keepdim=True).clamp_min(1e-30)

    return _by_hand(q, k, v, attn_mask, is_causal, scale, exp=exp, **how)


def dq_by_atomics(q, k, v, **how):
    """dq is summed up in another order each time, also where determinism is requested."""
    turn = next(_calls) % 2
    return sdpa(behind(q, lambda grad: grad * (1 + turn * 2 * torch.finfo(grad.dtype).eps)), k, v, **how)


# Numbers


def float16_by_bfloat16(q, k, v, **how):
    """float16 goes through a kernel that was compiled for bfloat16."""
    if q.dtype != torch.float16:
        return sdpa(q, k, v, **how)
    if how.get("attn_mask") is not None and how["attn_mask"].dtype == torch.float16:
        how["attn_mask"] = how["attn_mask"].bfloat16()
    return sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16(), **how).half()


def float32_by_tensor_cores(q, k, v, **how):
    """float32 is multiplied with ten bits."""
    if q.dtype != torch.float32:
        return sdpa(q, k, v, **how)
    return sdpa(*((t.view(torch.int32) & -8192).view(torch.float32) if not t.requires_grad else _Cut.apply(t)
                  for t in (q, k, v)), **how)  # fmt: skip


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return (t.contiguous().view(torch.int32) & -8192).view(torch.float32)

    @staticmethod
    def backward(ctx, grad):
        return grad


# Dropout


def dropout_twice_in_dv(q, k, v, dropout_p=0.0, **how):
    """dv is divided by the keep rate twice."""
    return sdpa(q, k, behind(v, lambda grad: grad / (1 - dropout_p)), dropout_p=dropout_p, **how)


def dropout_twice_in_dq(q, k, v, dropout_p=0.0, **how):
    """dq is divided by the keep rate twice."""
    return sdpa(behind(q, lambda grad: grad / (1 - dropout_p)), k, v, dropout_p=dropout_p, **how)


def dropout_not_made_up_for(q, k, v, dropout_p=0.0, **how):
    """What is kept is not divided by the keep rate."""
    return sdpa(q, k, v, dropout_p=dropout_p, **how) * (1 - dropout_p)


def dropout_rate_in_eighths(q, k, v, dropout_p=0.0, **how):
    """The rate is held in three bits."""
    return sdpa(q, k, v, dropout_p=-(-dropout_p * 8 // 1) / 8 if dropout_p else 0.0, **how)
