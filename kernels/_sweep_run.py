"""One case of the sweep, run and judged: values, gradients, repeat, graph replay, torch.compile, which kernel ran."""

import contextlib
import time
import warnings

import _attention
import _cudnn
import _probe
import _sdpa
import _sweep_backends
import _sweep_bounds
import _sweep_dropout
import _sweep_more
import _sweep_text
import _sweep_truth
from _probe import Refused, Unavailable, step

#: What a library says of something that it does not do, as opposed to something that broke in it.
DECLINES = (
    *_cudnn.REFUSALS, "only support", "not support", "unsupported", "Unsupported", "unexpected keyword argument",
    "does not have a deterministic implementation", "must be divisible", "No dot product attention", "not implemented",
    "No operator found", "not yet implemented", "a multiple of", "not correctly aligned", "must have shape",
    "invalid dtype for bias", "should be in [", "backward requires head_dim", "No viable backend", "NYI",
    "NoValidChoicesError",
)  # fmt: skip
KEPT = 200  # warnings; torch says why it declines in the last ones
_programs = {}


def _execute(lines, space):
    source = "\n".join(lines)
    if source not in _programs:
        if len(_programs) > 4096:
            _programs.clear()
        _programs[source] = compile(source, "<sweep>", "exec")
    exec(_programs[source], space)


def build(torch, case):
    """The names that the case's text defines, and the text of the call."""
    text = _sweep_backends.text(case)
    space = {"torch": torch}
    try:
        _execute(text["setup"], space)
    except ImportError as error:
        raise Unavailable("{}: {}".format(type(error).__name__, error)) from error
    except FileNotFoundError as error:
        raise Unavailable(str(error)) from error
    _execute(_sweep_text.inputs(case) + _sweep_text.masks(case) + text["prepare"], space)
    return space, text


class Call:
    """The case's forward and backward as a function of nothing, repeatable."""

    def __init__(self, torch, case, space, text):
        self.torch, self.case, self.space = torch, case, space
        self.code = compile(text["call"], "<call>", "eval")
        self.context = compile(text["context"], "<context>", "eval") if text["context"] else None

    def forward(self):
        """The output alone."""
        if self.context is None:
            return eval(self.code, self.space)
        with eval(self.context, self.space):
            return eval(self.code, self.space)

    def both(self):
        """Output and gradients by name."""
        torch, case, space = self.torch, self.case, self.space
        if case["dropout"]:
            torch.manual_seed(case["seed"] + 1)  # the same mask every time
        out = self.forward()
        _due(torch, out, space["dout"])
        got = {"out": out.detach()}
        if case["training"]:
            incoming = out.detach() if case["dropout"] else space["dout"]
            asked = _sweep_text.gradients(case)
            grads = torch.autograd.grad(out, [space[name] for name in asked], incoming)
            got.update(zip(["d" + name for name in asked], grads))  # noqa: B905 - Python 3.8
        return got


class WrongKind(Exception):
    """What came back is no output of this case, whatever its numbers."""


def _due(torch, out, dout):
    """Complain of what is no tensor, or one of another shape, type or device than the gradient that it will get."""
    if not isinstance(out, torch.Tensor):
        raise WrongKind("the call returned {} where a tensor is due".format(type(out).__name__))
    for name in ("shape", "dtype", "device", "layout"):
        found, wanted = getattr(out, name), getattr(dout, name)
        if found != wanted:
            found, wanted = (tuple(found), tuple(wanted)) if name == "shape" else (found, wanted)
            raise WrongKind("the call returned a tensor of {} {} where {} is due".format(name, found, wanted))


@contextlib.contextmanager
def _heard():
    """The last warnings of what is done here, all of them being given; how many there are costs no memory."""
    caught, before = [], warnings.showwarning

    def hear(*told, **more):
        del caught[: max(0, len(caught) - KEPT + 1)]
        caught.append(warnings.WarningMessage(*told, **more))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = hear
        try:
            yield caught
        finally:
            warnings.showwarning = before


def measure(request):
    """What became of the case: `verdict` ok or wrong, `faults`, `errors`, and what else was seen."""
    torch = _attention.import_torch()
    case = _sweep_text.filled(request)
    if case["dtype"] not in _attention.BOUNDS:
        raise Unavailable("the sweep does not know dtype {}".format(case["dtype"]))
    if case["backend"] in _sweep_backends.FORWARD_ONLY:
        case["training"] = False
    device = case["device"] = _attention.pick_device(torch, case)
    observed = {"faults": [], "notes": []}
    with _heard() as caught:
        strict = bool(case["deterministic"]) and not case["backend"].startswith("te.")
        if strict:
            torch.use_deterministic_algorithms(True)  # which also fills fresh memory with NaN
        try:
            step("prepare")
            space, text = build(torch, case)
            _run(torch, case, device, Call(torch, case, space, text), observed, request)
            _settle(torch, device)
        except (Refused, Unavailable):
            raise
        except ImportError as error:  # looked for only when it is called
            raise Unavailable("{}: {}".format(type(error).__name__, error)) from error
        except Exception as error:
            _settle(torch, device)  # raises what is still under way, or the next case would be blamed for it
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


