"""How fast is one attention backend on this job, how much memory does it take, and is it right?

Request: the workload's keys, and `measured`: the id of a backend as `attn-doctor backends` names it; optional
`compiled` (through torch.compile), `budget` (seconds of this process after which nothing more is measured), `device`
(cuda; cpu only on request), `seed`. Observed: the fields of `doctor/facts/measurement.py`.
"""

import contextlib
import importlib
import json
import os
import sys
import time

from ..attention.clock import matrix_rate, seconds_of, timed
from ..attention.gpu import import_torch, pick_device, state
from ..attention.sdpa import profiled
from ..measure import library_engines as libraries
from ..measure import torch_engines as own
from ..measure.job import Job
from ..measure.truth import Truth
from ..protocol import Refused, Unavailable, step

#: Parts of the messages of libraries about a job that they do not support.
REFUSALS = (
    "only support", "not support", "must be", "should be", "No operator found", "unsupported", "NYI", "No kernel image",
    "FlashAttention", "is not implemented", "not implemented for", "Expected", "requires", "No valid triton configs",
    "NoValidChoicesError", "out of resource",
)  # fmt: skip
#: Milliseconds of a step above which it is not run twice to see whether the results are equal.
ONCE = 800.0
#: Backends that exist in compiled form only.
COMPILED = ("flex.triton",)
_job = {}  # the last job: several backends are measured on the same tensors
_began = []


