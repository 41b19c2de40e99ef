"""Do the backends read q, k, v as views of one fused projection as they read contiguous copies?

Request: the workload's keys; optional `backends` (default: all present), `layouts` (default: those of
`_layouts.FUSED` that fit the heads), `device`, `control`: also tell cuDNN the strides of a contiguous tensor for an
interleaved one, to show what such a lie does. Observed: per backend `contiguous` and each layout with outcome, errors
and `wrong`; `wrong` and `wrong_backends` name those that are right on copies and wrong on views.
"""

import _attention
import _cudnn
import _gpu
import _layouts
import _probe
import _sdpa
import _te
from _probe import Refused, Unavailable, main, step

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
    import warnings

    inputs = [t.detach().requires_grad_(True) for t in (q, k, v)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with _sdpa.only(torch, backend):
                try:
                    out, how = _sdpa.call(torch, case, *inputs, None)
                except RuntimeError as error:
                    if inputs[0].shape[1] == inputs[1].shape[1] or _sdpa.refusal(error, caught) is None:
                        raise
                    # Not every backend groups heads itself; repeating copies k and v, but q stays a view.
                    out, how = _sdpa.call(torch, case, *inputs, None, "repeat")
                grads = _sdpa.gradients(torch, out, inputs, dout)
        except RuntimeError as error:
            reason = _sdpa.refusal(error, caught)
            if reason is None:
                raise
            raise Refused(reason) from error
    return {"out": out, "dq": grads[0], "dk": grads[1], "dv": grads[2]}, {"gqa": how}


def _through_frontend(torch, engine, case, q, k, v, dout, strides=(None, None, None)):
    scale = case.get("scale") or case["head_dim_qk"] ** -0.5
    return engine.both(q, k, v, dout, case["mask"], scale, strides=strides), {}


def _through_te(torch, layers, case, q, k, v, dout):
    form = _format(q)
    if form not in layers:
        layers[form] = _te.layer(_te.load(), case, form)
    with _te.Log() as said:
        got = _te.attend(torch, layers[form], case, q, k, v, dout, form)
    return got, {"log": said.lines[-40:]}


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
    inputs = [t.detach().transpose(1, 2).requires_grad_(True) for t in (q, k, v)]
    out = flash_attn_func(*inputs, causal=case["mask"] == "causal")
    grads = _sdpa.gradients(torch, out, inputs, dout.transpose(1, 2))
    got = dict(zip(("out", "dq", "dk", "dv"), (out,) + grads))  # noqa: B905 - Python 3.8
    return {name: t.transpose(1, 2) for name, t in got.items()}, {}


def _format(q):
    """sbhd or bshd, whichever the strides of this (batch, heads, seq, dim) view say."""
    return "sbhd" if q.stride(2) > q.stride(0) else "bshd"


def _attempt(torch, case, device, truth, call):
    """What became of one call, errors as data: one backend's trouble must not cost the others."""
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
        if any(mark in text for mark in _probe.LOST_DEVICE):
            raise  # nothing after it can be trusted
        return {"outcome": "failed", "reason": text[:1000]}
    errors = truth.errors(torch, got)
    _, wrong, offenders = _attention.judge(case, errors, device)
    return dict(about, outcome="ran", errors=errors, wrong=wrong, offenders=offenders)


def _runner(torch, backend, case, device):
    """function(q, k, v, dout) for one backend; what it needs is loaded once."""
    if backend.startswith("sdpa."):
        if device == "cpu" and backend in ("sdpa.efficient", "sdpa.cudnn"):
            raise Unavailable("{} needs a GPU".format(backend))
        return lambda *data: _through_sdpa(torch, backend.split(".")[1], case, *data)
    if device == "cpu":
        raise Unavailable("{} needs a GPU".format(backend))
    if backend == "cudnn.frontend":
        engine = _cudnn.Frontend(_cudnn.frontend(), torch)
        return lambda *data, **more: _through_frontend(torch, engine, case, *data, **more)
    if backend == "transformer_engine":
        _te.load()
        layers = {}
        return lambda *data: _through_te(torch, layers, case, *data)
    if backend == "flash_attn":
        function = _flash_attn()
        return lambda *data: _through_flash_attn(torch, function, case, *data)
    raise ValueError("unknown backend {!r}".format(backend))


def run(request):
    """The same numbers through every backend, as copies and as views."""
    torch = _attention.import_torch()
    device = _attention.pick_device(torch, request)
    case, shrunk = _attention.workload(dict(request, training=True))
    if case["head_dim_v"] != case["head_dim_qk"]:
        raise Unavailable("a fused projection has one head dim; here it is {head_dim_qk} / {head_dim_v}".format(**case))
    if case["mask"] not in ("no_mask", "causal"):
        shrunk["mask"], case["mask"] = [case["mask"], "causal"], "causal"
    case["seq_len_kv"] = case["seq_len_q"]  # one projection, one sequence
    equal = case["num_heads"] == case["num_kv_heads"]
    layouts = request.get("layouts") or [name for name in _layouts.FUSED if equal or not name.endswith("h3d")]
    observed = {
        "device": device,
        "gpu": _gpu.state(device),
        "torch": str(torch.__version__),
        "case": _attention.described(case),
        "shrunk": shrunk,
        "backends": {},
    }
    step("reference")
    data = _attention.tensors(torch, case, device, request.get("seed", 0))
    truth = _attention.Truth(torch, case, *data)
    wrong = []
    for backend in request.get("backends") or BACKENDS:
        found = observed["backends"][backend] = {}
        step("{}: load".format(backend))
        try:
            runner = _runner(torch, backend, case, device)
        except Unavailable as missing:
            found["unavailable"] = str(missing)
            continue
        except Exception as error:
            found["failed"] = "{}: {}".format(type(error).__name__, error)[:1000]
            continue
        for layout in ["contiguous"] + list(layouts):
            step("{}: {}".format(backend, layout))
            # Contiguous in the order of the layout's family, so that nothing but the interleaving differs.
            views = [_layouts.laid_out(t, "sbhd") for t in data[:3]]
            if layout != "contiguous":
                views = _layouts.fused_views(torch, layout, *data[:3])
            dout = _layouts.laid_out(data[3], _format(views[2]))

            def call(views=views, dout=dout, runner=runner):
                return runner(*views, dout)

            found[layout] = _attempt(torch, case, device, truth, call)
        if any(found[layout].get("wrong") for layout in layouts) and found["contiguous"].get("wrong") is not True:
            wrong.append(backend)
        if backend == "cudnn.frontend" and request.get("control"):
            step("{}: control".format(backend))
            views = _layouts.fused_views(torch, "sb(h+2hg)d", *data[:3])
            lie = [_layouts.packed_strides(t.shape, "sbhd") for t in views]
            dout = _layouts.laid_out(data[3], "sbhd")
            observed["control"] = _attempt(torch, case, device, truth, lambda: runner(*views, dout, strides=lie))  # noqa: B023
    observed["bound"], observed["wrong"], observed["wrong_backends"] = (
        _attention.judge(case, {}, device)[0],
        bool(wrong),
        wrong,
    )
    return observed


if __name__ == "__main__":
    main(run)
