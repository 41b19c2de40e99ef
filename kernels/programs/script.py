"""Write a failed case as a short program of torch and the library alone, which a user can run and share.

Request: `kernel` and `request` as they were run, `where` (the step it ended in), `kind` (wrong, ran, or failed for any
other end), `backend` and `layout` if the kernel tests several. Observed: `script`, or null with `why`. Needs no
package: any interpreter can run it.
"""

from ..attention.bounds import BOUNDS
from ..attention.layouts import layout_of
from ..attention.sdpa import backend_of
from ..attention.workload import workload
from ..protocol import Unavailable
from ..sweep import calls, source

#: Layout in memory of a logical (batch, heads, seq, dim) tensor: the sizes for randn, and the view in logical order.
ORDERS = {
    "bhsd": ("{b}, {h}, {s}, {d}", ""),
    "bshd": ("{b}, {s}, {h}, {d}", ".transpose(1, 2)"),
    "sbhd": ("{s}, {b}, {h}, {d}", ".permute(1, 2, 0, 3)"),
}
#: Views of one fused projection, named as in `attention.layouts.FUSED`: the sizes for randn, the view, the split.
FUSED = {
    "sb(h+2hg)d": ("{s}, {b}, {h} + 2 * {g}, {d}", ".permute(1, 2, 0, 3)", "qkv.split([{h}, {g}, {g}], 1)"),
    "bs(h+2hg)d": ("{b}, {s}, {h} + 2 * {g}, {d}", ".transpose(1, 2)", "qkv.split([{h}, {g}, {g}], 1)"),
    "sbh3d": ("{s}, {b}, {h}, 3, {d}", ".permute(3, 1, 2, 0, 4)", "qkv"),
    "bsh3d": ("{b}, {s}, {h}, 3, {d}", ".permute(3, 0, 2, 1, 4)", "qkv"),
    "sbg(r+2)d": ("{s}, {b}, {g}, {h} // {g} + 2, {d}", ".permute(1, 2, 3, 0, 4)", None),
    "bsg(r+2)d": ("{b}, {s}, {g}, {h} // {g} + 2, {d}", ".permute(0, 2, 3, 1, 4)", None),
}
GROUPED = "qkv[:, :, :-2].reshape({b}, {h}, {s}, {d}), qkv[:, :, -2], qkv[:, :, -1]"
#: Rows of dq and dk may cancel to zero: their error is measured against the whole tensor.
OFF = (
    "def off(got, want, by_row):  # the error of the whole, or a quarter of the worst row's",
    "    delta, rows = got.double() - want, want.norm(dim=-1)",
    "    worst = (delta.norm(dim=-1) / rows.clamp_min(float(rows.square().mean().sqrt()) / 10)).max()",
    "    return max(float(delta.norm() / want.norm()), float(worst) / 4 * by_row)",
)
#: Words of a job that no script writes down, with the value that changes nothing.
UNWRITTEN = {
    "dropout": 0.0, "deterministic": False, "softcap": 0.0, "mask_dtype": "boolean", "qkv_frozen": False,
    "fully_masked_rows": False,
}  # fmt: skip
IMPORTS = {"import cudnn frontend": "import cudnn"}
CONTEXT = "torch.zeros(1, device='cuda')\ntorch.cuda.synchronize()"


def _sweep_case(request):
    """Return the case as a case of the sweep; raise Unavailable if the sweep cannot express it."""
    case, _ = workload(request, dropout=True)
    unwritten = [word for word, plain in UNWRITTEN.items() if (case.get(word) or plain) != plain]
    if case.get("enable_gqa") is False and case["num_heads"] != case["num_kv_heads"]:
        unwritten.append("enable_gqa")
    if unwritten:
        raise Unavailable("a job with {} has no script".format(", ".join(unwritten)))
    mask, window = case["mask"], case.get("window")
    if window and tuple(window) != (-1, -1):
        left, right = window
        if mask not in ("no_mask", "causal") or left < 0 or case["seq_len_q"] != case["seq_len_kv"]:
            raise Unavailable("a window of {} with mask {} has no script".format(list(window), mask))
        if mask == "no_mask" and left != right:
            raise Unavailable("a window of {} has no script".format(list(window)))
        mask, case["window_size"] = "window" if mask == "causal" else "window_both", left
    mask = {"arbitrary": "boolean"}.get(mask, mask)
    known = (
        "no_mask",
        "causal",
        "causal_bottom_right",
        "padding",
        "padding_causal",
        "boolean",
        "window",
        "window_both",
    )
    if mask not in known:
        raise Unavailable("mask {} has no script".format(mask))
    kept = {name: case[name] for name in source.DEFAULTS if name in case and name not in ("layout", "device")}
    kept.update(mask=mask, device=str(request.get("device") or "cuda"), layout="bshd", softcap=0.0, deterministic=False)
    for name in ("scale", "window_size"):
        if case.get(name):
            kept[name] = case[name]
    return source.filled(kept)


