"""The masks and tensors of a workload, logically (batch, heads, seq, dim)."""

from ..protocol import Unavailable
from .workload import has_window


def lengths(torch, case):
    """Return the keys that count in each sequence, for padding masks: all in the first, fewer in the others."""
    full = case["seq_len_kv"]
    return torch.tensor([max(1, full - index * (full // 3 + 1)) for index in range(case["batch_size"])])


def keep_mask(torch, case, device):
    """Return a boolean mask [batch, 1, seq_q, seq_kv], True where a query sees a key; None if it sees all keys."""
    mask, window = case["mask"], case.get("window")
    rows, columns = case["seq_len_q"], case["seq_len_kv"]
    if mask == "no_mask" and not has_window(window):
        return None
    i = torch.arange(rows, device=device).view(1, 1, rows, 1)
    j = torch.arange(columns, device=device).view(1, 1, 1, columns)
    keep = torch.ones(case["batch_size"], 1, rows, columns, dtype=torch.bool, device=device)
    diagonal = columns - rows if mask.endswith("bottom_right") else 0
    if "causal" in mask:
        keep &= j <= i + diagonal
    if has_window(window):
        aligned = case.get("bottom_right_diagonal")
        diagonal = diagonal if aligned is None else (columns - rows) * bool(aligned)
        left, right = window
        keep &= (j >= i + diagonal - left) if left >= 0 else True
        keep &= (j <= i + diagonal + right) if right >= 0 else True
    if mask.startswith("padding"):
        keep &= j < lengths(torch, case).to(device).view(-1, 1, 1, 1)
    if mask == "arbitrary":
        generator = torch.Generator(device).manual_seed(7)
        keep &= torch.rand(keep.shape, generator=generator, device=device) < 0.7
        keep[..., 0] = True
    return keep


def mask_argument(torch, case, device):
    """Return the mask tensor that a job passes to SDPA: boolean, or additive where the job says so."""
    keep = keep_mask(torch, case, device)
    kind = case.get("mask_dtype") or "boolean"
    if keep is None or kind == "boolean":
        return keep
    if kind == "float" and case["dtype"] != "float32":
        raise Unavailable("mask_dtype float does not state the type of the mask: {dtype} or float32".format(**case))
    return torch.zeros(keep.shape, dtype=torch.float32, device=device).masked_fill_(~keep, float("-inf"))


def make_tensors(torch, case, device, seed=0):
    """Return q, k, v and the incoming gradient as (batch, heads, seq, dim), rounded to the dtype of the case."""
    dtype = getattr(torch, case["dtype"])
    # Drawn on the device: tens of millions of numbers take a quarter of a second on the CPU.
    generator = torch.Generator(device).manual_seed(seed)
    b, h, g = case["batch_size"], case["num_heads"], case["num_kv_heads"]
    shapes = [
        (b, h, case["seq_len_q"], case["head_dim_qk"]),
        (b, g, case["seq_len_kv"], case["head_dim_qk"]),
        (b, g, case["seq_len_kv"], case["head_dim_v"]),
        (b, h, case["seq_len_q"], case["head_dim_v"]),
    ]
    data = [torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes]
    keep = keep_mask(torch, case, device)
    if keep is not None:
        # The output of a row without keys is a convention (zero, NaN, a mean), and so is the gradient it passes on.
        data[3].masked_fill_(~keep.any(-1).unsqueeze(-1), 0)
    return data
