"""Judge results under dropout: the mean and scatter of the output are known, and backward must drop the same values."""

from .bounds import BOUNDS

#: A sum over the numbers of two tensors may be off by this many times the error of its dtype.
SUMS = 8.0


def judge_dropout(torch, case, inputs, reference, got):
    """Return what is observed of a workload's result: its faults count as wrong."""
    observed = {"faults": []}
    judge(case, dict(zip("qkv", inputs), torch=torch), reference, got, observed)  # noqa: B905 - Python 3.8
    faults = observed.pop("faults")
    return dict(observed, errors={}, bound={}, wrong=bool(faults), offenders=faults)


def judge(case, space, reference, got, observed):
    """Add `dropout`, `dropout_backward` and tensors that are not finite to `observed["faults"]`."""
    torch = space["torch"]
    out = got["out"].double()
    if not bool(torch.isfinite(out).all()):
        observed["faults"].append("out_nan")
    _judge_output(case, reference, out, observed)
    if got.get("dv") is None:
        return
    inputs = {name: space[name].detach().double() for name in "qkv"}
    # The output is linear in v, and dv was computed for the incoming gradient `out`: <v, dv> is <out, out>.
    norm = float((out * out).sum())
    adjoint = float((inputs["v"] * got["dv"].double()).sum())
    # Where everything was dropped, as may happen to a single key, both are zero.
    observed["dropout_adjoint"] = 0.0 if adjoint == norm else abs(adjoint - norm) / max(norm, 1e-300)
    bound = BOUNDS[case["dtype"]][1]
    same_mask = observed["dropout_adjoint"] <= 2 * bound + 1e-6
    # It depends on q and k only by their products: <q, dq> is <k, dk>, whatever was dropped.
    of_queries, of_keys = (inputs[name] * got["d" + name].double() for name in "qk")
    gap = abs(float(of_queries.sum() - of_keys.sum()))
    observed["dropout_gap"] = gap / max(float(of_queries.norm() + of_keys.norm()), 1e-300)
    if not (same_mask and observed["dropout_gap"] <= SUMS * bound):
        observed["faults"].append("dropout_backward")
    for name in [name for name in got if name != "out"]:
        if not bool(torch.isfinite(got[name]).all()):
            observed["faults"].append(name + "_nan")


def _judge_output(case, reference, out, observed):
    ref = reference.values["out"]
    seen = out if reference.blind is None else out.masked_fill(reference.blind.unsqueeze(-1), 0.0)
    rate = float(((seen - ref) ** 2).sum()) / max(reference.variance, 1e-300)
    observed["dropout_scatter"] = rate
    if reference.rows < 20 or "out_nan" in observed["faults"]:
        return
    projection = float((seen * ref).sum()) / max(float((ref * ref).sum()), 1e-300)
    # Some kernels hold the rate in eight bits.
    allowed = 6 * reference.projection_error + 2 * BOUNDS[case["dtype"]][0] + 2**-8
    if not _is_likely(rate, reference.rows) or not abs(projection - 1) <= allowed:
        observed["faults"].append("dropout")


def _is_likely(rate, rows):
    """Return whether dropout may scatter so: rows of one key, the worst case, vary by sqrt(8) of the expectation."""
    spread = (8.0 / rows) ** 0.5
    return min(0.9, max(0.05, 1 - 5 * spread)) <= rate <= max(1.12, 1 + 6 * spread)