def _tensors(case, layout):
    """Return the lines that make q, k, v and dout with this layout in memory."""
    sizes = {"b": case["batch_size"], "h": case["num_heads"], "g": case["num_kv_heads"], "s": case["seq_len_q"]}
    sizes["d"] = case["head_dim_qk"]
    lines = [
        "torch.manual_seed({})".format(case["seed"]),
        "opts = dict(device={!r}, dtype=torch.{})".format(case["device"], case["dtype"]),
    ]
    if layout in FUSED:
        form = "sbhd" if layout.startswith("s") else "bshd"
        shape, back, cut = FUSED[layout]
        lines.append("qkv = torch.randn({}, **opts){}".format(shape.format(**sizes), back))
        lines.append("q, k, v = " + (cut or GROUPED).format(**sizes))
    else:
        form = layout
        shape, back = ORDERS[form]
        for name, heads, length, dim in (
            ("q", case["num_heads"], case["seq_len_q"], case["head_dim_qk"]),
            ("k", case["num_kv_heads"], case["seq_len_kv"], case["head_dim_qk"]),
            ("v", case["num_kv_heads"], case["seq_len_kv"], case["head_dim_v"]),
        ):
            made = shape.format(b=case["batch_size"], h=heads, s=length, d=dim)
            lines.append("{} = torch.randn({}, **opts){}".format(name, made, back))
    if case["training"]:
        lines.append("q, k, v = (t.detach().requires_grad_() for t in (q, k, v))")
    shape, back = ORDERS[form]
    made = shape.format(b=case["batch_size"], h=case["num_heads"], s=case["seq_len_q"], d=case["head_dim_v"])
    lines.append("dout = torch.randn({}, **opts){}".format(made, back))
    return lines


def _te(case, form, window):
    """Return TransformerEngine's module as a job makes it, with no backend forced."""
    order, back = {"sbhd": ((2, 0, 1, 3), (1, 2, 0, 3)), "bshd": ((0, 2, 1, 3), (0, 2, 1, 3))}[form]
    mask = {"window": "causal", "window_both": "no_mask", "boolean": "arbitrary"}.get(case["mask"], case["mask"])
    more, prepare = "", []
    if case["mask"] == "boolean":
        more = ", attention_mask=~keep"
    elif case["mask"].startswith("padding"):
        if case["seq_len_q"] != case["seq_len_kv"]:
            raise Unavailable("padding with q and kv of different lengths has no script")
        prepare = ["beyond = j >= torch.tensor(lens_k, device=q.device)[:, None, None, None]"]
        more = ", attention_mask=beyond"
    if window:
        more += ", window_size={}".format(tuple(window))
    dims = case["head_dim_qk"]
    if case["head_dim_v"] != dims:
        dims = (dims, case["head_dim_v"])
    setup = [
        "import transformer_engine.pytorch as te",
        "layer = te.DotProductAttention({}, {}, num_gqa_groups={}, attention_dropout=0.0, qkv_format={!r},"
        " attn_mask_type={!r})".format(case["num_heads"], dims, case["num_kv_heads"], form, mask),
    ]
    call = "layer({}{}).unflatten(2, ({}, {})).permute{}".format(
        ", ".join("{}.permute{}".format(name, order) for name in "qkv"),
        more, case["num_heads"], case["head_dim_v"], back,
    )  # fmt: skip
    return {"setup": setup, "prepare": prepare, "call": call, "context": None}


