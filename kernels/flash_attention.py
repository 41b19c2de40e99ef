"""Does flash-attn, as it is installed, run this workload, and is the result right?

Request: the workload's keys, and `backend`: flash2 (default), flash3 or flash4, each by its own function; optional
`layout`, `repeat`, `seed`. Observed: `module`, `ran` (families), `errors`, `wrong`, `bound`, and what it cost
(see `_cost.measured`). Refused carries flash-attn's own words.
"""

import importlib

import _attention
import _cost
import _gpu
import _layouts
import _sdpa
from _probe import Refused, Unavailable, main, step

#: Where `flash_attn_func` is; wheels of flash-attn 3 come under two names.
MODULES = {
    "flash2": ("flash_attn",),
    "flash3": ("flash_attn_interface", "fa3_fwd_interface"),
    "flash4": ("flash_attn.cute",),
}
#: What flash-attn says of a workload that it does not do.
REFUSALS = ("FlashAttention", "only support", "must be", "should be in [", "not support", "No kernel image")


def _function(backend):
    """(flash_attn_func, its module), or Unavailable where there is none."""
    for name in MODULES[backend]:
        step("import {}".format(name))
        try:
            return importlib.import_module(name).flash_attn_func, name
        except ModuleNotFoundError as error:
            if error.name not in (name, name.split(".")[0]):
                raise  # installed, and something that it needs is not
    raise Unavailable("{} is not installed".format(" or ".join(MODULES[backend])))


def _case(request):
    """The workload as flash-attn can be asked about it: (case, what was changed)."""
    case, shrunk = _attention.workload(request)
    if case["dtype"] == "float32":
        raise Unavailable("flash-attn takes float16 and bfloat16; what a job of float32 casts to is not known")
    if case["head_dim_v"] != case["head_dim_qk"]:
        raise Unavailable(
            "flash-attn is asked about one head dim; here it is {head_dim_qk} / {head_dim_v}".format(**case)
        )
    if case["mask"].startswith("padding"):  # which a job takes out before the call
        bare = case["mask"][len("padding_") :] or "no_mask"
        shrunk["mask"], case["mask"] = [case["mask"], bare], bare
    if case["mask"] not in _attention.PLAIN_MASKS:
        raise Unavailable("flash-attn takes no mask {}".format(case["mask"]))
    if case["mask"] == "causal" and case["seq_len_q"] != case["seq_len_kv"]:
        raise Unavailable("flash-attn's causal mask lies bottom-right where the lengths differ")
    if (case.get("bias") or "no_bias") != "no_bias" or case.get("softcap"):
        raise Unavailable("flash-attn is asked about plain attention only")
    return case, shrunk


def run(request):
    """One workload through `flash_attn_func`, forward and backward."""
    torch = _attention.import_torch()
    function, module = _function(request.get("backend") or "flash2")
    device = _attention.pick_device(torch, request)
    case, shrunk = _case(request)
    observed = {"module": module, "device": device, "torch": str(torch.__version__), "shrunk": shrunk}
    observed.update(case=_attention.described(case), gpu=_gpu.state(device))
    backward = bool(case["training"])
    step("reference")
    data = _attention.tensors(torch, case, device, request.get("seed", 0))
    truth = _attention.Truth(torch, case, *data, backward=backward)
    q, k, v, dout = (_layouts.laid_out(t, request.get("layout", "bshd")) for t in data)
    arguments = {"causal": case["mask"] != "no_mask"}
    if case.get("window"):
        arguments["window_size"] = tuple(case["window"])
    if case.get("scale"):
        arguments["softmax_scale"] = case["scale"]

    def call():
        inputs = [t.detach().transpose(1, 2).requires_grad_(backward) for t in (q, k, v)]
        step("{} forward".format(module))
        out = function(*inputs, **arguments)
        out = out[0] if isinstance(out, tuple) else out
        grads = [None] * 3
        if backward:
            step("{} backward".format(module))
            grads = _sdpa.gradients(torch, out, inputs, dout.transpose(1, 2))
        got = dict(zip(("out", "dq", "dk", "dv"), [out.detach()] + list(grads)))  # noqa: B905 - Python 3.8
        return {name: t if t is None else t.transpose(1, 2) for name, t in got.items()}

    _attention.poison(torch, device, [dout, q, k, v])
    try:
        got, observed["ran"], observed["kernels"], problem = _sdpa.profiled(torch, device, call, kernels=False)
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        if "CUDA error" in str(error) or not any(mark in str(error) for mark in REFUSALS):
            raise
        declined = Refused(str(error))
        declined.observed = observed
        raise declined from error
    if problem:
        observed["profiler"] = problem
    step("timing")
    given = [q, k, v, dout] if backward else [q, k, v]
    observed.update(_cost.measured(torch, case, device, call, given, int(request.get("repeat", 3))))
    step("compare")
    observed.update(_attention.compared(torch, case, truth, got, device))
    return observed


if __name__ == "__main__":
    main(run)
