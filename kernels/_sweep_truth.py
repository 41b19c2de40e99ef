"""The float64 truth of a sweep case, batched, with the errors of an answer read off in one transfer."""

import _attention
import _sweep_bias
import _sweep_float32
import _sweep_text


class Truth:
    """Output and gradients in float64, the size that errors are measured against, and what errors are to be expected.

    `rounded` holds what a fused kernel would give that does nothing wrong but round: probabilities and their gradients
    once to the type of the inputs, results once more. How far that is from the truth is this case's healthy error.
    """

    def __init__(self, torch, case, made):
        self.torch, self.case = torch, case
        with torch.no_grad():
            self._compute(made)

    def _compute(self, made):
        torch, case = self.torch, self.case
        q, k, v, dout = (made[name].detach().double() for name in ("q", "k", "v", "dout"))
        keep, bias, alibi = made["keep"], made["bias"], made["alibi"]
        if bias is not None:
            keep = None  # the bias says it all, and is what the backend is given
        group, scale, cap = q.shape[1] // k.shape[1], made["scale"], case["softcap"]
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        kind = made["q"].dtype
        half = kind if made["q"].element_size() == 2 else None
        scores = (q @ k.transpose(-1, -2)).mul_(scale)
        slope = None
        near = scores.to(kind).double() if written_out(case) else None
        if cap:
            scores = torch.tanh(scores / cap)
            if half is not None:  # the GPU's fast tanh has as many bits as a float16
                near = _in(scores, torch.float16) * cap
            slope = 1.0 - scores * scores
            scores = scores.mul_(cap)
        for more in (bias, alibi):
            if more is not None:
                scores = scores + more.double()
                near = None if near is None else near + more.double()
        if near is not None and written_out(case):
            near = near.to(kind).double()
        self.blind = None
        if keep is not None:
            scores = scores.masked_fill_(~keep, float("-inf"))
            near = None if near is None else near.masked_fill_(~keep, float("-inf"))
            self.blind = ~keep.any(-1).expand(q.shape[0], q.shape[1], q.shape[2])
        p = torch.softmax(scores, -1)
        if keep is not None:
            p = p.nan_to_num_(0.0)  # a row that sees nothing gives zero
        out = p @ v
        self.values, self.scales, self.rounded = {"out": out}, {}, {}
        self.ways = [self.rounded]
        if case["dropout"]:
            rate = case["dropout"]
            rows = (rate / (1 - rate) * ((p * p) @ (v * v))).sum(-1)  # rows without keys add none
            self.variance = float(rows.sum())
            # Rows that see few keys scatter most: of how many equal ones the sum is worth.
            self.rows = self.variance**2 / max(float((rows * rows).sum()), 1e-300)
            # And how far the output's part along the truth may lie from 1: dropout leaves the mean alone.
            along = float((rate / (1 - rate) * (p * p) * (out @ v.transpose(-1, -2)).square()).sum())
            self.wander = along**0.5 / max(float((out * out).sum()), 1e-300)
            return
        if half is not None:
            seen = _rounded(p if near is None else _softmax(near, keep), half)
            self.rounded["out"] = _in(seen @ v, half)
        else:
            tensor_cores = not written_in_float(case)
            self.ways = _sweep_float32.ways(torch, made, cap, case["training"], tensor_cores)
        if not case["training"]:
            return
        dv = p.transpose(-1, -2) @ dout
        dp = dout @ v.transpose(-1, -2)
        delta = (p * dp).sum(-1, keepdim=True)
        ds = p * (dp - delta) * scale
        # dp - delta may cancel, and so may the sums they are made of: their rounding errors are those of the terms.
        square = dout * dout
        terms = square @ (v * v).transpose(-1, -2) + (square * out * out).sum(-1, keepdim=True)
        size = p * p * terms * (scale * scale)
        if slope is not None:
            ds, size = ds * slope, size * slope * slope
        near_ds = None
        if half is not None:
            near_ds = self._round_gradients(q, k, dout, seen, dp, slope, scale, half, group)
        self.values.update(dq=ds @ k, dk=self._grouped(ds.transpose(-1, -2) @ q, group), dv=self._grouped(dv, group))
        self.scales = {"dq": size @ (k * k), "dk": self._grouped(size.transpose(-1, -2) @ (q * q), group)}
        if group > 1:  # the group's partial gradients may cancel
            self.scales["dv"] = self._grouped((p * p).transpose(-1, -2) @ square, group)
        if _sweep_text.learned(case):
            _sweep_bias.add(self, made, p * (dp - delta), p * p * terms, near_ds)

    def _round_gradients(self, q, k, dout, seen, dp, slope, scale, half, group):
        delta = (self.rounded["out"] * dout).sum(-1, keepdim=True)
        if written_out(self.case):
            dp = _in(dp, half)
        of_scores = seen * (dp - delta)
        ds = _in(of_scores if slope is None else of_scores * slope, half) * scale
        self.rounded["dq"] = _in(ds @ k, half)
        self.rounded["dk"] = _in(self._grouped(ds.transpose(-1, -2) @ q, group), half)
        self.rounded["dv"] = _in(self._grouped(seen.transpose(-1, -2) @ dout, group), half)
        return of_scores

    @staticmethod
    def _grouped(tensor, group):
        return tensor if group == 1 else tensor.unflatten(1, (-1, group)).sum(2)

    def errors(self, got):
        """For each tensor that is there: relative, worst row, largest element, non-finite; and the rows without keys.

        All numbers come back from the device at once: a transfer each would cost more than the case.
        """
        torch, names, numbers = self.torch, [], []
        report = {}
        for name, ref in self.values.items():
            value = got.get(name)
            if value is None:
                continue
            if tuple(value.shape) != tuple(ref.shape):
                report[name] = {"shape": list(value.shape), "expected_shape": list(ref.shape), "rel": float("inf")}
                continue
            value = value.detach().double()
            seen, nan_blind, high_blind = value, ref.new_zeros(()), ref.new_zeros(())
            if self.blind is not None and name in ("out", "dq"):
                there = value.masked_fill(~self.blind.unsqueeze(-1), 0.0)
                nan_blind = (~torch.isfinite(there)).sum()
                high_blind = there.nan_to_num(0.0).abs().amax() if there.numel() else high_blind
                seen = value.masked_fill(self.blind.unsqueeze(-1), 0.0)
            delta = seen - ref
            rows = (ref * ref).sum(-1)
            if name in self.scales:
                rows = torch.maximum(rows, self.scales[name].sum(-1))
            floor = rows.mean() * 1e-2  # float noise in a row far smaller than its neighbours is no damage
            lengths = torch.maximum(rows, floor).clamp_min(1e-300)
            size = rows.sum().sqrt().clamp_min(1e-150)
            healthy = [way[name].double() - ref for way in self.ways]
            numbers.append(torch.stack([
                delta.norm() / size, _worst(delta, lengths), delta.abs().max(),
                (~torch.isfinite(seen)).sum().double(), nan_blind.double(), high_blind.double(),
                torch.stack([way.norm() for way in healthy]).max() / size,
                torch.stack([_worst(way, lengths) for way in healthy]).max(),
            ]))  # fmt: skip
            names.append(name)
        table = torch.stack(numbers).tolist() if numbers else []
        for name, (rel, row, largest, bad, nan_blind, high_blind, *healthy) in zip(names, table):  # noqa: B905
            report[name] = {"rel": rel, "row": row, "max": largest, "nonfinite": int(bad)}
            report[name]["healthy"], report[name]["healthy_row"] = healthy
            if self.blind is not None and name in ("out", "dq"):
                report[name]["blind_nonfinite"], report[name]["blind_max"] = int(nan_blind), high_blind
        return report