def _library(kernel, request, case, backend):
    """Return the text of the library's call and the layout of its inputs in memory."""
    form = str(request.get("qkv_layout") or "sbhd").split("_")[0].replace("3", "").replace("2", "")
    form = form if form in ("sbhd", "bshd") else "bshd"
    if kernel == "te_attention" or backend == "transformer_engine":
        fused = request.get("qkv_interleaved") and case["head_dim_qk"] == case["head_dim_v"]
        return _te(case, form, request.get("window")), form[:2] + "(h+2hg)d" if fused else form
    names = {"cudnn_sdpa": "sdpa.cudnn", "sdpa": "sdpa." + str(backend_of(request))}
    names["flash_attention"] = str(request.get("backend") or "flash2")
    name = {"flash_attn": "flash2"}.get(backend, backend) or names.get(kernel)
    if name not in calls.BACKENDS:
        raise Unavailable("`{}` has no script".format(name or kernel))
    return calls.text(dict(case, backend=name)), str(request.get("layout") or layout_of(request))


def _tail(case, kind, call):
    """Return the lines of the call and of the check that shows the fault."""
    names = ["out", "dq", "dk", "dv"] if case["training"] else ["out"]
    grads = "\ngot = [out, *torch.autograd.grad(out, (q, k, v), dout)]" if case["training"] else "\ngot = [out]"
    call = call + grads
    if kind == "ran":
        body = "\n".join("    " + line for line in call.split("\n"))
        return [
            "with torch.profiler.profile() as seen:", body,
            "names = [event.key for event in seen.key_averages()]",
            "print(*[n for n in names if any(p in n for p in ('attention', 'sdpa', 'flash', 'fmha'))], sep='\\n')",
        ]  # fmt: skip
    if kind != "wrong":
        return [call] + (["torch.cuda.synchronize()"] if case["device"].startswith("cuda") else [])
    reference = source.reference(case)
    if not case["training"]:
        reference = [line for line in reference if not line.startswith("want")] + ["want = [ref]"]
    bound = max(BOUNDS[case["dtype"]])
    return [call] + reference + list(OFF) + [
        "pairs = zip({}, [t.detach() for t in got], want)".format(names),
        "errors = {n: off(g, w.detach(), n in ('out', 'dv')) for n, g, w in pairs}",
        "print(errors)",
        "raise SystemExit(not all(error <= {:g} for error in errors.values()))".format(bound),
    ]  # fmt: skip


def _needed(lines, rest):
    """Return the lines whose names are used later."""
    kept = []
    for line in reversed(lines):
        names = [name.strip() for name in line.split("=")[0].split("[")[0].split(",")]
        if any(_uses(name, rest) for name in names):
            kept.append(line)
            rest += "\n" + line.split("=", 1)[1]
    return kept[::-1]


def _uses(name, text):
    return name in "".join(c if c.isalnum() or c == "_" else " " for c in text).split()


def _script(request):
    where, kind, workload_request = (
        str(request.get("where") or ""),
        request.get("kind"),
        dict(request.get("request") or {}),
    )
    environment = workload_request.pop("env", None) or {}
    lines = ["import torch"]
    if environment:
        lines.insert(0, "import os\nos.environ.update({!r})".format({k: str(v) for k, v in environment.items()}))
    if where.startswith("import ") and kind == "failed":
        what = IMPORTS.get(where, where)
        return lines + ([what] if what != "import torch" else [])
    if where == "cuda context" and kind == "failed":
        return lines + [CONTEXT]
    if request["kernel"] == "strided_qkv":  # that program runs one sequence
        workload_request["mask"] = (
            workload_request.get("mask") if workload_request.get("mask") in ("no_mask", "causal") else "causal"
        )
        workload_request["seq_len_kv"] = workload_request.get("seq_len_q")
    case = _sweep_case(workload_request)
    backend = request.get("backend")
    if request["kernel"] == "strided_qkv" and not backend:
        raise Unavailable("it tests several backends and did not report which one failed")
    text, layout = _library(request["kernel"], workload_request, case, backend)
    call = "out = " + text["call"]
    if text["context"]:
        call = "with {}:\n    {}".format(text["context"], call)
    tail = _tail(case, kind, call)
    body = _needed(source.masks(case) + text.get("prepare", []), "\n".join(tail))
    made = _tensors(case, str(request.get("layout") or layout))
    if not _uses("dout", "\n".join(tail)):
        made = [line for line in made if not line.startswith("dout")]
    return lines + text["setup"] + made + body + tail


def run(request):
    """Return the script as text."""
    try:
        return {"script": "\n".join(_script(request)) + "\n"}
    except Unavailable as missing:
        return {"script": None, "why": str(missing)}
