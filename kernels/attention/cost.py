"""The cost of a case compared with what it needs: time against its arithmetic, peak memory against its tensors."""

from .clock import make_room, matrix_rate, seconds_of, timed
from .tensors import keep_mask


def needs(torch, case, device):
    """Return {flops, bytes}: the operations that no backend can avoid, and the size of inputs and outputs."""
    heads, d, dv = case["num_heads"], case["head_dim_qk"], case["head_dim_v"]
    keep = keep_mask(torch, case, device)
    pairs = case["batch_size"] * case["seq_len_q"] * case["seq_len_kv"] if keep is None else int(keep.sum())
    per_pair = 2 * (d + dv)
    queries = case["batch_size"] * heads * case["seq_len_q"] * (d + dv)  # q and out
    keys = case["batch_size"] * case["num_kv_heads"] * case["seq_len_kv"] * (d + dv)  # k and v
    sides = 1
    if case["training"]:  # scores again, then dv, dp, dq, dk; and a gradient for each tensor
        per_pair, sides = per_pair + 2 * (3 * d + 2 * dv), 2
    size = {"float32": 4}.get(case["dtype"], 2)
    return {"flops": pairs * heads * per_pair, "bytes": sides * (queries + keys) * size}


def measure_cost(torch, case, device, function, inputs, repeat=3):
    """Return {seconds, peak_bytes, needs, times_flops, times_bytes} of a function that has run before.

    `seconds`: the median of `repeat` runs. `times_flops`: its time over that of a matrix product with as many
    operations. `times_bytes`: its peak memory over the memory of its own tensors. A fall-back to plain arithmetic shows
    in both.
    """
    cost, seconds = {"needs": needs(torch, case, device)}, 0.0
    if device.startswith("cuda"):
        make_room(torch, device)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        _, seconds = seconds_of(torch, device, function)
        cost["peak_bytes"] = torch.cuda.max_memory_allocated() - before
        given = sum(t.numel() * t.element_size() for t in inputs)
        cost["times_bytes"] = round((cost["peak_bytes"] + given) / max(1, cost["needs"]["bytes"]), 2)
    if repeat:
        cost["seconds"] = timed(torch, device, function, seconds, repeat).median * 1e-3
        least = cost["needs"]["flops"] / matrix_rate(torch, device, case["dtype"])
        cost["times_flops"] = round(cost["seconds"] / max(least, 1e-12), 2)
    return cost