def _worst(delta, lengths):
    """The largest error of a row by its length."""
    return ((delta * delta).sum(-1) / lengths).sqrt().max()


def _in(tensor, dtype):
    """The numbers as that type holds them."""
    return tensor.to(dtype).double()


def _rounded(p, dtype):
    """Probabilities rounded as a kernel does it: over the largest of their row."""
    largest = p.amax(-1, keepdim=True).clamp_min(1e-300)
    return _in(p / largest, dtype) * largest


def _softmax(scores, keep):
    p = scores.softmax(-1)
    return p if keep is None else p.nan_to_num_(0.0)


#: Written-out attention: scores and their gradients are held in the type of the inputs.
SCORES_ROUNDED = ("transformers.eager", "te.unfused")


def written_out(case):
    """Whether this backend computes the case in several steps, each rounded to the type of the inputs."""
    if case["backend"] != "nested":
        return case["backend"] in SCORES_ROUNDED
    # Kernels take nested tensors on a GPU, where no sequence is empty; torch's own arithmetic takes the others.
    empty = 0 in [count for counts in _sweep_text.lengths(case) for count in counts]
    aligned = 4 if case["dtype"] == "float32" else 8
    odd = case["head_dim_qk"] % aligned or case["head_dim_v"] % aligned
    return str(case["device"]).startswith("cpu") or empty or bool(odd)


