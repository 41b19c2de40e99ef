"""The float64 truth of a sweep case, batched, with the errors of an answer read off in one transfer."""

import _sweep_bias
import _sweep_bounds
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
        near = scores.to(kind).double() if _sweep_bounds.written_out(case) else None
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
        if near is not None and _sweep_bounds.written_out(case):
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
            self.rows = float(_worth(rows))
            # And how far the output's part along the truth may lie from 1: dropout leaves the mean alone.
            along = float((rate / (1 - rate) * (p * p) * (out @ v.transpose(-1, -2)).square()).sum())
            self.wander = along**0.5 / max(float((out * out).sum()), 1e-300)
            return
        if half is not None:
            seen = p if near is None else _softmax(near, keep)
            self.rounded["out"] = _in(_rounded(seen, half) @ v, half)
        else:
            tensor_cores = not _sweep_bounds.written_in_float(case)
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
        seen = _in(seen, half)  # backward has them over the sum of their row
        delta = (self.rounded["out"] * dout).sum(-1, keepdim=True)
        if _sweep_bounds.written_out(self.case):
            dp = _in(dp, half)
        of_scores = seen * (dp - delta)
        if slope is None:
            ds = _in(of_scores, half) * scale
        else:  # flash kernels hold them scaled and divided by the cap, which can sink below float16's range
            cap = self.case["softcap"]
            ds = _in(of_scores * slope * (scale / cap), half) * cap
        self.rounded["dq"] = _in(ds @ k, half)
        # of each head first: what a group shares is added up afterwards
        of_keys, of_values = _in(ds.transpose(-1, -2) @ q, half), _in(seen.transpose(-1, -2) @ dout, half)
        self.rounded["dk"] = _in(self._grouped(of_keys, group), half)
        self.rounded["dv"] = _in(self._grouped(of_values, group), half)
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
            sizes = ref * ref
            if name in self.scales:
                sizes = torch.maximum(sizes, self.scales[name])
            rows = sizes.sum(-1)
            floor = rows.mean() * 1e-2  # float noise in a row far smaller than its neighbours is no damage
            lengths = torch.maximum(rows, floor).clamp_min(1e-300)
            size = rows.sum().sqrt().clamp_min(1e-150)
            healthy = [way[name].double() - ref for way in self.ways]
            numbers.append(torch.stack([
                delta.norm() / size, _worst(delta, lengths), delta.abs().max(),
                (~torch.isfinite(seen)).sum().double(), nan_blind.double(), high_blind.double(),
                torch.stack([way.norm() for way in healthy]).max() / size,
                torch.stack([_worst(way, lengths) for way in healthy]).max(), 3.0 * _worth(sizes), _worth(rows),
            ]))  # fmt: skip
            names.append(name)
        table = torch.stack(numbers).tolist() if numbers else []
        for name, (rel, row, largest, bad, nan_blind, high_blind, *healthy) in zip(names, table):  # noqa: B905
            report[name] = {"rel": rel, "row": row, "max": largest, "nonfinite": int(bad)}
            report[name]["healthy"], report[name]["healthy_row"], *worth = healthy
            report[name]["worth"], report[name]["worth_rows"] = worth  # in numbers of a normal distribution; in rows
            if self.blind is not None and name in ("out", "dq"):
                report[name]["blind_nonfinite"], report[name]["blind_max"] = int(nan_blind), high_blind
        return report


def _worth(squares):
    """Of how many equal numbers their sum is worth: few, where few are large."""
    return squares.sum() ** 2 / (squares * squares).sum().clamp_min(1e-300)


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
