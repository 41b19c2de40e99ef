"""Which backend does the installed TransformerEngine select for this workload, does it run, and is the result right?

Request: the workload's keys; optional `execute` (default true). Observed: `selected` (te.flash2, te.flash3, te.flash4,
te.fused, te.unfused or null), `available`, `log` (TransformerEngine's reasons), and after a run `executed`, `ran`
(families by what was called), `errors`, `wrong`, `bound`, and the cost (see `attention.cost`).
"""

from ..attention import te as engine
from ..attention.bounds import judge
from ..attention.cost import measure_cost
from ..attention.gpu import import_torch, pick_device, state
from ..attention.layouts import PLAIN, PROJECTIONS, form_of, job_inputs, laid_out, layout_of
from ..attention.reference import reference_of
from ..attention.sdpa import profiled, repeatable
from ..attention.tensors import keep_mask, lengths, make_tensors
from ..attention.workload import workload, workload_of
from ..protocol import Refused, step

NO_BACKEND = ("No dot product attention", "No dot product attention backend", "No attention backend")


#: Words of which only the selection is checked, with the value that changes nothing.
SELECTION_ONLY = {
    "bias": "no_bias", "asked_dropout": 0.0, "softcap": 0.0, "softmax_type": "vanilla", "num_splits": 1,
    "return_max_logit": False, "cuda_graph": False, "pad_between_seqs": False,
}  # fmt: skip


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
    layout = case.get("qkv_layout") or form
    if layout not in PLAIN and layout not in PROJECTIONS:
        return "of the layout {} only the selection is checked".format(layout)
    if engine.bottom_right(case, case["mask"]) != engine.bottom_right({}, case["mask"]):
        return "of another alignment of the window only the selection is checked"
    for word, plain in SELECTION_ONLY.items():
        if (case.get(word) or plain) != plain:
            return "of {} = {} only the selection is checked".format(word.replace("asked_", ""), case[word])
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
    memory = layout_of(dict(case, qkv_layout=layout))
    q, k, v = job_inputs(torch, case, memory, *data[:3])
    dout = laid_out(data[3], form_of(memory))
    mask = _padding_mask(torch, case, device)

    try:
        with repeatable(torch, case):
            attention = engine.layer(te, case, form)

        def call():
            with repeatable(torch, case):
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
