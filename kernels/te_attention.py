"""Which backend does the installed TransformerEngine take for this workload, does it run, and is the result right?

Request: the workload's keys; optional `execute` (default true). Observed: `selected` (te.flash2, te.flash3, te.flash4,
te.fused, te.unfused or null), `available`, `log` (its own reasons), and after a run `executed`, `ran` (families by
what was called), `errors`, `wrong`, `bound`, and what it cost (see `_cost.measured`).
"""

import _attention
import _cost
import _gpu
import _layouts
import _sdpa
import _te
from _probe import Refused, main, step

NO_BACKEND = ("No dot product attention", "No dot product attention backend", "No attention backend")


def _why_not_run(case, form, request):
    """The reason why the workload is only asked about, or None if it can be run in this one process."""
    if not request.get("execute", True):
        return "not asked to"
    if int(case.get("cp_size") or 1) > 1:
        return "context parallelism needs several processes"
    if case.get("fp8"):
        return "an FP8 recipe is needed"
    if form not in ("sbhd", "bshd"):
        return "the {} format is only asked about".format(form)
    if (case.get("bias") or "no_bias") != "no_bias":
        return "bias is only asked about"
    return None


def _padding_mask(torch, case, device):
    """TransformerEngine's attention_mask: True where a key or query does not count."""
    if case["mask"] == "arbitrary":
        return ~_attention.keep_mask(torch, case, device)
    if not case["mask"].startswith("padding"):
        return None
    limits = _attention.lengths(torch, case).to(device).view(-1, 1, 1, 1)

    def beyond(count):
        return torch.arange(count, device=device).view(1, 1, 1, -1) >= limits

    if case["seq_len_q"] == case["seq_len_kv"]:
        return beyond(case["seq_len_kv"])
    return beyond(case["seq_len_q"]), beyond(case["seq_len_kv"])


def _blank_padding(torch, case, tensors):
    """Queries beyond a sequence's length hold whatever a backend leaves there: take them out of the comparison."""
    if not case["mask"].startswith("padding"):
        return
    for b, length in enumerate(_attention.lengths(torch, case).tolist()):
        for tensor in tensors:
            tensor[b, :, length:] = 0


def _watched(torch, device, call, selected):
    """What ran: by the functions that TransformerEngine calls, or by the kernels where those do not tell it."""
    seen = _sdpa.profiled(torch, device, call, kernels=False)
    if seen[1] or selected == "te.unfused" or not device.startswith("cuda"):
        return seen
    return _sdpa.profiled(torch, device, call)


def run(request):
    """Ask, run, compare."""
    torch = _attention.import_torch()
    te = _te.load()
    observed = {"torch": str(torch.__version__), "transformer_engine": _te.version()}
    device = _attention.pick_device(torch, request)
    case, shrunk = _attention.workload(dict(request, asked_dropout=request.get("dropout")))
    layout = case.get("qkv_layout") or "sbhd_sbhd_sbhd"
    form = layout.split("_")[0].replace("3", "").replace("2", "")  # bs3hd -> bshd
    observed.update(case=_attention.described(case), shrunk=shrunk)
    # The choice is asked about the workload as it is; only what is run is made small.
    full = dict(case)
    full.update({key: before for key, (before, _) in shrunk.items() if key != "dropout"})
    observed["gpu"] = _gpu.state(device)
    observed["cudnn"] = torch.backends.cudnn.version() if device.startswith("cuda") else None
    chosen, log = _te.choice(torch, full, layout, case["mask"])
    observed.update(chosen)
    observed["log"] = log
    why = _why_not_run(case, form, request)
    observed["executed"], observed["not_executed_because"] = why is None, why
    if why is not None:
        return observed
    step("reference")
    data = _attention.tensors(torch, case, device, request.get("seed", 0))
    if "padding" in case["mask"]:
        _blank_padding(torch, case, [data[3]])  # no gradient comes in where no output counts
    truth = _attention.Truth(torch, case, *data, backward=bool(case["training"]))
    q, k, v, dout = (_layouts.laid_out(t, form) for t in data)
    if case.get("qkv_interleaved") and case["head_dim_qk"] == case["head_dim_v"]:
        q, k, v = _layouts.fused_views(torch, form[:2] + "(h+2hg)d", q, k, v)
    mask = _padding_mask(torch, case, device)

    try:
        attention = _te.layer(te, case, form)

        def call():
            return _te.attend(torch, attention, case, q, k, v, dout, form, mask)

        with _te.Log() as said:
            got, observed["ran"], observed["kernels"], problem = _watched(torch, device, call, observed["selected"])
    except Exception as error:
        if not any(mark in str(error) for mark in NO_BACKEND):
            raise
        declined = Refused(str(error))
        declined.observed = observed
        raise declined from error
    observed["profiler"] = problem
    observed["run_log"] = said.lines[-40:]
    step("timing")
    given = [q, k, v, dout] if case["training"] else [q, k, v]
    observed.update(_cost.measured(torch, case, device, call, given, int(request.get("repeat", 3))))
    step("compare")
    _blank_padding(torch, case, [t for n, t in got.items() if n in ("out", "dq") and t is not None])
    _blank_padding(torch, case, [truth.values[n] for n in ("out", "dq") if n in truth.values])
    observed["errors"] = truth.errors(torch, got)
    observed["bound"], observed["wrong"], observed["offenders"] = _attention.judge(case, observed["errors"], device)
    return observed


if __name__ == "__main__":
    main(run)
