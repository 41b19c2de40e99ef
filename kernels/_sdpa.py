"""torch's scaled_dot_product_attention, one backend at a time: how it is held, called, watched and judged."""

import warnings

import _attention
import _cost
import _gpu
import _layouts
from _probe import Refused, Unavailable, step

BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
#: What torch says when a backend is not to be had, as opposed to one that broke.
REFUSALS = ("No available kernel", "No viable backend", "Invalid backend")

#: Family by a piece of a kernel's, an operator's or an autograd function's name; first hit wins, as cuDNN's names hold
#: "flash" too. `FusedAttnFunc` is TransformerEngine's call of cuDNN.
FAMILIES = (
    ("FusedAttnFunc", "cudnn"),
    ("cudnn_attention", "cudnn"),
    ("cudnn_generated", "cudnn"),
    ("cudnn_scaled_dot", "cudnn"),
    ("sdpa_sm", "cudnn"),
    ("fmha_cutlass", "efficient"),
    ("efficient_attention", "efficient"),
    ("AttentionKernel", "efficient"),
    ("AttentionBackwardKernel", "efficient"),
    ("flash_attention", "flash"),
    ("flash_fwd", "flash"),
    ("flash_bwd", "flash"),
    ("FlashAttn", "flash"),
    ("flash_attn", "flash"),
    ("attention_math", "math"),
)


def family(name):
    """Backend that a profiler name belongs to, or None."""
    for piece, owner in FAMILIES:
        if piece in name:
            return owner
    return None


def only(torch, backend):
    """A context in which torch may use this backend alone; Unavailable where this torch does not know it."""
    import contextlib

    if backend == "default":
        return contextlib.nullcontext()
    if backend not in BACKENDS:
        raise ValueError("unknown backend {!r}".format(backend))
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel  # torch >= 2.3
    except ImportError as error:
        if backend == "cudnn" or not hasattr(torch.backends.cuda, "sdp_kernel"):
            text = "torch {} cannot be held to the {} backend".format(torch.__version__, backend)
            raise Unavailable(text) from error
        return torch.backends.cuda.sdp_kernel(
            enable_flash=backend == "flash",
            enable_mem_efficient=backend == "efficient",
            enable_math=backend == "math",
        )
    member = getattr(SDPBackend, BACKENDS[backend], None)
    if member is None:
        raise Unavailable("torch {} has no {} backend".format(torch.__version__, backend))
    return sdpa_kernel([member])


def call(torch, case, q, k, v, keep, gqa="enable"):
    """One forward call, spelled as a careful user would; (output, how grouped heads were passed)."""
    function = torch.nn.functional.scaled_dot_product_attention
    arguments, how = {"scale": case.get("scale")}, "equal"
    if q.shape[1] != k.shape[1]:
        how = gqa
        if gqa == "enable" and "enable_gqa" in (function.__doc__ or ""):  # torch >= 2.5
            arguments["enable_gqa"] = True
        else:
            how, group = "repeat", q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    if keep is not None:
        arguments["attn_mask"] = keep
    elif case["mask"] == "causal":
        arguments["is_causal"] = True
    elif case["mask"] == "causal_bottom_right":
        try:
            from torch.nn.attention.bias import causal_lower_right
        except ImportError as error:
            raise Unavailable("torch {} has no causal_lower_right".format(torch.__version__)) from error
        arguments["attn_mask"] = causal_lower_right(q.shape[-2], k.shape[-2])
    return function(q, k, v, **arguments), how


def gradients(torch, out, inputs, dout):
    """What torch.autograd.grad(out, inputs, dout) gives.

    That call imports sympy to compare two shapes, a second on its first time; a scalar needs no such check, and the
    hook puts `dout`, as it lies in memory, in the place of the scalar's own gradient.
    """
    handle = out.register_hook(lambda _: dout)
    try:
        return torch.autograd.grad(out.sum(), inputs)
    finally:
        handle.remove()


def _watch(torch, gpu):
    """The profiler that torch.profiler.profile wraps: the wrapper imports torch._inductor, which takes seconds."""
    from torch.autograd.profiler import profile

    if not gpu:
        return profile(use_kineto=True)
    release = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
    return profile(use_kineto=True, **({"use_device": "cuda"} if release >= (2, 3) else {"use_cuda": True}))


