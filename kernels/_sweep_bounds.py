"""What an answer of the sweep may err: how far from the truth is a fault, and of which kind."""

import _attention
import _sweep_bias
import _sweep_text

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
#: 0.21 * 2^-7 rms for bf16, 2.4 times as much. So a tensor of N numbers, or one whose size comes from so many, may err
#: (1 + 4 / sqrt(N)) times the bound. What all numbers of a row share, a rounded probability or logarithm, counts once.
FEW, FEW_ROWS = 4.0, 1.5


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
    for name in bound:
        error = errors.get(name, {})
        count, rows = min(sizes[name], error.get("worth", sizes[name])), error.get("worth_rows", sizes[name])
        bound[name] *= factor * (1 + max(FEW / max(1.0, count) ** 0.5, FEW_ROWS / max(1.0, rows) ** 0.5))
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
