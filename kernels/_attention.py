"""What the attention kernels share: the workload, its tensors, the float64 truth and how far an answer is from it.

Standard library at import time; `torch` is handed in by the caller.
"""

import sys

import _gpu
from _probe import Unavailable, step

#: Largest relative error ||delta|| / ||ref|| that rounding explains, (output, gradients), inputs taken as exact.
#: Derivation: with unit spacing eps (2^-7, 2^-10), rounding a random number errs by eps/sqrt(12) times the mean of
#: 1/mantissa, about 0.21 eps rms. A fused kernel rounds the probabilities once and the output once, independent errors:
#: sqrt(2) * 0.21 eps = 0.3 eps = 2.3e-3 (bf16), 2.9e-4 (fp16); a gradient sees two more: 0.42 eps = 3.3e-3, 4.1e-4.
#: float32 is limited by exp2 approximations and sums over the keys. Largest healthy errors among 550 cases on an H200
#: (torch 2.11's four backends and cuDNN 9.19 directly): bf16 2.4e-3 / 3.0e-3, fp16 2.8e-4 / 3.7e-4, fp32 7e-7 / 9e-7.
#: The bounds are about 2.5 times that: kernels differ in what else they round, and three times the healthy error fails.
BOUNDS = {"bfloat16": (6e-3, 8e-3), "float16": (7e-4, 1e-3), "float32": (2e-6, 2.5e-6)}

#: A single row (one query or key of one head) may err this much more than the norm of all; beyond it is damage that
#: the norm over a large tensor would average away. Worst healthy row seen: 0.8 of the norm's bound.
ROW_FACTOR = 4.0

#: Masks with a name of their own in most libraries; everything else goes in as a dense boolean mask.
PLAIN_MASKS = ("no_mask", "causal", "causal_bottom_right")

DEFAULTS = {
    "dtype": "bfloat16",
    "head_dim_qk": 128,
    "num_heads": 4,
    "batch_size": 2,
    "seq_len_q": 512,
    "mask": "no_mask",
    "training": True,
    "dropout": 0.0,
}

WORKLOAD_KEYS = ("head_dim_v", "num_kv_heads", "seq_len_kv", "window", "bias", "qkv_layout", "qkv_interleaved", "scale")


