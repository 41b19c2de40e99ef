"""Which backend does the installed TransformerEngine select for this workload, does it run, and is the result right?

Request: the workload's keys; optional `execute` (default true). Observed: `selected` (te.flash2, te.flash3, te.flash4,
te.fused, te.unfused or null), `available`, `log` (TransformerEngine's reasons), and after a run `executed`, `ran`
(families by what was called), `errors`, `wrong`, `bound`, and the cost (see `attention.cost`).
"""

from ..attention import te as engine
from ..attention.bounds import judge
from ..attention.cost import measure_cost
from ..attention.gpu import import_torch, pick_device, state
from ..attention.layouts import fused_views, laid_out
from ..attention.reference import reference_of
from ..attention.sdpa import profiled
from ..attention.tensors import keep_mask, lengths, make_tensors
from ..attention.workload import workload, workload_of
from ..protocol import Refused, step

NO_BACKEND = ("No dot product attention", "No dot product attention backend", "No attention backend")


def _why_not_run(case, form, request):
    """Return why only the selection is checked, or None if the workload can run in this one process."""
    if not request.get("execute", True):
        return "not requested"
    if int(case.get("cp_size") or 1) > 1:
        return "context parallelism needs several processes"
    if case.get("fp8"):
        return "an FP8 recipe is needed"
    if form not in ("sbhd", "bshd"):
        return "of the {} format only the selection is checked".format(form)
    if (case.get("bias") or "no_bias") != "no_bias":
        return "with a bias only the selection is checked"
    return None


def _padding_mask(torch, case, device):
    """Return TransformerEngine's attention_mask: True where a key or query does not count."""
    if case["mask"] == "arbitrary":
        return ~keep_mask(torch, case, device)
    if not case["mask"].startswith("padding"):
        return None
    limits = lengths(torch, case).to(device).view(-1, 1, 1, 1)

    def beyond(count):
        return torch.arange(count, device=device).view(1, 1, 1, -1) >= limits

    if case["seq_len_q"] == case["seq_len_kv"]:
        return beyond(case["seq_len_kv"])
    return beyond(case["seq_len_q"]), beyond(case["seq_len_kv"])


def _clear_padding(torch, case, tensors):
    """Zero the queries beyond a sequence's length: each backend leaves something else there."""
    if not case["mask"].startswith("padding"):
        return
    for b, length in enumerate(lengths(torch, case).tolist()):
        for tensor in tensors:
            tensor[b, :, length:] = 0


def _profiled(torch, device, call, selected):
    """Return what ran: by the functions that TransformerEngine calls, or by GPU kernels if those do not show it."""
    seen = profiled(torch, device, call, kernels=False)
    if seen[1] or selected == "te.unfused" or not device.startswith("cuda"):
        return seen
    return profiled(torch, device, call)


def run(request):
    """Query the selection, run it, compare the result."""
    torch = import_torch()
    te = engine.load()
    observed = {"torch": str(torch.__version__), "transformer_engine": engine.version()}
    device = pick_device(torch, request)
    case, shrunk = workload(dict(request, asked_dropout=request.get("dropout")))
    layout = case.get("qkv_layout") or "sbhd_sbhd_sbhd"
    form = layout.split("_")[0].replace("3", "").replace("2", "")  # bs3hd -> bshd
    observed.update(case=workload_of(case), shrunk=shrunk)
    # The selection is queried for the workload as it is; only what runs is made small.
    full = dict(case)
    full.update({key: before for key, (before, _) in shrunk.items() if key != "dropout"})
    observed["gpu"] = state(device)
    observed["cudnn"] = torch.backends.cudnn.version() if device.startswith("cuda") else None
    chosen, log = engine.choice(torch, full, layout, case["mask"])
    observed.update(chosen)
    observed["log"] = log
    why = _why_not_run(case, form, request)
    observed["executed"], observed["not_executed_because"] = why is None, why
    if why is not None:
        return observed
    step("reference")
    data = make_tensors(torch, case, device, request.get("seed", 0))
    if "padding" in case["mask"]:
        _clear_padding(torch, case, [data[3]])  # no gradient comes in where no output counts
    reference = reference_of(torch, case, data, backward=bool(case["training"]))
    q, k, v, dout = (laid_out(t, form) for t in data)
    if case.get("qkv_interleaved") and case["head_dim_qk"] == case["head_dim_v"]:
        q, k, v = fused_views(torch, form[:2] + "(h+2hg)d", q, k, v)
    mask = _padding_mask(torch, case, device)

    try:
        attention = engine.layer(te, case, form)

        def call():
            return engine.attend(torch, attention, case, q, k, v, dout, form, mask)

        with engine.Log() as run_log:
            got, observed["ran"], observed["kernels"], problem = _profiled(torch, device, call, observed["selected"])
    except Exception as error:
        if not any(mark in str(error) for mark in NO_BACKEND):
            raise
        declined = Refused(str(error))
        declined.observed = observed
        raise declined from error
    observed["profiler"] = problem
    observed["run_log"] = run_log.lines[-40:]
    step("timing")
    inputs = [q, k, v, dout] if case["training"] else [q, k, v]
    observed.update(measure_cost(torch, case, device, call, inputs, int(request.get("repeat", 3))))
    step("compare")
    _clear_padding(torch, case, [t for n, t in got.items() if n in ("out", "dq") and t is not None])
    _clear_padding(torch, case, [reference.values[n] for n in ("out", "dq") if n in reference.values])
    observed["errors"] = reference.errors(got)
    observed["bound"], observed["wrong"], observed["offenders"] = judge(case, observed["errors"], device)
    return observed
