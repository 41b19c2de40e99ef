"""The workload of a check: its keys, their defaults, and how a large one is made small enough to verify."""

from ..protocol import Unavailable

DTYPES = ("bfloat16", "float16", "float32")

#: Masks with a name of their own in most libraries; every other mask is passed as a dense boolean tensor.
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

WORKLOAD_KEYS = (
    "head_dim_v", "num_kv_heads", "seq_len_kv", "window", "bottom_right_diagonal", "bias", "qkv_layout",
    "qkv_interleaved", "qkv_frozen", "scale", "softcap", "deterministic", "sdpa_backend", "enable_gqa", "mask_dtype",
    "fully_masked_rows",
)  # fmt: skip
#: Largest number of scores (batch * heads * seq_q * seq_kv) of a workload that is verified.
MAX_SCORES, MAX_SCORES_CPU = 1 << 27, 1 << 25


def workload(request, dropout=False):
    """Return the request with defaults filled in, made small enough for a float64 reference, and what was changed.

    The number of scores is bounded. What decides which kernel runs is kept: head dims, the ratio of query to key
    heads, mask, dtype, and sequence lengths modulo 128. `dropout`: the program passes the dropout on and judges a
    result by its mean and scatter; for any other program it becomes 0, which counts as a change.
    """
    limit = MAX_SCORES_CPU if request.get("device") == "cpu" else MAX_SCORES
    case = dict(DEFAULTS)
    case.update({key: value for key, value in request.items() if value is not None})
    case.setdefault("head_dim_v", case["head_dim_qk"])
    case.setdefault("num_kv_heads", case["num_heads"])
    case.setdefault("seq_len_kv", case["seq_len_q"])
    if case["dtype"] not in DTYPES:
        raise Unavailable("this program does not know dtype {}".format(case["dtype"]))
    if case.get("fully_masked_rows") and case["mask"] not in PLAIN_MASKS:  # elsewhere it follows from the lengths
        raise Unavailable("this program makes no mask that hides every key from a query (fully_masked_rows)")
    if case["num_heads"] % case["num_kv_heads"]:
        raise ValueError("num_heads {num_heads} is no multiple of num_kv_heads {num_kv_heads}".format(**case))
    before = dict(case)

    def size():
        return case["batch_size"] * case["num_heads"] * case["seq_len_q"] * case["seq_len_kv"]

    group = case["num_heads"] // case["num_kv_heads"]
    case["batch_size"] = min(case["batch_size"], 2)
    while size() > limit and case["num_kv_heads"] > 2:
        case["num_kv_heads"] //= 2
        case["num_heads"] = case["num_kv_heads"] * group
    # A small score matrix may still have long tensors on one side: bound both sides.
    while size() > limit or max(case["seq_len_q"], case["seq_len_kv"]) > 8192:
        longest = "seq_len_q" if case["seq_len_q"] >= case["seq_len_kv"] else "seq_len_kv"
        other = "seq_len_kv" if longest == "seq_len_q" else "seq_len_q"
        same = case[longest] == case[other]
        if case[longest] < 512:
            break
        case[longest] = (case[longest] // 256) * 128 + case[longest] % 128
        if same:
            case[other] = case[longest]
    if not dropout:
        case["dropout"] = 0.0  # a random mask has no reference
    shrunk = {key: [before[key], case[key]] for key in before if before[key] != case[key]}
    return case, shrunk


def workload_of(case):
    """Return the workload keys of a case, for the report."""
    return {key: case[key] for key in sorted(case) if key in DEFAULTS or key in WORKLOAD_KEYS}


def has_backward(case):
    """Return whether the job takes gradients of q, k and v."""
    return bool(case["training"]) and not case.get("qkv_frozen")


def has_window(window):
    """Return whether the window limits anything."""
    return bool(window) and tuple(window) != (-1, -1)