def _settle(torch, device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _declined(error, caught):
    if any(mark in str(error) for mark in _probe.LOST_DEVICE):
        return None
    reason = _sdpa.refusal(error, caught)
    if reason is not None:
        return reason
    said = "{}: {}".format(type(error).__name__, error)
    return said[:1500] if isinstance(error, NotImplementedError) or any(m in said for m in DECLINES) else None


def _run(torch, case, device, call, observed, request):
    space, gpu = call.space, device.startswith("cuda")
    given = _sweep_text.given(case)
    before = [space[name].detach().clone() for name in given]
    _attention.poison(torch, device, [space["dout"], space["q"], space["k"], space["v"]])
    if gpu:
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    if case["how"] == "eager" and 0 not in space["v"].stride():
        step("{} with other numbers".format(case["backend"]))
        _other_numbers_first(call, case)
    step("{} first call".format(case["backend"]))
    if request.get("profile"):
        got, observed["ran"], observed["kernels"], problem = _sdpa.profiled(torch, device, call.both)
        if problem:
            observed["profiler"] = problem
    else:
        got = call.both()
    if gpu:
        torch.cuda.synchronize()
        observed["peak_bytes"] = torch.cuda.max_memory_allocated() - held
    observed["flops"], observed["bytes"] = _sweep_bounds.needs(case)
    step("reference")
    truth = _sweep_truth.Truth(torch, case, space)
    factor = _sweep_backends.looser(case)
    if case["dropout"]:
        _sweep_dropout.judge(torch, case, space, truth, got, observed)
    else:
        observed["errors"] = truth.errors(got)
        observed["faults"], observed["bound"] = _sweep_bounds.faults(case, observed["errors"], device, factor)
    if not all(bool((space[name] == kept).all()) for name, kept in zip(given, before)):  # noqa: B905
        observed["faults"].append("inputs_changed")
    step("{} again".format(case["backend"]))
    began = _clock(torch, gpu)
    again = call.both()
    observed["run_seconds"] = _clock(torch, gpu) - began
    _same(torch, case, device, got, again, observed)
    observed["bits"] = _bits(torch, got)
    if case["how"] == "graph":
        step("CUDA graph")
        _sweep_more.replayed(torch, case, device, call, observed, factor)
    elif case["how"] == "compile":
        step("torch.compile")
        _sweep_more.compiled(torch, case, device, call, truth, observed, factor)


def _other_numbers_first(call, case):
    """A call with -v: what a backend leaves lying about and takes for this call's result then has the wrong sign."""
    space = call.space
    values, incoming = space["v"].data, space["dout"]
    values.neg_()
    if case["before"] == "other_grad":
        space["dout"] = eval(_sweep_text.other_grad(case), {"dout": incoming})
    call.both()
    space["dout"] = incoming
    values.neg_()


def _clock(torch, gpu):
    if gpu:
        torch.cuda.synchronize()
    return time.perf_counter()


def _same(torch, case, device, first, second, observed):
    """The same bits twice where that is promised; elsewhere the same values within the bound."""
    different, far = [], []
    for name, one in first.items():
        two = second[name]
        if _equal(torch, one, two):
            continue
        different.append(name)
        bound = _attention.BOUNDS[case["dtype"]][name != "out"]
        known = name in observed["faults"] or name + "_nan" in observed["faults"]
        gap = (one.double() - two.double()).norm() / one.double().norm().clamp_min(1e-150)
        if not float(gap) <= 2 * bound and not known:
            far.append(name)
    if different:
        observed["varies"] = different
    if far or "out" in different or (different and case["deterministic"]):
        observed["faults"].append("not_repeatable")


def _equal(torch, one, two):
    """Equal bits, NaN or not."""
    if one.shape != two.shape:
        return False
    return bool(((one == two) | ((one != one) & (two != two))).all())


def _bits(torch, got):
    """A number per tensor that two GPUs of a kind must agree on where the result is deterministic."""
    kind = {2: torch.int16, 4: torch.int32}[got["out"].element_size()]
    with torch.no_grad():
        flat = got["out"].contiguous().view(kind).reshape(-1).long()
        weights = torch.arange(flat.numel(), device=flat.device) % 8191 + 1
        return int((flat * weights).sum())
