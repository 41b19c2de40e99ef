"""Which faults a result of the sweep has: bounds as this backend and this case permit them."""

from ..attention import bounds
from ..attention.reference import Rounding
from . import bias, source

#: Written-out attention: scores and their gradients are held in the type of the inputs.
SCORES_ROUNDED = ("transformers.eager", "te.unfused")


def written_out(case):
    """Return whether this backend computes the case in several steps, each rounded to the type of the inputs."""
    if case["backend"] != "nested":
        return case["backend"] in SCORES_ROUNDED
    # On a GPU kernels take nested tensors without empty sequences; torch's own arithmetic takes the others.
    empty = 0 in [count for counts in source.lengths(case) for count in counts]
    aligned = 4 if case["dtype"] == "float32" else 8
    odd = case["head_dim_qk"] % aligned or case["head_dim_v"] % aligned
    return str(case["device"]).startswith("cpu") or empty or bool(odd)


def plain_float32(case):
    """Return whether this backend's float32 is plain step-by-step arithmetic: no tensor cores, no running sums."""
    return case["backend"] == "sdpa.math" or str(case["device"]).startswith("cpu") or written_out(case)


def rounding(case):
    """Return how a correct kernel of this backend may round."""
    return Rounding(written_out(case), tensor_cores=not plain_float32(case))


def faults(case, errors, device, factor=1.0):
    """Return (kinds of fault, bound).

    A kind is the name of the tensor, with `_nan` if it holds numbers that are not finite, or `blind_...` for rows that
    see no key. `factor` is this backend's bound over that of others.
    """
    plain = case["dtype"] == "float32" and plain_float32(case) and device != "cpu"
    dbias = (bias.count(case), bias.looser(case)) if source.learned(case) else None
    bound = bounds.bounds_of(
        case, errors, device, factor, times=bounds.TIMES_WRITTEN if plain else None, dbias=dbias
    )  # fmt: skip
    # Values that are not finite are another fault than wrong values, and shrink to another case.
    kinds = [
        name + ("_nan" if errors[name].get("nonfinite") else "")
        for name in bounds.offenders(case, errors, bound, factor)
    ]
    if any(error.get("blind_nonfinite") for error in errors.values()):
        kinds.append("blind_nan")
    if any(error.get("blind_max", 0.0) > 0.0 for error in errors.values()):
        kinds.append("blind_rows")
    return kinds, bound
