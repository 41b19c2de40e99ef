"""Run and judge one case of the sweep: values, gradients, repetition, graph replay, torch.compile, which kernel ran."""

import contextlib
import time
import warnings

from ..attention import cudnn, sdpa
from ..attention.bounds import BOUNDS
from ..attention.gpu import import_torch, pick_device, poison
from ..attention.randomness import judge as judge_dropout
from ..attention.reference import Reference
from ..protocol import LOST_DEVICE, Refused, Unavailable, step
from . import calls, judge, source, variants

#: Parts of messages by which libraries decline a case, as opposed to errors in them.
DECLINES = (
    *cudnn.REFUSALS, "only support", "not support", "unsupported", "Unsupported", "unexpected keyword argument",
    "does not have a deterministic implementation", "must be divisible", "No dot product attention", "not implemented",
    "No operator found", "not yet implemented", "a multiple of", "not correctly aligned", "must have shape",
    "invalid dtype for bias", "should be in [", "backward requires head_dim", "No viable backend", "NYI",
    "NoValidChoicesError",
)  # fmt: skip
KEPT = 200  # warnings; torch gives its reasons in the last ones
_programs = {}


def _execute(lines, space):
    source = "\n".join(lines)
    if source not in _programs:
        if len(_programs) > 4096:
            _programs.clear()
        _programs[source] = compile(source, "<sweep>", "exec")
    exec(_programs[source], space)


def build(torch, case):
    """Return the names that the case's source defines, and the source of the call."""
    text = calls.text(case)
    space = {"torch": torch}
    try:
        _execute(text["setup"], space)
    except ImportError as error:
        raise Unavailable("{}: {}".format(type(error).__name__, error)) from error
    except FileNotFoundError as error:
        raise Unavailable(str(error)) from error
    _execute(source.inputs(case) + source.masks(case) + text["prepare"], space)
    return space, text


class Call:
    """Call the case's forward and backward, repeatedly and without arguments."""

    def __init__(self, torch, case, space, text):
        self.torch, self.case, self.space = torch, case, space
        self.code = compile(text["call"], "<call>", "eval")
        self.context = compile(text["context"], "<context>", "eval") if text["context"] else None

    def forward(self):
        """Return the output."""
        if self.context is None:
            return eval(self.code, self.space)
        with eval(self.context, self.space):
            return eval(self.code, self.space)

    def reference(self):
        """Return the float64 reference for the inputs as they are now."""
        names = ("q", "k", "v", "dout", "keep", "bias", "alibi", "scale")
        problem = dict({name: self.space[name] for name in names}, softcap=self.case["softcap"])
        return Reference(
            self.torch, problem, bool(self.case["training"]), judge.rounding(self.case), self.case["dropout"]
        )  # fmt: skip

    def both(self):
        """Return output and gradients by name."""
        torch, case, space = self.torch, self.case, self.space
        if case["dropout"]:
            torch.manual_seed(case["seed"] + 1)  # the same mask every time
        out = self.forward()
        _check_kind(torch, out, space["dout"])
        got = {"out": out.detach()}
        if case["training"]:
            incoming = out.detach() if case["dropout"] else space["dout"]
            names = source.gradients(case)
            grads = torch.autograd.grad(out, [space[name] for name in names], incoming)
            got.update(zip(["d" + name for name in names], grads))  # noqa: B905 - Python 3.8
        return got


class WrongKind(Exception):
    """The call returned something that cannot be the output of this case, whatever its numbers."""


def _check_kind(torch, out, dout):
    """Raise WrongKind unless `out` is a tensor of the shape, dtype, device and layout of its gradient."""
    if not isinstance(out, torch.Tensor):
        raise WrongKind("the call returned {} where a tensor is due".format(type(out).__name__))
    for name in ("shape", "dtype", "device", "layout"):
        found, wanted = getattr(out, name), getattr(dout, name)
        if found != wanted:
            found, wanted = (tuple(found), tuple(wanted)) if name == "shape" else (found, wanted)
            raise WrongKind("the call returned a tensor of {} {} instead of {}".format(name, found, wanted))


@contextlib.contextmanager
def last_warnings():
    """Collect the last warnings of the block, repeated ones included; their number is bounded."""
    caught, before = [], warnings.showwarning

    def record(*arguments, **more):
        del caught[: max(0, len(caught) - KEPT + 1)]
        caught.append(warnings.WarningMessage(*arguments, **more))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = record
        try:
            yield caught
        finally:
            warnings.showwarning = before


def measure(request):
    """Run the case; return `verdict` (ok or wrong), `faults`, `errors`, and the other observations."""
    torch = import_torch()
    case = source.filled(request)
    if case["dtype"] not in BOUNDS:
        raise Unavailable("the sweep does not know dtype {}".format(case["dtype"]))
    if case["backend"] in calls.FORWARD_ONLY:
        case["training"] = False
    device = case["device"] = pick_device(torch, case)
    observed = {"faults": [], "notes": []}
    with last_warnings() as caught:
        strict = bool(case["deterministic"]) and not case["backend"].startswith("te.")
        if strict:
            torch.use_deterministic_algorithms(True)  # which also fills fresh memory with NaN
        try:
            step("prepare")
            space, text = build(torch, case)
            _run(torch, case, device, Call(torch, case, space, text), observed, request)
            _synchronize(torch, device)
        except (Refused, Unavailable):
            raise
        except ImportError as error:  # some libraries import only when they are called
            raise Unavailable("{}: {}".format(type(error).__name__, error)) from error
        except Exception as error:
            _synchronize(torch, device)  # raises pending errors, which would otherwise hit the next case
            reason = _declined(error, caught)
            if reason is None:
                raise
            declined = Refused(reason)
            declined.observed = observed
            raise declined from error
        finally:
            if strict:
                torch.use_deterministic_algorithms(False)
    observed["verdict"] = "wrong" if observed["faults"] else "ok"
    return observed


