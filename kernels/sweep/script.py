"""Write a reproduction: a short program of torch and the library alone, made of the lines that the sweep executed."""

from ..attention.randomness import SUMS
from . import calls, judge, source

BOUND = "raise SystemExit(not all(e <= {:g} for e in errors.values()))"
WRONG_KIND = (
    "about = lambda t: [getattr(t, name, None) for name in ('shape', 'dtype', 'device', 'layout')]",
    "print('WrongKind:', type(out), about(out), 'expected:', about(dout))",
    "raise SystemExit(about(out) != about(dout))",
)


def write_script(case, kinds, bounds=None):
    """Return a program that prints what it measured and exits with 1 on the fault; `bounds` are those exceeded."""
    made = calls.text(case)
    device = str(case["device"])
    bound = _bound(case, kinds, bounds)
    grads = case["training"] and not case["dropout"] and "failed:WrongKind" not in kinds
    changed = "inputs_changed" in kinds
    names = ["out", *("d" + name for name in source.gradients(case))] if grads else ["out"]
    lines = ["import torch"] + made["setup"]
    if case["deterministic"]:
        lines.append("torch.use_deterministic_algorithms(True)")
    tail = _tail(case, kinds, names, bound)
    body = _call(case, made, grads)
    about = "\n".join(body + tail)
    lines += source.inputs(case) + _pruned(source.masks(case) + made["prepare"], about)
    if "dout" not in about:
        lines = [line for line in lines if not line.startswith("dout =")]
    if case["before"] == "other_grad" and grads:
        lines += _call(case, made, False)[:-1]
        lines.append("torch.autograd.grad(out, ({}), {})".format(_inputs_of_grad(case), source.other_grad(case)))
    if case.get("primed"):  # as the sweep does before each case: the same call with -v
        lines += ["v.data.neg_()", *_call(case, made, False)[:-1], "v.data.neg_()"]
    if changed:
        lines.append("kept = [t.detach().clone() for t in ({})]".format(", ".join(source.given(case))))
    lines += body + tail
    if device.startswith("cuda") and len(device) > 4:
        lines.insert(1, "torch.cuda.set_device({!r})".format(device))
    return "\n".join(lines) + "\n"


def _bound(case, kinds, bound):
    if not bound:
        _, bound = judge.faults(case, {}, str(case["device"]), calls.looser(case))
    kinds = _tensors(kinds)
    return max([bound[kind] for kind in kinds if kind in bound] or bound.values())


def _tensors(kinds):
    """Return the kinds with the tensor in place of its `_nan` kind."""
    return [kind[:-4] if kind.endswith("_nan") and kind != "blind_nan" else kind for kind in kinds]


def _call(case, made, grads, name="got"):
    indent, lines = "", []
    if case["dropout"]:
        lines.append("torch.manual_seed({})".format(case["seed"] + 1))
    if made["context"]:
        lines.append("with {}:".format(made["context"]))
        indent = "    "
    if case["how"] == "compile":
        lines.append("{}out = torch.compile(lambda: {})()".format(indent, made["call"]))
    else:
        lines.append("{}out = {}".format(indent, made["call"]))
    if grads:
        lines.append("{} = [out, *torch.autograd.grad(out, ({}), dout)]".format(name, _inputs_of_grad(case)))
    else:
        lines.append("{} = [out]".format(name))
    return lines


def _inputs_of_grad(case):
    return ", ".join(source.gradients(case))


def _tail(case, kinds, names, bound):
    kinds = _tensors(kinds)
    if "failed:WrongKind" in kinds:
        return list(WRONG_KIND)
    if any(kind.startswith("failed:") for kind in kinds):
        return []  # the exception is the fault
    if set(kinds) & {"blind_nan", "blind_rows"} and not set(kinds) & set(names):
        return [
            "blind = got[0][~keep.any(-1).expand(out.shape[:3])]",
            "print('rows that see no key hold', blind[0, :4].tolist())",
            "raise SystemExit(not bool((blind == 0).all()))",
        ]
    if "not_repeatable" in kinds and not set(kinds) & set(names):
        made = calls.text(case)
        return _call(case, made, len(names) > 1, "again") + [
            "same = [bool(torch.equal(a, b)) for a, b in zip(got, again)]",
            "print('same bits twice:', same)",
            "raise SystemExit(not all(same))",
        ]
    if "inputs_changed" in kinds and not set(kinds) & set(names):
        given = ", ".join(source.given(case))
        return [
            "same = [bool((now == then).all()) for now, then in zip(({}), kept)]".format(given),
            "print('{} as before:', same)".format(given),
            "raise SystemExit(not all(same))",
        ]
    if "dropout" in kinds and not set(kinds) & set(names):
        return _scatter(case)
    if "dropout_backward" in kinds and not set(kinds) & set(names):
        return [
            "dq, dk, dv = torch.autograd.grad(out, (q, k, v), out.detach())",
            "off = float((v.double() * dv.double()).sum() / (out.double() ** 2).sum()) - 1",
            "print('<v, dv> is <out, out> if backward drops what forward dropped; off by', off)",
            "a, b = q.double() * dq.double(), k.double() * dk.double()",
            "gap = float((a.sum() - b.sum()).abs() / (a.norm() + b.norm()))",
            "print('<q, dq> is <k, dk> whatever is dropped; apart by', gap, 'of their size')",
            "raise SystemExit(abs(off) > {:g} or gap > {:g})".format(2 * bound, SUMS * bound),
        ]
    reference = source.reference(case)
    if len(names) == 1:
        reference = [line for line in reference if not line.startswith("want")] + ["want = [ref]"]
    reference += [
        "errors = {{n: float((g.double() - w).norm() / w.norm()) for n, g, w in zip({}, got, want)}}".format(names),
        "print(errors)",
    ]
    return [*reference, BOUND.format(bound)]


def _scatter(case):
    reference = [line for line in source.reference(case) if not line.startswith("want")]
    rate = case["dropout"]
    return reference + [
        "values = r[2].repeat_interleave(n, 1)",
        "spread = {:g} * (p ** 2 @ values ** 2).sum(-1)".format(rate / (1 - rate)),
        "scatter = float(((out.double() - ref) ** 2).sum() / spread.sum())",
        "few = float((8 * (spread ** 2).sum()) ** 0.5 / spread.sum())",
        "print('scatter over the one that this dropout causes:', scatter, 'allowed off by', 6 * few)",
        "mean = float((out.double() * ref).sum() / (ref ** 2).sum())",
        "wander = float(({:g} * p ** 2 * (ref @ values.mT) ** 2).sum() ** 0.5 / (ref ** 2).sum())".format(
            rate / (1 - rate)
        ),
        "print('projection on the reference, 1 in the mean:', mean, 'allowed off by', 6 * wander)",
        "least, most = min(0.9, max(0.05, 1 - 5 * few)), max(1.12, 1 + 6 * few)",
        "right = least <= scatter <= most and abs(mean - 1) <= 0.02 + 6 * wander",
        "raise SystemExit(not right)",
    ]


def _pruned(lines, wanted):
    """Return the lines whose names are used later, so that the script stays short."""
    kept = []
    for line in reversed(lines):
        names = [name.strip() for name in line.split("=")[0].split("[")[0].split(",")]
        if any(_used(name, wanted) for name in names):
            kept.append(line)
            wanted += "\n" + line.split("=", 1)[1]
    return kept[::-1]


def _used(name, text):
    for piece in "()[],.~:*-+|&<>=/'{}":
        text = text.replace(piece, " ")
    return name in text.split()
