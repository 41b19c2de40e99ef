"""Do the backends read q, k, v as views of one fused projection as they read contiguous copies?

Request: the workload's keys; optional `backends` (default: all that are installed), `layouts` (default: those of
`attention.layouts.FUSED` that fit the heads), `device`, `control`: also tell cuDNN the strides of a contiguous tensor
for an interleaved one, to show what such a mistake does. Observed: per backend `contiguous` and each layout with
outcome, errors and `wrong`; `wrong` and `wrong_backends` name those that are right on copies and wrong on views.
"""

import warnings

from ..attention import cudnn, sdpa, te
from ..attention.bounds import judge
from ..attention.gpu import import_torch, pick_device, state
from ..attention.layouts import FUSED, fused_views, laid_out, layout_of, packed_strides
from ..attention.reference import reference_of
from ..attention.tensors import make_tensors
from ..attention.workload import has_backward, workload, workload_of
from ..protocol import LOST_DEVICE, Refused, Unavailable, step

BACKENDS = (
    "sdpa.flash",
    "sdpa.efficient",
    "sdpa.cudnn",
    "sdpa.math",
    "cudnn.frontend",
    "transformer_engine",
    "flash_attn",
)


def _through_sdpa(torch, backend, case, q, k, v, dout):
    backward = has_backward(case)
    inputs = [t.detach().requires_grad_(backward) for t in (q, k, v)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with sdpa.only(torch, backend), sdpa.repeatable(torch, case):
                try:
                    out, how = sdpa.call(torch, case, *inputs, None, sdpa.grouping_of(case))
                except RuntimeError as error:
                    grouped = inputs[0].shape[1] != inputs[1].shape[1] and not case.get("enable_gqa")
                    if not grouped or sdpa.refusal(error, caught) is None:
                        raise
                    # Not every backend groups heads itself; repeating copies k and v, but q stays a view.
                    out, how = sdpa.call(torch, case, *inputs, None, "repeat")
                grads = sdpa.gradients(torch, out, inputs, dout) if backward else [None] * 3
        except RuntimeError as error:
            reason = sdpa.refusal(error, caught)
            if reason is None:
                raise
            raise Refused(reason) from error
    return {"out": out, "dq": grads[0], "dk": grads[1], "dv": grads[2]}, {"gqa": how}


def _through_frontend(engine, case, q, k, v, dout, strides=(None, None, None)):
    scale = case.get("scale") or case["head_dim_qk"] ** -0.5
    return engine.both(q, k, v, dout, case["mask"], scale, strides=strides, backward=has_backward(case)), {}


def _through_te(torch, layers, case, q, k, v, dout):
    form = _format(q)
    if form not in layers:
        layers[form] = te.layer(te.load(), case, form)
    with te.Log() as log:
        got = te.attend(torch, layers[form], case, q, k, v, dout, form)
    return got, {"log": log.lines[-40:]}


def _flash_attn():
    step("import flash_attn")
    try:
        from flash_attn import flash_attn_func
    except ModuleNotFoundError as error:
        if error.name != "flash_attn":
            raise
        raise Unavailable("flash_attn is not installed") from error
    return flash_attn_func


def _through_flash_attn(torch, flash_attn_func, case, q, k, v, dout):
    backward = has_backward(case)
    inputs = [t.detach().transpose(1, 2).requires_grad_(backward) for t in (q, k, v)]
    with sdpa.repeatable(torch, case):
        out = flash_attn_func(*inputs, causal=case["mask"] == "causal", softmax_scale=case.get("scale"))
        grads = sdpa.gradients(torch, out, inputs, dout.transpose(1, 2)) if backward else ()
    got = dict(zip(("out", "dq", "dk", "dv"), (out, *grads)))  # noqa: B905 - Python 3.8
    return {name: t.transpose(1, 2) for name, t in got.items()}, {}


def _format(q):
    """Return sbhd or bshd, whichever the strides of this (batch, heads, seq, dim) view show."""
    return "sbhd" if q.stride(2) > q.stride(0) else "bshd"


def _attempt(case, device, torch, reference, call):
    """Return the result of one call with errors as data: a failing backend must not end the others."""
    try:
        got, about = call()
        if device != "cpu":
            torch.cuda.synchronize()
    except Refused as declined:
        return {"outcome": "refused", "reason": str(declined)[:1000]}
    except Unavailable as missing:
        return {"outcome": "unavailable", "reason": str(missing)[:1000]}
    except Exception as error:
        text = "{}: {}".format(type(error).__name__, error)
        if any(mark in text for mark in LOST_DEVICE):
            raise  # later results of this process mean nothing
        return {"outcome": "failed", "reason": text[:1000]}
    errors = reference.errors(got)
    _, wrong, offenders = judge(case, errors, device)
    return dict(about, outcome="ran", errors=errors, wrong=wrong, offenders=offenders)


def _runner(torch, backend, case, device):
    """Return function(q, k, v, dout) for one backend; its library is loaded once."""
    if backend.startswith("sdpa."):
        if device == "cpu" and backend in ("sdpa.efficient", "sdpa.cudnn"):
            raise Unavailable("{} needs a GPU".format(backend))
        return lambda *data: _through_sdpa(torch, backend.split(".")[1], case, *data)
    if device == "cpu":
        raise Unavailable("{} needs a GPU".format(backend))
    if backend == "cudnn.frontend":
        engine = cudnn.Frontend(cudnn.frontend(), torch)
        return lambda *data, **more: _through_frontend(engine, case, *data, **more)
    if backend == "transformer_engine":
        te.load()
        layers = {}
        return lambda *data: _through_te(torch, layers, case, *data)
    if backend == "flash_attn":
        function = _flash_attn()
        return lambda *data: _through_flash_attn(torch, function, case, *data)
    raise ValueError("unknown backend {!r}".format(backend))


def run(request):
    """Run the same numbers through every backend, as copies and as views."""
    torch = import_torch()
    device = pick_device(torch, request)
    case, shrunk = workload(request)
    if case["head_dim_v"] != case["head_dim_qk"]:
        raise Unavailable("a fused projection has one head dim; here it is {head_dim_qk} / {head_dim_v}".format(**case))
    if case["mask"] not in ("no_mask", "causal"):
        shrunk["mask"], case["mask"] = [case["mask"], "causal"], "causal"
    if case["seq_len_kv"] != case["seq_len_q"]:  # one projection, one sequence
        shrunk["seq_len_kv"] = [shrunk.get("seq_len_kv", [case["seq_len_kv"]])[0], case["seq_len_q"]]
        case["seq_len_kv"] = case["seq_len_q"]
    layout_of(case)  # packed sequences have no such views
    equal = case["num_heads"] == case["num_kv_heads"]
    layouts = request.get("layouts") or [name for name in FUSED if equal or not name.endswith("h3d")]
    observed = {
        "device": device,
        "gpu": state(device),
        "torch": str(torch.__version__),
        "case": workload_of(case),
        "shrunk": shrunk,
        "backends": {},
    }
    step("reference")
    data = make_tensors(torch, case, device, request.get("seed", 0))
    reference = reference_of(torch, case, data, backward=has_backward(case))
    wrong = []
    pinned = case.get("sdpa_backend")
    for backend in request.get("backends") or (["sdpa." + pinned] if pinned else BACKENDS):
        results = observed["backends"][backend] = {}
        step("{}: load".format(backend))
        try:
            runner = _runner(torch, backend, case, device)
        except Unavailable as missing:
            results["unavailable"] = str(missing)
            continue
        except Exception as error:
            results["failed"] = "{}: {}".format(type(error).__name__, error)[:1000]
            continue
        for layout in ["contiguous"] + list(layouts):
            step("{}: {}".format(backend, layout))
            # Contiguous in the order of the layout's family, so that only the interleaving differs.
            views = [laid_out(t, "sbhd") for t in data[:3]]
            if layout != "contiguous":
                views = fused_views(torch, layout, *data[:3])
            dout = laid_out(data[3], _format(views[2]))

            def call(views=views, dout=dout, runner=runner):
                return runner(*views, dout)

            results[layout] = _attempt(case, device, torch, reference, call)
        if any(results[layout].get("wrong") for layout in layouts) and results["contiguous"].get("wrong") is not True:
            wrong.append(backend)
        if backend == "cudnn.frontend" and request.get("control"):
            step("{}: control".format(backend))
            views = fused_views(torch, "sb(h+2hg)d", *data[:3])
            false_strides = [packed_strides(t.shape, "sbhd") for t in views]
            dout = laid_out(data[3], "sbhd")
            observed["control"] = _attempt(
                case, device, torch, reference, lambda: runner(*views, dout, strides=false_strides)  # noqa: B023
            )  # fmt: skip
    observed["bound"] = judge(case, {}, device)[0]
    observed["wrong"], observed["wrong_backends"] = bool(wrong), wrong
    return observed
