"""How a sequence is divided among context-parallel ranks, and put together again.

`contiguous`: rank r holds the r-th part. `head_tail`: of twice as many parts rank r holds the r-th from the front and
the r-th from the back, so that a causal mask gives every rank the same work. `stripe`: rank r holds every n-th token
from the r-th on, of n ranks. A packed batch is divided sequence by sequence; `batch` divides it as one sequence.
"""

PATTERNS = ("contiguous", "head_tail", "stripe", "batch")


def positions(torch, length, rank, ranks, pattern, starts=None):
    """Return the positions that a rank holds, in the order in which it holds them."""
    if pattern == "batch":
        starts, pattern = None, "contiguous"
    if starts is not None:
        spans = zip(starts[:-1], starts[1:])  # noqa: B905, RUF007 - Python 3.8
        return torch.cat([first + positions(torch, last - first, rank, ranks, pattern) for first, last in spans])
    if pattern == "stripe":
        return torch.arange(rank, length, ranks)
    if pattern == "contiguous":
        parts, own = ranks, [rank]
    elif pattern == "head_tail":
        parts, own = 2 * ranks, [rank, 2 * ranks - 1 - rank]
    else:
        raise ValueError("unknown sharding {!r}".format(pattern))
    if length % parts:
        raise ValueError("{} tokens cannot be divided into {} parts".format(length, parts))
    size = length // parts
    return torch.cat([torch.arange(part * size, (part + 1) * size) for part in own])


def shard(torch, tensor, rank, ranks, pattern, starts=None):
    """Return a rank's part of a (batch, heads, seq, dim) tensor."""
    index = positions(torch, tensor.shape[2], rank, ranks, pattern, starts)
    return tensor.index_select(2, index.to(tensor.device)).contiguous()


def joined(torch, parts, pattern, starts=None):
    """Return the whole of the ranks' parts, which are in the order of the ranks."""
    whole = torch.cat(parts, 2)
    length, ranks = whole.shape[2], len(parts)
    order = torch.cat([positions(torch, length, rank, ranks, pattern, starts) for rank in range(ranks)])
    result = torch.empty_like(whole)
    result[:, :, order.to(whole.device)] = whole
    return result


def packed_starts(length, ranks, count=3):
    """Return the starts of `count` sequences of different length in a packed batch; each can be divided."""
    unit = 2 * ranks
    units = length // unit
    if units < count:
        raise ValueError("{} tokens are too few for {} sequences on {} ranks".format(length, count, ranks))
    cuts = sorted({0, units, *(max(1, units * part * part // (count * count)) for part in range(1, count))})
    return [cut * unit for cut in cuts]


def packed_mask(torch, starts, causal, window, device):
    """Return the boolean mask [1, 1, seq, seq] of a packed batch: queries see keys of their own sequence."""
    length = starts[-1]
    own = torch.zeros(length, dtype=torch.long)
    for first in starts[1:-1]:
        own[first:] += 1
    keep = (own.view(-1, 1) == own.view(1, -1)).to(device)
    i = torch.arange(length, device=device).view(-1, 1)
    j = torch.arange(length, device=device).view(1, -1)
    if causal:
        keep &= j <= i
    if window:
        left, right = window
        keep &= (j >= i - left) if left >= 0 else True
        keep &= (j <= i + right) if right >= 0 else True
    return keep.view(1, 1, length, length)
