"""Dropout has no one right output; but its mean and scatter are known, and backward must drop what forward dropped."""

import _attention

#: So many times the error of its type may a sum over the numbers of two tensors be off.
SUMS = 8.0


def judge(torch, case, space, truth, got, observed):
    """Put `dropout`, `dropout_backward` and what is no number to the faults that were observed."""
    out = got["out"].double()
    if not bool(torch.isfinite(out).all()):
        observed["faults"].append("out_nan")
    _forward(case, truth, out, observed)
    if not case["training"]:
        return
    given = {name: space[name].detach().double() for name in "qkv"}
    # The output is linear in v, and dv was asked for the gradient `out`: <v, dv> is <out, out>.
    norm = float((out * out).sum())
    observed["dropout_adjoint"] = abs(float((given["v"] * got["dv"].double()).sum()) / max(norm, 1e-300) - 1)
    bound = _attention.BOUNDS[case["dtype"]][1]
    alike = observed["dropout_adjoint"] <= 2 * bound + 1e-6
    # It depends on q and k by their products alone: <q, dq> is <k, dk>, whatever was dropped.
    of_queries, of_keys = (given[name] * got["d" + name].double() for name in "qk")
    gap = abs(float(of_queries.sum() - of_keys.sum()))
    observed["dropout_gap"] = gap / max(float(of_queries.norm() + of_keys.norm()), 1e-300)
    if not (alike and observed["dropout_gap"] <= SUMS * bound):
        observed["faults"].append("dropout_backward")
    for name in [name for name in got if name != "out"]:
        if not bool(torch.isfinite(got[name]).all()):
            observed["faults"].append(name + "_nan")


def _forward(case, truth, out, observed):
    ref = truth.values["out"]
    seen = out if truth.blind is None else out.masked_fill(truth.blind.unsqueeze(-1), 0.0)
    rate = float(((seen - ref) ** 2).sum()) / max(truth.variance, 1e-300)
    observed["dropout_scatter"] = rate
    if truth.rows < 20 or "out_nan" in observed["faults"]:
        return
    held = float((seen * ref).sum()) / max(float((ref * ref).sum()), 1e-300)
    # Some kernels hold the rate in eight bits.
    allowed = 6 * truth.wander + 2 * _attention.BOUNDS[case["dtype"]][0] + 2**-8
    if not _likely(rate, truth.rows) or not abs(held - 1) <= allowed:
        observed["faults"].append("dropout")


def _likely(rate, rows):
    """Whether dropout may scatter so: rows of one key, the worst there are, vary by sqrt(8) of what is expected."""
    spread = (8.0 / rows) ** 0.5
    return min(0.9, max(0.05, 1 - 5 * spread)) <= rate <= max(1.12, 1 + 6 * spread)
