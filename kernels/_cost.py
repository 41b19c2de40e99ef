"""What a case costs beside what it needs: seconds against its arithmetic, peak memory against its tensors."""

import time

import _attention

_rates = {}


def needs(torch, case, device):
    """{flops, bytes}: the multiplications and additions that no backend gets around, and the tensors in and out."""
    heads, d, dv = case["num_heads"], case["head_dim_qk"], case["head_dim_v"]
    keep = _attention.keep_mask(torch, case, device)
    pairs = case["batch_size"] * case["seq_len_q"] * case["seq_len_kv"] if keep is None else int(keep.sum())
    per_pair = 2 * (d + dv)
    queries = case["batch_size"] * heads * case["seq_len_q"] * (d + dv)  # q and out
    keys = case["batch_size"] * case["num_kv_heads"] * case["seq_len_kv"] * (d + dv)  # k and v
    sides = 1
    if case["training"]:  # scores again, then dv, dp, dq, dk; and a gradient for each tensor
        per_pair, sides = per_pair + 2 * (3 * d + 2 * dv), 2
    size = {"float32": 4}.get(case["dtype"], 2)
    return {"flops": pairs * heads * per_pair, "bytes": sides * (queries + keys) * size}


def timed(torch, device, function, repeat):
    """Median seconds of `repeat` runs; the first call of all was somebody else's."""
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        function()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2] if times else None


def rate(torch, device, dtype):
    """Operations a second of a plain matrix product in this dtype here: the yardstick for seconds."""
    if (device, dtype) not in _rates:
        n = 4096 if device.startswith("cuda") else 256
        a, b = (torch.ones(n, n, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
        for _ in range(2):
            timed(torch, device, lambda: a @ b, 1)
        _rates[device, dtype] = 2 * n**3 / max(timed(torch, device, lambda: a @ b, 5), 1e-9)
    return _rates[device, dtype]


def measured(torch, case, device, function, tensors, repeat=3):
    """{seconds, peak_bytes, needs, times_flops, times_bytes} of a function that has run before.

    `times_flops`: how many times longer it takes than a matrix product of as many operations; `times_bytes`: how many
    times the memory of its own tensors it takes at its peak. A fall-back to plain arithmetic shows in both.
    """
    told = {"needs": needs(torch, case, device)}
    gpu = device.startswith("cuda")
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    told["seconds"] = timed(torch, device, function, repeat)
    if gpu:
        told["peak_bytes"] = torch.cuda.max_memory_allocated() - before
        given = sum(t.numel() * t.element_size() for t in tensors)
        told["times_bytes"] = round((told["peak_bytes"] + given) / max(1, told["needs"]["bytes"]), 2)
    if told["seconds"]:
        least = told["needs"]["flops"] / rate(torch, device, case["dtype"])
        told["times_flops"] = round(told["seconds"] / max(least, 1e-12), 2)
    return told
