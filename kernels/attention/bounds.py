"""How far a result may be from the float64 reference, for checks of single workloads and for the sweep alike.

Where the reference computed the healthy error of the case (see `reference.Reference.healthy`), a bound is a multiple of
that error; otherwise it is the bound of the dtype.
"""

#: Largest relative error ||delta|| / ||ref|| that rounding explains, (output, gradients), with exact inputs.
#: Derivation: with unit spacing eps (2^-7, 2^-10), rounding a random number errs by eps/sqrt(12) times the mean of
#: 1/mantissa, about 0.21 eps rms. A fused kernel rounds the probabilities once and the output once, independent errors:
#: sqrt(2) * 0.21 eps = 0.3 eps = 2.3e-3 (bf16), 2.9e-4 (fp16); a gradient sees two more: 0.42 eps = 3.3e-3, 4.1e-4.
#: float32 is limited by exp2 approximations and sums over the keys. Largest healthy errors among 550 cases on an H200
#: (torch 2.11's four backends and cuDNN 9.19 directly): bf16 2.4e-3 / 3.0e-3, fp16 2.8e-4 / 3.7e-4, fp32 7e-7 / 9e-7.
#: The bounds are about 2.5 times that: kernels differ in what else they round, and three times the healthy error fails.
BOUNDS = {"bfloat16": (6e-3, 8e-3), "float16": (7e-4, 1e-3), "float32": (2e-6, 2.5e-6)}

#: A single row (one query or key of one head) may err this much more than the norm of all; a larger error is a fault
#: that the norm over a large tensor would average away. Worst healthy row seen: 0.8 of the norm's bound.
ROW_FACTOR = 4.0

#: A tensor may err this many times the healthy error of the case, its worst row this many times the healthy error of
#: the worst row. Kernels differ in what else they round, those of tensor cores more than written-out float32; three
#: times the healthy error is beyond it. Measured over the cases that docs/stress.md names.
TIMES, TIMES_WRITTEN, TIMES_ROW = {"bfloat16": 2.0, "float16": 2.0, "float32": 2.5}, 1.75, 4.0
#: The healthy error counts as at least this: of half types half of what rounding the result once costs (0.21 of the
#: type's spacing), of float32 four roundings of 2^-24.
LEAST = {"bfloat16": 0.1 * 2**-7, "float16": 0.1 * 2**-10, "float32": 2.5e-7}
#: The bounds are about the mean over many numbers. With few numbers the largest rounding counts: 2^-8 of the value
#: against 0.21 * 2^-7 rms for bf16, 2.4 times as much. A tensor of N numbers, or one whose size comes from so many, may
#: err (1 + 4 / sqrt(N)) times the bound. What all numbers of a row share, a rounded probability or logarithm, counts
#: once.
FEW, FEW_ROWS = 4.0, 1.5


def type_bounds(case, device):
    """Return the bound of the dtype for each tensor."""
    forward, backward = BOUNDS[case["dtype"]]
    shared = 1.0
    if device == "cpu":
        # torch's CPU kernel adds the heads of a group in the storage type, a random walk of roundings; every GPU kernel
        # adds them in float32. Seen with 1, 4, 16, 64 heads a group: 3e-3, 5e-3, 9e-3, 19e-3 (bf16, dv). In float32
        # likewise: 8 heads a group err 3 times what the reference in float32 does.
        shared = (case["num_heads"] // case["num_kv_heads"]) ** 0.5
    return {"out": forward, "dq": backward, "dk": backward * shared, "dv": backward * shared}


def bounds_of(case, errors, device, factor=1.0, times=None, dbias=None):
    """Return the largest permitted `rel` of each tensor.

    `errors` are those of `Reference.errors`, or empty for the bounds of the dtype. `factor`: this backend's bound over
    that of others; `times`: the permitted multiple of the healthy error. `dbias`: (count of numbers, factor) of a bias
    that has a gradient.
    """
    bound = type_bounds(case, device)
    shared = bound["dk"] / bound["dq"]  # of a CPU, see type_bounds
    looser = {"dk": shared, "dv": shared}
    count = _counts(case)
    if dbias is not None:
        bound["dbias"] = bound["dq"]
        count["dbias"], looser["dbias"] = dbias
    times = times or TIMES[case["dtype"]]
    for name, error in errors.items():
        if "healthy" in error:
            bound[name] = times * max(LEAST[case["dtype"]], error["healthy"]) * looser.get(name, 1.0)
    for name in bound:
        error = errors.get(name, {})
        numbers, rows = min(count[name], error.get("worth", count[name])), error.get("worth_rows", count[name])
        bound[name] *= factor * (1 + max(FEW / max(1.0, numbers) ** 0.5, FEW_ROWS / max(1.0, rows) ** 0.5))
    return bound


def _counts(case):
    b, h, g = case["batch_size"], case["num_heads"], case["num_kv_heads"]
    sq, sk, d, dv = case["seq_len_q"], case["seq_len_kv"], case["head_dim_qk"], case["head_dim_v"]
    return {"out": b * h * sq * dv, "dq": b * h * sq * d, "dk": b * g * sk * d, "dv": b * g * sk * dv}


def offenders(case, errors, bound, factor=1.0):
    """Return the names of the tensors that err more than their bound, or hold numbers that are not finite."""
    found = []
    for name, error in errors.items():
        limit = max(bound[name] * ROW_FACTOR, factor * _row_bound(case["dtype"], error))
        # Written so that NaN, which compares false with everything, is an offender.
        within = error["rel"] <= bound[name] and error.get("row", 0.0) <= limit
        if not within or error.get("nonfinite"):
            found.append(name)
    return found


def _row_bound(dtype, error):
    """Return what a worst row may err whatever the whole does: a row of few keys in a tensor of rows with many."""
    if "healthy_row" not in error:
        return 0.0
    once = 16.8 * LEAST[dtype] if dtype != "float32" else 0.0
    return max(once, TIMES_ROW * error["healthy_row"])


def judge(case, errors, device="cuda"):
    """Return (bound, wrong, offenders) of a workload."""
    bound = bounds_of(case, errors, device)
    found = offenders(case, errors, bound)
    bound["row_factor"] = ROW_FACTOR
    return bound, bool(found), found


def compare(case, reference, got, device):
    """Compare a result with the reference: `errors`, `bound`, `wrong`, `offenders`, `rows_without_keys`."""
    errors = reference.errors(got)
    bound, wrong, found = judge(case, errors, device)
    rows = reference.blind_rows(got["out"])
    return {"errors": errors, "bound": bound, "wrong": wrong, "offenders": found, "rows_without_keys": rows}
