"""Find the smallest case that still fails: move every key towards its plainest value while the fault stays."""

from . import source

#: Key → plain values, plainest first; the keys that say most about the cause come first. `before` is not among them:
#: the earlier call has left its state in this process, so a case without it would fail here for that reason alone.
PLAIN = (
    ("how", ("eager",)),
    ("dropout", (0.0,)),
    ("softcap", (0.0,)),
    ("scale", (None,)),
    ("alibi", (False,)),
    ("deterministic", (False,)),
    ("grad", ("dense",)),
    ("layout", ("bhsd",)),
    ("sequences", ("some_empty", "none_empty")),
    ("alone", (False,)),
    ("bias_grad", (False,)),
    ("bias_shape", ("b1ss",)),
    ("mask", ("no_mask", "causal", "boolean")),
    ("training", (False,)),
    ("batch_size", (1, 2)),
    ("num_kv_heads", (1,)),
    ("num_heads", (1, 2, 4)),
    ("head_dim_qk", (64, 128)),
    ("head_dim_v", (64, 128)),
    ("seq_len_kv", (1, 2, 16, 64, 128)),
    ("seq_len_q", (1, 2, 16, 64, 128)),
    ("dtype", ("bfloat16", "float16")),
    ("window_size", (None,)),
)


def _valid(case):
    if case["num_heads"] % case["num_kv_heads"]:
        return False
    decodes = case.get("backend", "").startswith("transformers.") and case["mask"] == "causal"
    if decodes and case["seq_len_q"] != case["seq_len_kv"]:
        return False  # one query is decoding there, and sees all keys
    fused = case["layout"] in ("fused", "interleaved")
    same = case["head_dim_qk"] == case["head_dim_v"] and case["seq_len_q"] == case["seq_len_kv"]
    if fused and not same:
        return False
    return not (case["layout"] == "interleaved" and case["num_heads"] != case["num_kv_heads"])


def simpler(request):
    """Return the cases one step plainer than this one, the largest step first."""
    case = source.filled(request)
    steps = []
    for key, plain in PLAIN:
        now = case.get(key)
        values = list(plain)
        if key.startswith(("seq_len", "head_dim")):
            # The rounding of fewer than 8 numbers in a row does not average out.
            values += [now // 16 * 8, now - 8] if key.startswith("head") else [now // 2, now - 1]
        if key in ("num_heads", "num_kv_heads"):
            values.append(now // 2)
        for value in values:
            if value == now:
                break  # the rest is less plain
            if not isinstance(value, (bool, float, str, type(None))) and (value < 1 or value > now):
                continue
            if key.startswith("head_dim") and value < 8:
                continue
            steps.append({key: value})
    # Both at once where a constraint couples them.
    group = case["num_heads"] // case["num_kv_heads"]
    steps += [{"num_heads": group * n, "num_kv_heads": n} for n in (1, 2) if n < case["num_kv_heads"]]
    steps += [{"num_heads": 2, "num_kv_heads": 1}] if group > 2 else []
    steps += [{"head_dim_qk": n, "head_dim_v": n} for n in (64, 128) if n < case["head_dim_qk"]]
    both = min(case["seq_len_q"], case["seq_len_kv"])
    steps += [{"seq_len_q": n, "seq_len_kv": n} for n in (1, 2, 16, 64, 128, both // 2, both - 1) if 0 < n < both]
    made = []
    for change in steps:
        candidate = dict(case, **change)
        if not candidate["mask"].startswith("additive"):  # no bias, no shape of it
            candidate.update(bias_grad=False, bias_shape="b1ss")
        candidate["alone"] = candidate["alone"] and candidate["bias_grad"]
        if _valid(candidate) and candidate != case and candidate not in made:
            made.append(candidate)
    return made


def shrink(request, fails, limit=300):
    """Return (smallest case found, cases tried); `fails(case)` says whether the fault is still there."""
    case, tried, seen = source.filled(request), 0, set()
    moved = True
    while moved and tried < limit:
        moved = False
        for candidate in simpler(case):
            key = repr(sorted(candidate.items(), key=str))
            if key in seen:
                continue
            seen.add(key)
            tried += 1
            if fails(candidate):
                case, moved = candidate, True
                break
            if tried >= limit:
                break
    return case, tried