def profiled(torch, device, function, kernels=True):
    """(result, families that ran, names that tell it, why not known).

    `kernels=False` records the operators that torch and the libraries dispatched to, and not the kernels on the GPU:
    an attention operator belongs to one backend, and CUPTI, which is slow to start, is left alone.
    """
    gpu = device.startswith("cuda")
    try:
        context = _watch(torch, gpu and kernels)
        context.__enter__()
    except Exception as error:  # CUPTI needs rights that a container may not give
        return function(), [], [], str(error)
    try:
        result = function()
        if gpu:
            torch.cuda.synchronize()
    finally:
        context.__exit__(None, None, None)
    events = [event for event in context.function_events if family(event.name)]
    # What ran on the device is the proof; operators (aten::...) stand in where nothing of it was recorded.
    proof = [event for event in events if _on_device(event)] or [e for e in events if "Backward0" not in e.name]
    ran = sorted({family(event.name) for event in proof})
    return result, ran, sorted({event.name[:160] for event in events}), None


def _on_device(event):
    return str(getattr(event, "device_type", "")).endswith("CUDA")


def refusal(error, caught):
    """Whether torch declined rather than failed, and its reasons in its own words, each once."""
    if not any(mark in str(error) for mark in REFUSALS):
        return None
    reasons = []
    for warning in caught:
        text = str(warning.message).split(" (Triggered internally at")[0].strip()
        if text not in reasons and "is deprecated" not in text:
            reasons.append(text)
    return "; ".join([*reasons, str(error)])


def measure(request):
    """One workload on one backend, forward and backward: what `kernels/sdpa.py` answers."""
    torch = _attention.import_torch()
    device = _attention.pick_device(torch, request)
    case, shrunk = _attention.workload(request)
    backend, backward = request.get("backend", "default"), bool(case["training"])
    observed = {"backend": backend, "device": device, "torch": str(torch.__version__)}
    observed["case"] = _attention.described(case)
    observed["shrunk"] = shrunk
    observed["gpu"] = _gpu.state(device)
    context = only(torch, backend)
    step("reference")
    data = _attention.tensors(torch, case, device, request.get("seed", 0))
    truth = _attention.Truth(torch, case, *data, backward=backward)
    layout = request.get("layout", "bshd")
    q, k, v, dout = (_layouts.laid_out(t, layout) for t in data)
    inputs = [t.requires_grad_(backward) for t in (q, k, v)]
    keep = None if case["mask"] in _attention.PLAIN_MASKS and not case.get("window") else "dense"
    if keep == "dense":
        keep = _attention.keep_mask(torch, case, device)

    def both():
        step("{} forward".format(backend))
        out, how = call(torch, case, q, k, v, keep, request.get("gqa", "enable"))
        grads = [None] * 3
        if backward:
            step("{} backward".format(backend))
            grads = gradients(torch, out, inputs, dout)
        return out, grads, how

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with context:
                _attention.poison(torch, device, [dout, q, k, v])
                asked = request.get("profile", True)
                if asked:
                    seen = profiled(torch, device, both, kernels=asked == "kernels")
                    result, observed["ran"], observed["kernels"], problem = seen
                    if problem:
                        observed["profiler"] = problem
                else:
                    result = both()
                if device.startswith("cuda"):
                    torch.cuda.synchronize()
                out, grads, how = result
                got = {"out": out.detach(), "dq": grads[0], "dk": grads[1], "dv": grads[2]}
                step("{} timing".format(backend))
                given = [q, k, v, dout] if backward else [q, k, v]
                repeat = int(request.get("repeat", 3))
                observed.update(_cost.measured(torch, case, device, both, given, repeat))
        except RuntimeError as error:
            reason = refusal(error, caught)
            if reason is None:
                raise
            declined = Refused(reason)
            declined.observed = observed
            raise declined from error
    step("compare")
    observed["gqa"] = how
    observed.update(_attention.compared(torch, case, truth, got, device))
    if case["dtype"] == "float32":
        observed["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    said = [str(w.message).split(" (Triggered internally at")[0].strip()[:500] for w in caught]
    observed["warnings"] = sorted(set(said))[:8]
    return observed