def workload(request):
    """The request with defaults filled in and made small enough to check in float64: (case, what was shrunk).

    batch * heads * seq_q * seq_kv, the scores, is what is bounded. What decides which kernel runs is kept: head dims,
    the ratio of query to key heads, mask, dtype, and sequence lengths modulo 128.
    """
    max_elements = 1 << (25 if request.get("device") == "cpu" else 27)
    case = dict(DEFAULTS)
    case.update({key: value for key, value in request.items() if value is not None})
    case.setdefault("head_dim_v", case["head_dim_qk"])
    case.setdefault("num_kv_heads", case["num_heads"])
    case.setdefault("seq_len_kv", case["seq_len_q"])
    if case["dtype"] not in BOUNDS:
        raise Unavailable("this program does not know dtype {}".format(case["dtype"]))
    if case["num_heads"] % case["num_kv_heads"]:
        raise ValueError("num_heads {num_heads} is no multiple of num_kv_heads {num_kv_heads}".format(**case))
    before = dict(case)

    def size():
        return case["batch_size"] * case["num_heads"] * case["seq_len_q"] * case["seq_len_kv"]

    group = case["num_heads"] // case["num_kv_heads"]
    case["batch_size"] = min(case["batch_size"], 2)
    while size() > max_elements and case["num_kv_heads"] > 2:
        case["num_kv_heads"] //= 2
        case["num_heads"] = case["num_kv_heads"] * group
    # Even a small score matrix goes with long tensors where one side is long: bound the sides as well.
    while size() > max_elements or max(case["seq_len_q"], case["seq_len_kv"]) > 8192:
        longest = "seq_len_q" if case["seq_len_q"] >= case["seq_len_kv"] else "seq_len_kv"
        other = "seq_len_kv" if longest == "seq_len_q" else "seq_len_q"
        same = case[longest] == case[other]
        if case[longest] < 512:
            break
        case[longest] = (case[longest] // 256) * 128 + case[longest] % 128
        if same:
            case[other] = case[longest]
    case["dropout"] = 0.0  # a random mask has no reference
    shrunk = {key: [before[key], case[key]] for key in before if before[key] != case[key]}
    return case, shrunk


def described(case):
    """The part of a case that is the workload, for the record."""
    return {key: case[key] for key in sorted(case) if key in DEFAULTS or key in WORKLOAD_KEYS}


def lengths(torch, case):
    """Keys that count in each sequence of the batch, for padding masks: full for the first, fewer for the others."""
    full = case["seq_len_kv"]
    return torch.tensor([max(1, full - index * (full // 3 + 1)) for index in range(case["batch_size"])])


def keep_mask(torch, case, device):
    """Boolean [batch, 1, seq_q, seq_kv], True where a query sees a key; None if it sees all."""
    mask, window = case["mask"], case.get("window")
    rows, columns = case["seq_len_q"], case["seq_len_kv"]
    if mask == "no_mask" and not _limits(window):
        return None
    i = torch.arange(rows, device=device).view(1, 1, rows, 1)
    j = torch.arange(columns, device=device).view(1, 1, 1, columns)
    keep = torch.ones(case["batch_size"], 1, rows, columns, dtype=torch.bool, device=device)
    diagonal = columns - rows if mask.endswith("bottom_right") else 0
    if "causal" in mask:
        keep &= j <= i + diagonal
    if _limits(window):
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


def _limits(window):
    return bool(window) and tuple(window) != (-1, -1)


def tensors(torch, case, device, seed=0):
    """q, k, v and the gradient that comes in, as (batch, heads, seq, dim), values already rounded to the dtype."""
    dtype = getattr(torch, case["dtype"])
    # Drawn where they are used: on the CPU, one after the other, tens of millions of them take a quarter of a second.
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
        # What a row without keys holds is convention (zero, NaN, a mean), and so is the gradient it passes on.
        data[3].masked_fill_(~keep.any(-1).unsqueeze(-1), 0)
    return data


class Truth:
    """Output and gradients in float64, each with the size that its rounding errors are measured against."""

    def __init__(self, torch, case, q, k, v, dout, backward=True):
        self.values, self.scales = {}, {}
        with torch.no_grad():
            self._compute(torch, case, q, k, v, dout, backward)

    def _compute(self, torch, case, q, k, v, dout, backward):
        q, k, v, dout = (t.detach().double() for t in (q, k, v, dout))
        group, scale = q.shape[1] // k.shape[1], case.get("scale") or q.shape[-1] ** -0.5
        keep = keep_mask(torch, case, q.device)
        out = torch.zeros_like(dout)
        grads = {name: torch.zeros_like(t) for name, t in (("dq", q), ("dk", k), ("dv", v))}
        scales = {name: torch.zeros_like(t) for name, t in (("dq", q), ("dk", k))}
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):  # one head at a time: the score matrix is what fills memory
                g = h // group
                scores = scale * (q[b, h] @ k[b, g].t())
                if keep is not None:
                    scores = scores.masked_fill(~keep[b, 0], float("-inf"))
                p = torch.softmax(scores, -1).nan_to_num(0.0)  # a row that sees nothing gives zero
                out[b, h] = p @ v[b, g]
                if not backward:
                    continue
                grads["dv"][b, g] += p.t() @ dout[b, h]
                dp = dout[b, h] @ v[b, g].t()
                delta = (p * dp).sum(-1, keepdim=True)
                ds = p * (dp - delta) * scale
                grads["dq"][b, h] = ds @ k[b, g]
                grads["dk"][b, g] += ds.t() @ q[b, h]
                # dp - delta may cancel (always, where one key is seen), and so may the sums they are made of; their
                # rounding errors are those of the terms.
                terms = dout[b, h] ** 2 @ (v[b, g] ** 2).t() + (dout[b, h] ** 2 * out[b, h] ** 2).sum(-1, keepdim=True)
                size = p * p * terms * (scale * scale)
                scales["dq"][b, h] = size @ (k[b, g] ** 2)
                scales["dk"][b, g] += size.t() @ (q[b, h] ** 2)
        self.blind = None if keep is None else ~keep.any(-1).expand(q.shape[0], q.shape[1], -1)
        self.values["out"] = out
        if backward:
            self.values.update(grads)
            self.scales = scales

    def errors(self, torch, got):
        """For each tensor of `got` (name -> tensor or None): relative, worst row, largest element, non-finite."""
        report = {}
        for name, ref in self.values.items():
            value = got.get(name)
            if value is None:
                continue
            value = value.detach().double()
            if value.shape != ref.shape:
                report[name] = {"shape": list(value.shape), "expected_shape": list(ref.shape), "rel": float("inf")}
                continue
            blind = self.blind if name in ("out", "dq") else None
            if blind is not None and bool(blind.any()):
                value = value.masked_fill(blind.unsqueeze(-1), 0.0)  # what a row without keys holds is convention
            bad = int((~torch.isfinite(value)).sum())
            delta = value - ref
            row_size = (ref * ref).sum(-1)
            if name in self.scales:
                row_size = torch.maximum(row_size, self.scales[name].sum(-1))
            # A row far smaller than its neighbours is held to their size, or float noise in it would count as damage.
            floor = row_size.mean() * 1e-2
            rows = ((delta * delta).sum(-1) / torch.maximum(row_size, floor).clamp_min(1e-300)).sqrt()
            report[name] = {
                "rel": float(delta.norm() / row_size.sum().sqrt().clamp_min(1e-150)),
                "row": float(rows.max()) if rows.numel() else 0.0,
                "max": float(delta.abs().max()) if delta.numel() else 0.0,
                "nonfinite": bad,
            }
        return report


def judge(case, errors, device="cuda"):
    """(bound, wrong, offenders): whether any tensor is further from the truth than its dtype explains."""
    forward, backward = BOUNDS[case["dtype"]]
    shared = 1.0
    if device == "cpu":
        # torch's CPU kernel adds the heads of a group in the storage type, a random walk of roundings; every GPU kernel
        # adds them in float32. Seen with 1, 4, 16, 64 heads a group: 3e-3, 5e-3, 9e-3, 19e-3 (bf16, dv). In float32
        # likewise: 8 heads a group err 3 times what the reference in float32 does.
        shared = (case["num_heads"] // case["num_kv_heads"]) ** 0.5
    bound = {"out": forward, "dq": backward, "dk": backward * shared, "dv": backward * shared}
    offenders = []
    for name, error in errors.items():
        limit = bound[name]
        # Written so that NaN, which compares false with everything, is an offender.
        healthy = error["rel"] <= limit and error.get("row", 0.0) <= limit * ROW_FACTOR and not error.get("nonfinite")
        if not healthy:
            offenders.append(name)
    bound["row_factor"] = ROW_FACTOR
    return bound, bool(offenders), offenders


def blind_rows(torch, truth, out):
    """What the rows that see no key hold: None if there are none, else zero, nan or other."""
    if truth.blind is None or not bool(truth.blind.any()):
        return None
    values = out.detach()[truth.blind]
    if bool(torch.isnan(values).any()):
        return "nan"
    return "zero" if bool((values == 0).all()) else "other"


def compared(torch, case, truth, got, device):
    """What an answer's tensors say beside the truth: `errors`, `bound`, `wrong`, `offenders`, `rows_without_keys`."""
    errors = truth.errors(torch, got)
    bound, wrong, offenders = judge(case, errors, device)
    rows = blind_rows(torch, truth, got["out"])
    return {"errors": errors, "bound": bound, "wrong": wrong, "offenders": offenders, "rows_without_keys": rows}


_broken = []  # why torch cannot be imported: a second try in one process would fail for reasons of its own


def import_torch():
    """torch, or Unavailable; any other import error is a failure with its own text."""
    if _broken:
        raise _broken[0]
    if "torch" in sys.modules:
        return sys.modules["torch"]
    step("import torch")
    try:
        import torch
    except ModuleNotFoundError as error:
        missing = Unavailable("torch is not installed") if error.name == "torch" else error
        _broken.append(missing)
        raise missing from error
    except BaseException as error:
        _broken.append(error)
        raise
    step("torch imported")
    return torch


def pick_device(torch, request):
    """The device asked for, a GPU by default: what a CPU does must not be taken for an answer about the GPU."""
    device = str(request.get("device") or "cuda")
    if device.startswith("cuda"):
        _gpu.claim(torch, device)
    return device


def poison(torch, device, like):
    """Leave NaN where the allocator will place the next results, so that an element nobody wrote shows."""
    if not device.startswith("cuda"):
        return
    blocks = [torch.full_like(t, float("nan")) for t in like for _ in range(2)]
    torch.cuda.synchronize()
    del blocks
