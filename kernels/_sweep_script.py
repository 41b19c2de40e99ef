"""A reproduction: a short program that needs torch and the library alone, made of the lines that the sweep executed."""

import _sweep_backends
import _sweep_text
import _sweep_truth

BOUND = "raise SystemExit(not all(e <= {:g} for e in errors.values()))"


def script(case, kinds):
    """The program; it prints what it measured and ends with 1 where the fault shows."""
    made = _sweep_backends.text(case)
    device = str(case["device"])
    bound = _bound(case, kinds)
    grads = case["training"] and not case["dropout"]
    names = ["out", "dq", "dk", "dv"] if grads else ["out"]
    lines = ["import torch"] + made["setup"]
    if case["deterministic"]:
        lines.append("torch.use_deterministic_algorithms(True)")
    tail = _tail(case, kinds, names, bound)
    body = _call(case, made, grads)
    about = "\n".join(body + tail + made["prepare"])
    lines += _sweep_text.inputs(case) + _pruned(_sweep_text.masks(case) + made["prepare"], about)
    if "dout" not in about:
        lines = [line for line in lines if not line.startswith("dout =")]
    lines += body + tail
    if device.startswith("cuda") and len(device) > 4:
        lines.insert(1, "torch.cuda.set_device({!r})".format(device))
    return "\n".join(lines) + "\n"


def _bound(case, kinds):
    factor = _sweep_backends.LOOSER.get(case["backend"], 1.0)
    _, bound = _sweep_truth.faults(case, {}, str(case["device"]), factor)
    return max([bound[kind] for kind in kinds if kind in bound] or bound.values())


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
        lines.append("{} = [out, *torch.autograd.grad(out, (q, k, v), dout)]".format(name))
    else:
        lines.append("{} = [out]".format(name))
    return lines


def _tail(case, kinds, names, bound):
    if any(kind.startswith("failed:") for kind in kinds):
        return []  # the exception is the fault
    if set(kinds) & {"blind_nan", "blind_rows"} and not set(kinds) & set(names):
        return [
            "blind = got[0][~keep.any(-1).expand(out.shape[:3])]",
            "print('rows that see no key hold', blind[0, :4].tolist())",
            "raise SystemExit(not bool((blind == 0).all()))",
        ]
    if "not_repeatable" in kinds and not set(kinds) & set(names):
        made = _sweep_backends.text(case)
        return _call(case, made, len(names) > 1, "again") + [
            "same = [bool(torch.equal(a, b)) for a, b in zip(got, again)]",
            "print('same bits twice:', same)",
            "raise SystemExit(not all(same))",
        ]
    if "inputs_changed" in kinds and not set(kinds) & set(names):
        return ["print('q now sums to', float(q.double().sum()))"]
    reference = _sweep_text.reference(case)
    if len(names) == 1:
        reference = [line for line in reference if not line.startswith("want")] + ["want = [ref]"]
    reference += [
        "errors = {{n: float((g.double() - w).norm() / w.norm()) for n, g, w in zip({}, got, want)}}".format(names),
        "print(errors)",
    ]
    return [*reference, BOUND.format(bound)]


def _pruned(lines, wanted):
    """The lines whose names are looked at later, so that the script stays short."""
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
