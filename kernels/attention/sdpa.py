"""torch's scaled_dot_product_attention on one backend at a time: select it, call it, profile it, judge the result."""

import contextlib
import warnings

from ..protocol import Refused, Unavailable, step
from .bounds import compare
from .cost import measure_cost
from .gpu import import_torch, pick_device, poison, state
from .layouts import form_of, job_inputs, laid_out, layout_of
from .randomness import judge_dropout
from .reference import reference_of
from .tensors import make_tensors, mask_argument
from .workload import PLAIN_MASKS, has_backward, has_window, workload, workload_of

BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
#: torch's messages when a backend does not support a workload, as opposed to a backend that failed.
REFUSALS = ("No available kernel", "No viable backend", "Invalid backend")

#: Family by a part of the name of a kernel, an operator or an autograd function; the first match counts, because
#: cuDNN's names contain "flash" too. `FusedAttnFunc` is TransformerEngine's call of cuDNN.
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
    """Return the backend that a profiler name belongs to, or None."""
    for piece, owner in FAMILIES:
        if piece in name:
            return owner
    return None


def only(torch, backend):
    """Return a context in which torch uses this backend only; raise Unavailable if this torch lacks it."""
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


def backend_of(request):
    """Return the backend that the request tests, else the one that the job pins with sdpa_kernel, else default."""
    tested = request.get("backend") or "default"
    return tested if tested != "default" else request.get("sdpa_backend") or "default"


def grouping_of(request):
    """Return how grouped heads are passed: as the request tests, else as the job does, else grouped where possible."""
    return request.get("gqa") or ("repeat" if request.get("enable_gqa") is False else "enable")


@contextlib.contextmanager
def repeatable(torch, case):
    """Hold torch to deterministic algorithms, if the job does."""
    if not case.get("deterministic"):
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def call(torch, case, q, k, v, keep, gqa="enable"):
    """Make one forward call as a careful user would; return the output and how grouped heads were passed."""
    function = torch.nn.functional.scaled_dot_product_attention
    arguments, how = {"scale": case.get("scale")}, "equal"
    if q.shape[1] != k.shape[1]:
        how = gqa
        if gqa == "enable" and "enable_gqa" in (function.__doc__ or ""):  # torch >= 2.5
            arguments["enable_gqa"] = True
        elif gqa == "enable" and case.get("enable_gqa"):
            raise Unavailable("torch {} has no enable_gqa".format(torch.__version__))
        else:
            how, group = "repeat", q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    if case["dropout"]:
        arguments["dropout_p"] = case["dropout"]
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
    """Return torch.autograd.grad(out, inputs, dout).

    That call imports sympy to compare two shapes, which takes a second the first time. A scalar needs no such check,
    and the hook replaces the gradient of the scalar by `dout`, with its layout in memory.
    """
    handle = out.register_hook(lambda _: dout)
    try:
        return torch.autograd.grad(out.sum(), inputs)
    finally:
        handle.remove()


def _profiler(torch, gpu):
    """Return the profiler that torch.profiler.profile wraps: the wrapper imports torch._inductor, taking seconds."""
    from torch.autograd.profiler import profile

    if not gpu:
        return profile(use_kineto=True)
    release = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
    return profile(use_kineto=True, **({"use_device": "cuda"} if release >= (2, 3) else {"use_cuda": True}))


def profiled(torch, device, function, kernels=True):
    """Return (result, families that ran, names that show it, why they are unknown).

    `kernels=False` records the operators that torch and the libraries dispatched to, not the kernels on the GPU: an
    attention operator belongs to one backend, and CUPTI, which is slow to start, is not needed.
    """
    gpu = device.startswith("cuda")
    try:
        context = _profiler(torch, gpu and kernels)
        context.__enter__()
    except Exception as error:  # CUPTI needs permissions that a container may lack
        return function(), [], [], str(error)
    try:
        result = function()
        if gpu:
            torch.cuda.synchronize()
    finally:
        context.__exit__(None, None, None)
    events = [event for event in context.function_events if family(event.name)]
    # Kernels on the device are the proof; operators (aten::...) count only where none was recorded.
    proof = [event for event in events if _on_device(event)] or [e for e in events if "Backward0" not in e.name]
    ran = sorted({family(event.name) for event in proof})
    return result, ran, sorted({event.name[:160] for event in events}), None


def _on_device(event):
    return str(getattr(event, "device_type", "")).endswith("CUDA")


def refusal(error, caught):
    """Return torch's reasons if it declined the workload, each once; None if it failed."""
    if not any(mark in str(error) for mark in REFUSALS):
        return None
    reasons = []
    for warning in caught:
        text = str(warning.message).split(" (Triggered internally at")[0].strip()
        if text not in reasons and "is deprecated" not in text:
            reasons.append(text)
    return "; ".join([*reasons, str(error)])


def measure(request):
    """Run one workload on one backend, forward and backward, and return what the program `sdpa` reports."""
    torch = import_torch()
    device = pick_device(torch, request)
    case, shrunk = workload(request, dropout=True)
    backend, backward = backend_of(request), has_backward(case)
    observed = {"backend": backend, "device": device, "torch": str(torch.__version__)}
    observed["case"] = workload_of(case)
    observed["shrunk"] = shrunk
    observed["gpu"] = state(device)
    context = only(torch, backend)
    layout = request.get("layout") or layout_of(case)
    step("reference")
    data = make_tensors(torch, case, device, request.get("seed", 0))
    reference = reference_of(torch, case, data, backward=backward, dropout=case["dropout"])
    q, k, v = job_inputs(torch, case, layout, *data[:3])
    dout = laid_out(data[3], form_of(layout))
    inputs = [t.detach().requires_grad_(backward) for t in (q, k, v)]
    written = case["mask"] not in PLAIN_MASKS or has_window(case.get("window"))
    keep = mask_argument(torch, case, device) if written else None

    def both():
        with repeatable(torch, case):
            step("{} forward".format(backend))
            out, how = call(torch, case, *inputs, keep, grouping_of(request))
            grads = [None] * 3
            if backward:
                step("{} backward".format(backend))
                grads = gradients(torch, out, inputs, out.detach() if case["dropout"] else dout)
        return out, grads, how

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with context:
                poison(torch, device, [dout, q, k, v])
                how_to_profile = request.get("profile", True)
                if how_to_profile:
                    profile = profiled(torch, device, both, kernels=how_to_profile == "kernels")
                    result, observed["ran"], observed["kernels"], problem = profile
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
                observed.update(measure_cost(torch, case, device, both, given, repeat))
        except RuntimeError as error:
            reason = refusal(error, caught)
            if reason is None:
                raise
            declined = Refused(reason)
            declined.observed = observed
            raise declined from error
    step("compare")
    observed["gqa"] = how
    if case["dropout"]:
        observed.update(judge_dropout(torch, case, data[:3], reference, got))
    else:
        observed.update(compare(case, reference, got, device))
    if case["dtype"] == "float32":
        observed["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    messages = {str(w.message).split(" (Triggered internally at")[0].strip()[:500] for w in caught}
    observed["warnings"] = sorted(messages)[:8]
    return observed
