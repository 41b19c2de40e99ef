"""The float64 reference of attention: output, gradients, and the error that rounding alone explains.

Both the checks of single workloads and the sweep use it. A problem is a dict of `q`, `k`, `v`, `dout` as (batch, heads,
seq, dim), `scale`, and optionally `keep` (boolean, True where a query sees a key), `bias` (additive mask), `alibi`
(additive term per head) and `softcap`.
"""

from . import float32
from .tensors import keep_mask

#: Scores that are held at once; several float64 tensors have their size.
MAX_SCORES = 1 << 25


class Rounding:
    """How the tested kernel may round.

    `written_out`: it holds scores and their gradients in the type of the inputs, as several steps in a row do.
    `tensor_cores`: its float32 products may be those of tensor cores.
    """

    def __init__(self, written_out=False, tensor_cores=True):
        self.written_out, self.tensor_cores = written_out, tensor_cores


class Reference:
    """Output and gradients in float64, and the sizes that errors are measured against.

    `values`: the exact tensors. `scales`: for each gradient the squared size of its terms, which may cancel.
    `healthy`: what correct kernels would return that only round; empty without `rounding`. For half types that is one
    result: probabilities and their gradients rounded once to the type of the inputs, results once more. For float32 it
    is one result for each arithmetic in use. The distance of these to the exact values is the healthy error.
    """

    def __init__(self, torch, problem, backward=True, rounding=None, dropout=0.0):
        self.torch, self.backward, self.rounding, self.dropout = torch, backward, rounding, dropout
        bias = problem.get("bias")
        self.bias_grad = backward and not dropout and bias is not None and bias.requires_grad
        with torch.no_grad():
            rows = []
            for row in _parts(problem):
                rows.append(self._joined([self._compute(part) for part in row], 1, bias))
            self._keep(self._joined(rows, 0, bias), problem["q"])

    def _joined(self, parts, dim, bias):
        """Join what was computed of batch entries (`dim` 0) or heads (`dim` 1)."""
        if len(parts) == 1:
            return parts[0]
        joined = {}
        for key in parts[0]:
            tensors = [part[key] for part in parts]
            added = tensors[0].dim() == 0 or (key[-1] == "dbias" and bias.shape[dim] == 1)
            joined[key] = sum(tensors[1:], tensors[0]) if added else self.torch.cat(tensors, dim)
        return joined

    def _keep(self, computed, q):
        self.values, self.scales = {}, {}
        self.healthy = [{} for _ in {key[1] for key in computed if key[0] == "healthy"}]
        for key, tensor in computed.items():
            if key[0] == "value":
                self.values[key[1]] = tensor
            elif key[0] == "scale":
                self.scales[key[1]] = tensor
            elif key[0] == "healthy":
                last = key[2] == "dbias" and q.element_size() == 2  # a sum over parts, rounded once more
                self.healthy[key[1]][key[2]] = _round(tensor, q.dtype) if last else tensor
        self.blind = computed.get(("blind",))
        if self.dropout:
            rows = computed[("dropout rows",)]
            self.variance = float(rows.sum())
            # Rows that see few keys scatter most: the number of equal rows that the sum is worth.
            self.rows = float(_worth(rows))
            # How far the output's projection on the reference may differ from 1: dropout keeps the mean.
            out = self.values["out"]
            self.projection_error = float(computed[("dropout along",)]) ** 0.5 / max(float((out * out).sum()), 1e-300)

    def _compute(self, problem):
        """Return the tensors of one part of the problem by kind and name."""
        torch = self.torch
        q, k, v, dout = (problem[name].detach().double() for name in ("q", "k", "v", "dout"))
        keep, bias, alibi = problem.get("keep"), problem.get("bias"), problem.get("alibi")
        if bias is not None:
            keep = None  # the kernel is given the bias alone
        group, scale, cap = q.shape[1] // k.shape[1], problem["scale"], problem.get("softcap")
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        dtype = problem["q"].dtype
        half = dtype if self.rounding and problem["q"].element_size() == 2 else None
        written_out = bool(self.rounding and self.rounding.written_out)
        scores = (q @ k.transpose(-1, -2)).mul_(scale)
        slope = None
        near = _round(scores, dtype) if written_out else None  # the scores as such a kernel holds them
        if cap:
            scores = torch.tanh(scores / cap)
            if half is not None:  # the GPU's fast tanh has as many bits as a float16
                near = _round(scores, torch.float16) * cap
            slope = 1.0 - scores * scores
            scores = scores.mul_(cap)
        for term in (bias, alibi):
            if term is not None:
                scores = scores + term.double()
                near = None if near is None else near + term.double()
        if near is not None and written_out:
            near = _round(near, dtype)
        made = {}
        if keep is not None:
            scores = scores.masked_fill_(~keep, float("-inf"))
            near = None if near is None else near.masked_fill_(~keep, float("-inf"))
            made[("blind",)] = ~keep.any(-1).expand(q.shape[0], q.shape[1], q.shape[2])
        p = torch.softmax(scores, -1)
        if keep is not None:
            p = p.nan_to_num_(0.0)  # a row without keys gives zero
        out = made["value", "out"] = p @ v
        if self.dropout:
            odds = self.dropout / (1 - self.dropout)
            made[("dropout rows",)] = (odds * ((p * p) @ (v * v))).sum(-1)  # rows without keys add nothing
            made[("dropout along",)] = (odds * (p * p) * (out @ v.transpose(-1, -2)).square()).sum()
            return made
        if half is not None:
            seen = p if near is None else _softmax(near, keep)
            near_out = made["healthy", 0, "out"] = _round(_round_probabilities(seen, half) @ v, half)
        elif self.rounding:
            cores = self.rounding.tensor_cores
            for number, result in enumerate(float32.results(torch, problem, self.backward, cores)):
                dscores = result.pop("dscores", None)
                made.update({("healthy", number, name): tensor for name, tensor in result.items()})
                if self.bias_grad:
                    made["healthy", number, "dbias"] = dscores.sum_to_size(bias.shape)
        if not self.backward:
            return made
        dp = dout @ v.transpose(-1, -2)
        delta = (p * dp).sum(-1, keepdim=True)
        ds = p * (dp - delta) * scale
        # dp - delta may cancel, and so may the sums of it: their rounding errors are those of the terms.
        square = dout * dout
        terms = square @ (v * v).transpose(-1, -2) + (square * out * out).sum(-1, keepdim=True)
        size = p * p * terms * (scale * scale)
        if slope is not None:
            ds, size = ds * slope, size * slope * slope
        made["value", "dq"], made["scale", "dq"] = ds @ k, size @ (k * k)
        made["value", "dk"] = _sum_group(ds.transpose(-1, -2) @ q, group)
        made["scale", "dk"] = _sum_group(size.transpose(-1, -2) @ (q * q), group)
        made["value", "dv"] = _sum_group(p.transpose(-1, -2) @ dout, group)
        if group > 1:  # the partial gradients of the group may cancel
            made["scale", "dv"] = _sum_group((p * p).transpose(-1, -2) @ square, group)
        near_dscores = None
        if half is not None:
            rounded, near_dscores = self._round_gradients(
                (q, k, dout), seen, near_out, dp, slope, scale, cap, half, group
            )
            made.update({("healthy", 0, name): tensor for name, tensor in rounded.items()})
        if self.bias_grad:
            # The gradient of the scores, unscaled, summed over the dimensions that the bias is broadcast over.
            made["value", "dbias"] = (p * (dp - delta)).sum_to_size(bias.shape)
            made["scale", "dbias"] = (p * p * terms).sum_to_size(bias.shape)
            if near_dscores is not None:
                made["healthy", 0, "dbias"] = _round(near_dscores, bias.dtype).sum_to_size(bias.shape)
        return made

    def _round_gradients(self, tensors, seen, near_out, dp, slope, scale, cap, half, group):
        q, k, dout = tensors
        seen = _round(seen, half)  # backward has the probabilities divided by the sum of their row
        delta = (near_out * dout).sum(-1, keepdim=True)
        if self.rounding.written_out:
            dp = _round(dp, half)
        dscores = seen * (dp - delta)
        # Flash kernels hold them scaled and divided by the cap, which can be below float16's range.
        held, rest = (dscores, scale) if slope is None else (dscores * slope * (scale / cap), cap)
        ds = _round(held, half) * rest
        # Each query head is rounded first; the heads of a group are added afterwards.
        dk, dv = _round(ds.transpose(-1, -2) @ q, half), _round(seen.transpose(-1, -2) @ dout, half)
        rounded = {"dq": _round(ds @ k, half), "dk": _round(_sum_group(dk, group), half)}
        rounded["dv"] = _round(_sum_group(dv, group), half)
        return rounded, dscores

    def errors(self, got):
        """Return for each tensor of `got` its error: relative (`rel`), worst row (`row`), largest (`max`), non-finite.

        `worth` and `worth_rows` say how many numbers or rows determine the size of the tensor. Rows without keys are
        left out and reported as `blind_...`. All numbers come from the device in one transfer: one each would take
        longer than the case.
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
            seen, blind_nan, blind_max = value, ref.new_zeros(()), ref.new_zeros(())
            if self.blind is not None and name in ("out", "dq"):
                blind = value.masked_fill(~self.blind.unsqueeze(-1), 0.0)
                blind_nan = (~torch.isfinite(blind)).sum()
                blind_max = blind.nan_to_num(0.0).abs().amax() if blind.numel() else blind_max
                seen = value.masked_fill(self.blind.unsqueeze(-1), 0.0)
            delta = seen - ref
            sizes = ref * ref
            if name in self.scales:
                sizes = torch.maximum(sizes, self.scales[name])
            rows = sizes.sum(-1)
            floor = rows.mean() * 1e-2  # rounding in a row far smaller than the others is no fault
            lengths = torch.maximum(rows, floor).clamp_min(1e-300)
            size = rows.sum().sqrt().clamp_min(1e-150)
            healthy = [result[name].double() - ref for result in self.healthy]
            columns = [
                delta.norm() / size, _worst(delta, lengths), delta.abs().max(),
                (~torch.isfinite(seen)).sum().double(), blind_nan.double(), blind_max.double(),
                3.0 * _worth(sizes), _worth(rows),
            ]  # fmt: skip
            if healthy:
                columns.append(torch.stack([way.norm() for way in healthy]).max() / size)
                columns.append(torch.stack([_worst(way, lengths) for way in healthy]).max())
            numbers.append(torch.stack(columns))
            names.append(name)
        table = torch.stack(numbers).tolist() if numbers else []
        for name, row in zip(names, table):  # noqa: B905 - Python 3.8
            rel, worst, largest, bad, blind_nan, blind_max, worth, worth_rows = row[:8]
            report[name] = {"rel": rel, "row": worst, "max": largest, "nonfinite": int(bad)}
            report[name]["worth"], report[name]["worth_rows"] = worth, worth_rows
            if row[8:]:
                report[name]["healthy"], report[name]["healthy_row"] = row[8:]
            if self.blind is not None and name in ("out", "dq"):
                report[name]["blind_nonfinite"], report[name]["blind_max"] = int(blind_nan), blind_max
        return report

    def blind_rows(self, out):
        """Return what the rows of `out` that see no key hold: zero, nan or other; None if there are no such rows."""
        if self.blind is None or not bool(self.blind.any()):
            return None
        values = out.detach()[self.blind]
        if bool(self.torch.isnan(values).any()):
            return "nan"
        return "zero" if bool((values == 0).all()) else "other"


def reference_of(torch, case, data, backward=True, dropout=0.0, softcap=None):
    """Return the reference of a workload whose tensors are `data` = (q, k, v, dout)."""
    problem = dict(zip(("q", "k", "v", "dout"), data))  # noqa: B905 - Python 3.8
    problem["keep"] = keep_mask(torch, case, data[0].device)
    problem["scale"] = case.get("scale") or case["head_dim_qk"] ** -0.5
    problem["softcap"] = softcap
    return Reference(torch, problem, backward=backward, dropout=dropout)


def _parts(problem):
    """Yield lists of parts small enough to hold their scores: one list per range of the batch, each split by heads."""
    q, k = problem["q"], problem["k"]
    batch, groups, per_group = q.shape[0], k.shape[1], (q.shape[1] // k.shape[1]) * q.shape[2] * k.shape[2]
    entries = max(1, MAX_SCORES // max(1, groups * per_group))
    if entries >= batch:
        yield [problem]
        return
    heads = groups if groups * per_group <= MAX_SCORES else max(1, MAX_SCORES // per_group)
    for first in range(0, batch, entries):
        yield [_part(problem, slice(first, first + entries), slice(g, g + heads)) for g in range(0, groups, heads)]


def _part(problem, entries, groups):
    """Cut the tensors of a problem to some batch entries and key heads."""
    group = problem["q"].shape[1] // problem["k"].shape[1]
    queries = slice(groups.start * group, groups.stop * group)
    part = dict(problem)
    for name in ("q", "k", "v", "dout", "keep", "bias", "alibi"):
        tensor = problem.get(name)
        if tensor is None:
            continue
        heads = groups if name in ("k", "v") else queries
        if tensor.dim() > 2 and tensor.shape[-3] > 1:
            tensor = tensor[..., heads, :, :]
        if tensor.dim() > 3 and tensor.shape[0] > 1:
            tensor = tensor[entries]
        part[name] = tensor
    return part


def _sum_group(tensor, group):
    """Add what the query heads of a group contribute to their key head."""
    return tensor if group == 1 else tensor.unflatten(1, (-1, group)).sum(2)


def _worth(squares):
    """Return the number of equal values that would have this sum and spread: few if few are large."""
    return squares.sum() ** 2 / (squares * squares).sum().clamp_min(1e-300)


def _worst(delta, lengths):
    """Return the largest error of a row relative to the row's length."""
    return ((delta * delta).sum(-1) / lengths).sqrt().max()


def _round(tensor, dtype):
    return tensor.to(dtype).double()


def _round_probabilities(p, dtype):
    """Round probabilities as kernels do: relative to the largest of their row."""
    largest = p.amax(-1, keepdim=True).clamp_min(1e-300)
    return _round(p / largest, dtype) * largest


def _softmax(scores, keep):
    p = scores.softmax(-1)
    return p if keep is None else p.nan_to_num_(0.0)