def prepare():
    """Import torch and its compiler: the process was started ahead, to compile while another one measures."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import_torch()
    for name in ("torch._dynamo", "torch._inductor.compile_fx", "torch.nn.attention.flex_attention"):
        importlib.import_module(name)


def make_engine(torch, job, backend, compiled):
    """Return the engine of a backend; raise Unavailable or Refused."""
    library, _, part = backend.partition(".")
    if library == "sdpa":
        return own.Sdpa(torch, job, part)
    if library == "fa":
        return libraries.flash(torch, job, part)
    if library == "te":
        return libraries.TransformerEngine(torch, job, part)
    if library == "flex":
        return own.Flex(torch, job, compiled)
    kinds = {
        "hf.eager": own.Eager, "torch.varlen": own.Varlen, "xformers": libraries.Xformers,
        "sageattention": libraries.Sage, "flashinfer": libraries.FlashInfer, "fla.parallel_attn": libraries.Fla,
        "natten.na1d": libraries.Natten,
    }  # fmt: skip
    if backend not in kinds:
        raise ValueError("unknown backend {!r}".format(backend))
    return kinds[backend](torch, job)


class Step:
    """One step of a layer: forward, and in training backward. `memory` has its bytes by part when it was `weighed`."""

    def __init__(self, torch, engine, function, inputs, dout):
        self.torch, self.engine, self.function = torch, engine, function
        self.backward = engine.job.backward and not engine.forward_only
        self.inputs = [tensor.detach().requires_grad_(self.backward) for tensor in inputs]
        self.dout = dout

    def forward(self):
        """Return the output."""
        if self.backward:
            return self.function(*self.inputs)
        with self.torch.no_grad():
            return self.function(*self.inputs)

    def __call__(self):
        """Return (output, gradients)."""
        out = self.forward()
        return out, self.torch.autograd.grad(out, self.inputs, self.dout) if self.backward else (None,) * 3

    def weighed(self):
        """Return (result, bytes by part) of one step on a GPU."""
        cuda = self.torch.cuda
        cuda.synchronize()
        before = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        out = self.forward()
        held, peak = cuda.memory_allocated(), cuda.max_memory_allocated()
        size = _bytes([out])
        parts = {"output": size, "saved": max(held - before - size, 0), "forward_workspace": peak - held}
        grads, most = (None,) * 3, peak
        if self.backward:
            cuda.reset_peak_memory_stats()
            grads = self.torch.autograd.grad(out, self.inputs, self.dout)
            most = max(peak, cuda.max_memory_allocated())
            parts["gradients"] = _bytes(grads)
            parts["backward_workspace"] = max(cuda.max_memory_allocated() - held - parts["gradients"], 0)
        return (out, grads), parts, most - before


def _bytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _prepared(torch, request, device):
    """Return (job, its tensors, truth), those of the last case where it was the same job."""
    own_words = ("measured", "compiled", "budget", "kernel", "env")
    words = {key: value for key, value in request.items() if key not in own_words}
    name = json.dumps(words, sort_keys=True, default=str)
    if name not in _job:
        _job.clear()
        step("make tensors")
        job = Job(torch, words, device)
        tensors = job.tensors(int(request.get("seed") or 0))
        pairs = job.pairs()
        rate = matrix_rate(torch, device, job["dtype"])
        _job[name] = job, tensors, Truth(torch, job, tensors), pairs, rate
    return _job[name]


def _compiled(torch, function):
    # A call has one or two kernels: to start a pool of compiling processes takes longer than to compile them here.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch._dynamo

    with contextlib.suppress(ImportError, AttributeError):  # torch < 2.6 has no such cache
        import torch._functorch.config as compiler

        # Its key leaves out which backend sdpa_kernel selects: a second backend would get the kernels of the first.
        compiler.enable_autograd_cache = False
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def run(request):
    """Measure one backend on one job."""
    torch = import_torch()
    device = pick_device(torch, request)
    _within_budget(request)
    backend = str(request["measured"])
    compiled = bool(request.get("compiled")) or backend in COMPILED
    job, tensors, truth, pairs, rate = _prepared(torch, request, device)
    observed = _about(torch, job, device)
    observed.update(backend=backend, compiled=compiled, gpu_state=state(device), matrix_tflops=round(rate / 1e12, 4))
    try:
        step("{}: make the call".format(backend))
        engine = make_engine(torch, job, backend, compiled)
        observed["library"] = engine.library
        inputs, dout = engine.prepare(*tensors)
        observed["words"] = engine.notes
        with engine.context():
            function = _compiled(torch, engine.call) if compiled else engine.call
            _measure(torch, engine, function, inputs, dout, observed)
            observed.update(_rates(job, engine, observed, pairs, rate))
            _check(torch, engine, function, truth, observed)
    except (Refused, Unavailable) as error:
        error.observed = {**observed, **getattr(error, "observed", {})}
        raise
    except Exception as error:
        declined = _declined(torch, error)
        if declined is None:
            raise
        declined.observed = observed
        raise declined from error
    if engine.forward_only and job.backward:
        declined = Refused("it has no backward pass, and the job trains")
        declined.observed = {**observed, "ms": None, "tflops": None, "peak_share": None}
        raise declined
    return observed


def _within_budget(request):
    """Raise Unavailable when this process has measured for as long as it may."""
    if not _began:
        _began.append(time.monotonic())
    budget = request.get("budget")
    if budget and time.monotonic() - _began[0] > budget:
        raise Unavailable("not measured: the time limit of {:g} s was reached".format(budget))


def _measure(torch, engine, function, inputs, dout, observed):
    """Fill in times and memory."""
    backend, job = observed["backend"], engine.job
    gpu = job.device.startswith("cuda")
    one = Step(torch, engine, function, inputs, dout)
    step("{}: first call".format(backend))
    if hasattr(engine, "accept"):
        engine.accept(*one.inputs)
    _, first = seconds_of(torch, job.device, one)
    observed["seconds_first"] = round(first, 3)
    step("{}: memory".format(backend))
    if gpu:
        (_, parts, peak), seconds = seconds_of(torch, job.device, one.weighed)
        given = _bytes(inputs) + (_bytes([dout]) if one.backward else 0)
        observed["memory"] = {"inputs": given, "mask": engine.mask_bytes(), **parts}
        observed["bytes_peak"] = peak
    else:
        _, seconds = seconds_of(torch, job.device, one)
    step("{}: time".format(backend))
    whole = forward = timed(torch, job.device, one, seconds)
    if one.backward:
        forward = timed(torch, job.device, one.forward, seconds)
    several = len(whole.times) > 2
    observed.update(
        ms=round(whole.median, 5), ms_spread=round(whole.spread, 5) if several else None,
        ms_forward=round(forward.median, 5), repeats=len(whole.times),
        ms_launch=None if whole.launch is None else round(whole.launch, 4),
    )  # fmt: skip


def _check(torch, engine, function, truth, observed):
    """Fill in the error against float64, whether two runs are equal, and whose kernels ran in the second."""
    if engine.job.get("dropout"):
        observed["checked"] = "nothing: dropout draws other numbers in each run"
        return
    step("{}: compare with float64".format(observed["backend"]))
    inputs, dout = engine.prepare(*truth.tensors[:3], truth.incoming())
    one = Step(torch, engine, function, inputs, dout)
    out, grads = one()
    if observed["ms"] < ONCE:
        (again, grads_again), observed["kernels"], _, _ = profiled(torch, engine.job.device, one, kernels=False)
        equal = [torch.equal(a, b) for a, b in zip((out, *grads), (again, *grads_again)) if a is not None]  # noqa: B905
        observed["deterministic"] = all(equal)
        del again, grads_again
    got = dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *grads)))  # noqa: B905 - Python 3.8
    got = {name: None if value is None else engine.restore(value) for name, value in got.items()}
    observed.update(truth.compare(got, engine.written_out))
    observed["checked"] = truth.scope


def _rates(job, engine, observed, pairs, rate):
    """Return TFLOP/s and the share of the rate of a matrix product."""
    d, dv = job["head_dim_qk"], job["head_dim_v"]
    per_pair = 2 * (d + dv)
    if job.backward and not engine.forward_only:  # scores again, then dv, dp, dq and dk
        per_pair += 2 * (3 * d + 2 * dv)
    rate_here = pairs * job["num_heads"] * per_pair / max(observed["ms"] * 1e-3, 1e-12)
    return {"tflops": round(rate_here / 1e12, 4), "peak_share": round(rate_here / rate, 4), "pairs": pairs}


def _about(torch, job, device):
    """Return the fields that say where and what is measured."""
    words = ("dtype", "batch_size", "num_heads", "num_kv_heads", "head_dim_qk", "head_dim_v", "seq_len_q", "seq_len_kv")
    about = {word: job[word] for word in words}
    gpu = device.startswith("cuda")
    about.update(
        gpu=torch.cuda.get_device_name(device) if gpu else "cpu", clock="cuda" if gpu else "host",
        sm="{}.{}".format(*torch.cuda.get_device_capability(device)) if gpu else None, torch=str(torch.__version__),
        mask=job["mask"], window=job.window, bias=job.get("bias") or "no_bias", softcap=job.get("softcap") or 0.0,
        dropout=job.get("dropout") or 0.0, packed=job.packed, training=bool(job["training"]), assumed=job.assumed,
        shrunk=job.shrunk,
    )  # fmt: skip
    return about


def _declined(torch, error):
    """Return Refused for an error that says that the job does not fit, or is not supported; None for any other."""
    text = " ".join(str(error).split())
    cuda = sys.modules["torch"].cuda
    if isinstance(error, getattr(torch, "OutOfMemoryError", getattr(cuda, "OutOfMemoryError", MemoryError))):
        return Refused("out of memory: {}".format(text.split(". GPU")[0].split("CUDA out of memory. ")[-1]))
    if "CUDA error" in text or not any(mark in text for mark in REFUSALS):
        return None
    return Refused("{}: {}".format(type(error).__name__, text[:600]))
