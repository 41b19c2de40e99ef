"""Does flash-attn, as it is installed, run this workload, and is the result right?

Request: the workload's keys, and `backend`: flash2 (default), flash3 or flash4, each by its own function; optional
`layout`, `repeat`, `seed`. Observed: `module`, `ran` (families), `errors`, `wrong`, `bound`, and the cost (see
`attention.cost`). Refused carries flash-attn's own words.
"""

import importlib
import inspect

from ..attention.bounds import compare
from ..attention.cost import measure_cost
from ..attention.gpu import import_torch, pick_device, poison, state
from ..attention.layouts import form_of, job_inputs, laid_out, layout_of
from ..attention.randomness import judge_dropout
from ..attention.reference import reference_of
from ..attention.sdpa import gradients, profiled, repeatable
from ..attention.tensors import make_tensors
from ..attention.workload import PLAIN_MASKS, has_backward, workload, workload_of
from ..protocol import Refused, Unavailable, step

#: The module of `flash_attn_func`; wheels of flash-attn 3 come under two names.
MODULES = {
    "flash2": ("flash_attn",),
    "flash3": ("flash_attn_interface", "fa3_fwd_interface"),
    "flash4": ("flash_attn.cute",),
}
#: Parts of flash-attn's messages about a workload that it does not support.
REFUSALS = ("FlashAttention", "only support", "must be", "should be in [", "not support", "No kernel image")


def _function(backend):
    """Return (flash_attn_func, its module); raise Unavailable if it is not installed."""
    for name in MODULES[backend]:
        step("import {}".format(name))
        try:
            return importlib.import_module(name).flash_attn_func, name
        except ModuleNotFoundError as error:
            if error.name not in (name, name.split(".")[0]):
                raise  # installed, but one of its dependencies is not
    raise Unavailable("{} is not installed".format(" or ".join(MODULES[backend])))


def _case(request):
    """Return the workload as flash-attn can run it, and what was changed."""
    case, shrunk = workload(request, dropout=True)
    if case["dtype"] == "float32":
        raise Unavailable("flash-attn takes float16 and bfloat16; which one a float32 job casts to is unknown")
    if case["head_dim_v"] != case["head_dim_qk"]:
        raise Unavailable(
            "this program runs flash-attn with one head dim; here it is {head_dim_qk} / {head_dim_v}".format(**case)
        )
    if case["mask"].startswith("padding"):  # a job removes the padding before the call
        bare = case["mask"][len("padding_") :] or "no_mask"
        shrunk["mask"], case["mask"] = [case["mask"], bare], bare
    if case["mask"] not in PLAIN_MASKS:
        raise Unavailable("flash-attn takes no mask {}".format(case["mask"]))
    if case["mask"] == "causal" and case["seq_len_q"] != case["seq_len_kv"]:
        raise Unavailable("flash-attn's causal mask is bottom-right where the lengths differ")
    if not case.setdefault("bottom_right_diagonal", True) and case["seq_len_q"] != case["seq_len_kv"]:
        raise Unavailable("flash-attn aligns a window to the lower right corner")
    if (case.get("bias") or "no_bias") != "no_bias":
        raise Unavailable("this program runs flash-attn without bias")
    return case, shrunk


def _arguments(function, module, case):
    """Return the job's arguments of flash-attn's function; raise Unavailable for one that this release lacks."""
    arguments = {"causal": case["mask"] != "no_mask"}
    for word, name in (("scale", "softmax_scale"), ("softcap", "softcap"), ("dropout", "dropout_p")):
        if case.get(word):
            arguments[name] = case[word]
    if case.get("window"):
        arguments["window_size"] = tuple(case["window"])
    if case.get("deterministic"):
        arguments["deterministic"] = True
    missing = [name for name in arguments if name not in inspect.signature(function).parameters]
    if missing:
        raise Unavailable("`flash_attn_func` of {} takes no {}".format(module, ", ".join(missing)))
    return arguments


def run(request):
    """Run one workload through `flash_attn_func`, forward and backward."""
    torch = import_torch()
    function, module = _function(request.get("backend") or "flash2")
    device = pick_device(torch, request)
    case, shrunk = _case(request)
    observed = {"module": module, "device": device, "torch": str(torch.__version__), "shrunk": shrunk}
    observed.update(case=workload_of(case), gpu=state(device))
    backward = has_backward(case)
    arguments = _arguments(function, module, case)
    layout = request.get("layout") or layout_of(case)
    step("reference")
    data = make_tensors(torch, case, device, request.get("seed", 0))
    reference = reference_of(torch, case, data, backward, case["dropout"], case.get("softcap"))
    q, k, v = job_inputs(torch, case, layout, *data[:3])
    dout = laid_out(data[3], form_of(layout))

    def call():
        inputs = [t.detach().transpose(1, 2).requires_grad_(backward) for t in (q, k, v)]
        step("{} forward".format(module))
        with repeatable(torch, case):
            out = function(*inputs, **arguments)
            out = out[0] if isinstance(out, tuple) else out
            grads = [None] * 3
            if backward:
                step("{} backward".format(module))
                incoming = out.detach() if case["dropout"] else dout.transpose(1, 2)
                grads = gradients(torch, out, inputs, incoming)
        got = dict(zip(("out", "dq", "dk", "dv"), [out.detach()] + list(grads)))  # noqa: B905 - Python 3.8
        return {name: t if t is None else t.transpose(1, 2) for name, t in got.items()}

    poison(torch, device, [dout, q, k, v])
    try:
        got, observed["ran"], observed["kernels"], problem = profiled(torch, device, call, kernels=False)
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        if "CUDA error" in str(error) or not any(mark in str(error) for mark in REFUSALS):
            raise
        declined = Refused(str(error))
        declined.observed = observed
        raise declined from error
    if problem:
        observed["profiler"] = problem
    step("timing")
    inputs = [q, k, v, dout] if backward else [q, k, v]
    observed.update(measure_cost(torch, case, device, call, inputs, int(request.get("repeat", 3))))
    step("compare")
    if case["dropout"]:
        observed.update(judge_dropout(torch, case, data[:3], reference, got))
    else:
        observed.update(compare(case, reference, got, device))
    return observed