def written_in_float(case):
    """Whether this backend's float32 is plain arithmetic step by step: no tensor cores, no running sums."""
    return case["backend"] == "sdpa.math" or str(case["device"]).startswith("cpu") or written_out(case)


#: A tensor may err so many times what rounding alone explains in this very case, its worst row so many times what it
#: explains in the worst row. Kernels differ in what else they round, those of tensor cores more than written-out
#: float32; three times the healthy error is beyond it. Measured over the cases that docs/stress.md names.
TIMES, TIMES_WRITTEN, TIMES_ROW = {"bfloat16": 2.0, "float16": 2.0, "float32": 2.5}, 1.75, 4.0
#: Less than this is taken for the healthy error of no case: of half types half of what rounding the result once costs
#: (0.21 of the type's spacing), of float32 four roundings of 2^-24.
LEAST = {"bfloat16": 0.1 * 2**-7, "float16": 0.1 * 2**-10, "float32": 2.5e-7}
#: The bounds are about the mean over many numbers. Of few, the largest rounding counts: 2^-8 of the value against
#: 0.21 * 2^-7 rms for bf16, 2.4 times as much. So a tensor of N numbers may err (1 + 4 / sqrt(N)) times the bound.
FEW = 4.0


def _row(dtype, error):
    """What a worst row may err whatever the whole does: rows that see few keys, in a tensor of rows that see many."""
    once = 16.8 * LEAST[dtype] if dtype != "float32" else 0.0
    return max(once, TIMES_ROW * error.get("healthy_row", 0.0))


def faults(case, errors, device, factor=1.0):
    """(kinds of fault, bound): a kind is the tensor's name, with `_nan` where numbers are not finite; or blind_…."""
    dtype = case["dtype"]
    bound, _, _ = _attention.judge(case, {}, device)
    row = bound.pop("row_factor")
    if _sweep_text.learned(case):
        bound["dbias"] = bound["dq"]
    b, h, g = case["batch_size"], case["num_heads"], case["num_kv_heads"]
    sizes = {
        "out": b * h * case["seq_len_q"] * case["head_dim_v"], "dq": b * h * case["seq_len_q"] * case["head_dim_qk"],
        "dk": b * g * case["seq_len_kv"] * case["head_dim_qk"], "dv": b * g * case["seq_len_kv"] * case["head_dim_v"],
        "dbias": _sweep_bias.count(case),
    }  # fmt: skip
    times = TIMES_WRITTEN if dtype == "float32" and written_in_float(case) and device != "cpu" else TIMES[dtype]
    shared = bound["dk"] / bound["dq"]  # a CPU adds up what heads share in the storage type
    for name, error in errors.items():
        if "healthy" in error:  # elsewhere the bound of the type
            bound[name] = times * max(LEAST[dtype], error["healthy"])
            bound[name] *= shared if name in ("dk", "dv") else 1.0
            bound[name] *= _sweep_bias.looser(case) if name == "dbias" else 1.0
    if case["softcap"] and dtype == "float16":
        factor *= 2.0  # flash kernels hold the scores' gradient divided by the cap: it sinks below float16's range
    bound = {name: limit * factor * (1 + FEW / sizes[name] ** 0.5) for name, limit in bound.items()}
    kinds = [
        # A number that is none is another fault than a wrong number, and shrinks to another case.
        name + ("_nan" if error.get("nonfinite") else "")
        for name, error in errors.items()
        # Written so that NaN, which compares false with everything, is an offender.
        if not (
            error["rel"] <= bound[name] and error.get("row", 0.0) <= max(bound[name] * row, factor * _row(dtype, error))
        )
        or error.get("nonfinite")
    ]
    if any(error.get("blind_nonfinite") for error in errors.values()):
        kinds.append("blind_nan")
    if any(error.get("blind_max", 0.0) > 0.0 for error in errors.values()):
        kinds.append("blind_rows")
    return kinds, bound


def needs(case):
    """(floating point operations, bytes) that the case needs, not what a backend spends: forward and backward."""
    b, h, g = case["batch_size"], case["num_heads"], case["num_kv_heads"]
    sq, sk, d, dv = case["seq_len_q"], case["seq_len_kv"], case["head_dim_qk"], case["head_dim_v"]
    flops = 2 * b * h * sq * sk * (d + dv)
    if case["mask"] in ("causal", "causal_bottom_right", "padding_causal"):
        flops //= 2
    size = {"float32": 4}.get(case["dtype"], 2)
    count = b * (h * sq * (d + dv) + g * sk * (d + dv))
    if case["training"]:
        flops, count = flops * 7 // 2, count * 2 + b * h * sq * dv
    return flops, count * size
