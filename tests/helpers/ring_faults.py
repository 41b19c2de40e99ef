"""A plain ring attention for context-parallel ranks, right, and with one planted fault each.

Every function takes this rank's (batch, heads, seq, dim) shards and gathers keys and values; autograd runs through an
all-gather whose backward sums what all ranks contribute.
"""

import itertools
import time

import torch
import torch.distributed as distributed


class _Gather(torch.autograd.Function):
    """Gather along the sequence; the backward pass reduces over the ranks, or loses a part where `lose` is set."""

    @staticmethod
    def forward(context, tensor, group, lose):
        context.group, context.lose, context.length = group, lose, tensor.shape[2]
        parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(parts, tensor.contiguous(), group=group)
        return torch.cat(parts, 2)

    @staticmethod
    def backward(context, grad):
        grad = grad.contiguous()
        rank = distributed.get_rank(context.group)
        if context.lose == "gradient" and rank == 1:
            grad = torch.zeros_like(grad)  # what this rank contributes to the keys of all is lost
        distributed.all_reduce(grad, group=context.group)
        return grad.narrow(2, rank * context.length, context.length), None, None


def _order(ranks, length, sharding):
    """Return the global position of every gathered key."""
    if sharding == "contiguous":
        return torch.arange(ranks * length)
    half = length // 2
    parts = []
    for rank in range(ranks):
        parts += [torch.arange(rank * half, (rank + 1) * half)]
        parts += [torch.arange((2 * ranks - 1 - rank) * half, (2 * ranks - rank) * half)]
    return torch.cat(parts)


def _attend(q, k, v, group, causal, scale, starts, window, sharding, fault):
    rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
    heads = q.shape[1] // k.shape[1]
    lose = "gradient" if fault == "lost_gradient" else ""
    keys, values = _Gather.apply(k, group, lose), _Gather.apply(v, group, lose)
    length = q.shape[2]
    if starts is None:
        order = _order(ranks, length, sharding)
    else:
        spans = list(itertools.pairwise(starts))
        local = [[first + _order(ranks, (last - first) // ranks, sharding) for first, last in spans]]
        order = torch.cat([part.view(ranks, -1)[number] for number in range(ranks) for part in local[0]])
    mine = order.view(ranks, length)[rank]
    seen = order.clone()
    if fault == "rank_order":
        seen = torch.cat(list(order.view(ranks, length).flip(0)))  # keys are believed to come from the other rank
    i, j = mine.view(-1, 1), seen.view(1, -1)
    keep = torch.ones(length, ranks * length, dtype=torch.bool)
    if causal:
        keep &= j <= i
    if window is not None:
        left, right = window
        keep &= (j >= i - left) if left >= 0 else True
        keep &= (j <= i + right) if right >= 0 else True
    if starts is not None:
        own = torch.zeros(starts[-1], dtype=torch.long)
        for first in starts[1:-1]:
            own[first:] += 1
        keep &= own[mine].view(-1, 1) == own[seen].view(1, -1)
    if fault == "dropped_chunk" and rank == ranks - 1:
        keep[:, : length // 4] = False  # the first part never arrived at the last rank
    keep = keep.to(q.device)
    keys, values = keys.repeat_interleave(heads, 1).float(), values.repeat_interleave(heads, 1).float()
    scores = (q.float() @ keys.transpose(-1, -2)) * scale
    p = scores.masked_fill(~keep, float("-inf")).softmax(-1).nan_to_num(0.0)
    out = p @ values
    if fault == "stale_buffer" and rank == 0:
        out = torch.cat([out[:, :, :1], out[:, :, :-1]], 2)
    return out.to(q.dtype)


def ring(q, k, v, group, causal, scale, starts, window, sharding):
    """Right."""
    return _attend(q, k, v, group, causal, scale, starts, window, sharding, "")


def rank_order(q, k, v, group, causal, scale, starts, window, sharding):
    """Keys are masked as if the ranks were in the opposite order."""
    return _attend(q, k, v, group, causal, scale, starts, window, sharding, "rank_order")


def dropped_chunk(q, k, v, group, causal, scale, starts, window, sharding):
    """The last rank does not see a chunk of the keys."""
    return _attend(q, k, v, group, causal, scale, starts, window, sharding, "dropped_chunk")


def lost_gradient(q, k, v, group, causal, scale, starts, window, sharding):
    """What rank 1 contributes to the gradients of keys and values is lost; the output is right."""
    return _attend(q, k, v, group, causal, scale, starts, window, sharding, "lost_gradient")


def stale_buffer(q, k, v, group, causal, scale, starts, window, sharding):
    """Rank 0 returns its rows one too late."""
    return _attend(q, k, v, group, causal, scale, starts, window, sharding, "stale_buffer")


def hang(q, k, v, group, causal, scale):
    """Rank 1 never takes part."""
    if distributed.get_rank(group) == 1:
        time.sleep(3600)
    return _attend(q, k, v, group, causal, scale, None, None, "contiguous", "")


def crash(q, k, v, group, causal, scale):
    """Rank 1 dies of a signal."""
    import ctypes

    if distributed.get_rank(group) == 1:
        ctypes.string_at(0)
    return _attend(q, k, v, group, causal, scale, None, None, "contiguous", "")


def raises(q, k, v, group, causal, scale):
    """Rank 1 raises; the others wait for it."""
    if distributed.get_rank(group) == 1:
        raise KeyError("shard")
    return _attend(q, k, v, group, causal, scale, None, None, "contiguous", "")