def _synchronize(torch, device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _declined(error, caught):
    if any(mark in str(error) for mark in LOST_DEVICE):
        return None
    reason = sdpa.refusal(error, caught)
    if reason is not None:
        return reason
    text = "{}: {}".format(type(error).__name__, error)
    return text[:1500] if isinstance(error, NotImplementedError) or any(m in text for m in DECLINES) else None


def _run(torch, case, device, call, observed, request):
    space, gpu = call.space, device.startswith("cuda")
    given = source.given(case)
    before = [space[name].detach().clone() for name in given]
    poison(torch, device, [space["dout"], space["q"], space["k"], space["v"]])
    if gpu:
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    if case["how"] == "eager" and 0 not in space["v"].stride():
        step("{} with other numbers".format(case["backend"]))
        _other_numbers_first(call, case)
    step("{} first call".format(case["backend"]))
    if request.get("profile"):
        got, observed["ran"], observed["kernels"], problem = sdpa.profiled(torch, device, call.both)
        if problem:
            observed["profiler"] = problem
    else:
        got = call.both()
    if gpu:
        torch.cuda.synchronize()
        observed["peak_bytes"] = torch.cuda.max_memory_allocated() - held
    observed["flops"], observed["bytes"] = _needs(case)
    step("reference")
    reference = call.reference()
    factor = calls.looser(case)
    if case["dropout"]:
        judge_dropout(case, space, reference, got, observed)
    else:
        observed["errors"] = reference.errors(got)
        observed["faults"], observed["bound"] = judge.faults(case, observed["errors"], device, factor)
    if not all(bool((space[name] == kept).all()) for name, kept in zip(given, before)):  # noqa: B905
        observed["faults"].append("inputs_changed")
    step("{} again".format(case["backend"]))
    began = _clock(torch, gpu)
    again = call.both()
    observed["run_seconds"] = _clock(torch, gpu) - began
    _check_repeats(torch, case, got, again, observed)
    observed["bits"] = _bits(torch, got)
    if case["how"] == "graph":
        step("CUDA graph")
        variants.replay(torch, case, device, call, observed, factor)
    elif case["how"] == "compile":
        step("torch.compile")
        variants.compile_and_run(torch, case, device, call, reference, observed, factor)


def _needs(case):
    """Return the operations and bytes that the case needs, whatever a backend spends: forward and backward."""
    b, h, g = case["batch_size"], case["num_heads"], case["num_kv_heads"]
    sq, sk, d, dv = case["seq_len_q"], case["seq_len_kv"], case["head_dim_qk"], case["head_dim_v"]
    flops = 2 * b * h * sq * sk * (d + dv)
    if case["mask"] in ("causal", "causal_bottom_right", "padding_causal"):
        flops //= 2
    size = {"float32": 4}.get(case["dtype"], 2)
    count = b * (h * sq * (d + dv) + g * sk * (d + dv))
    if case["training"]:
        flops, count = flops * 7 // 2, count * 2 + b * h * sq * dv
    return flops, count * size


def _other_numbers_first(call, case):
    """Call with -v first: a stale result that a backend returns for the next call then has the wrong sign."""
    space = call.space
    values, incoming = space["v"].data, space["dout"]
    values.neg_()
    if case["before"] == "other_grad":
        space["dout"] = eval(source.other_grad(case), {"dout": incoming})
    call.both()
    space["dout"] = incoming
    values.neg_()


def _clock(torch, gpu):
    if gpu:
        torch.cuda.synchronize()
    return time.perf_counter()


def _check_repeats(torch, case, first, second, observed):
    """Check for the same bits twice where they are promised; elsewhere for the same values within the bound."""
    different, far = [], []
    for name, one in first.items():
        two = second[name]
        if _equal(torch, one, two):
            continue
        different.append(name)
        bound = BOUNDS[case["dtype"]][name != "out"]
        known = name in observed["faults"] or name + "_nan" in observed["faults"]
        gap = (one.double() - two.double()).norm() / one.double().norm().clamp_min(1e-150)
        if not float(gap) <= 2 * bound and not known:
            far.append(name)
    if different:
        observed["varies"] = different
    if far or "out" in different or (different and case["deterministic"]):
        observed["faults"].append("not_repeatable")


def _equal(torch, one, two):
    """Return whether all elements are equal or both NaN."""
    if one.shape != two.shape:
        return False
    return bool(((one == two) | ((one != one) & (two != two))).all())


def _bits(torch, got):
    """Return a checksum of the output: GPUs of one model must agree on it where results are deterministic."""
    kind = {2: torch.int16, 4: torch.int32}[got["out"].element_size()]
    with torch.no_grad():
        flat = got["out"].contiguous().view(kind).reshape(-1).long()
        weights = torch.arange(flat.numel(), device=flat.device) % 8191 + 1
        return int((flat * weights).sum())
