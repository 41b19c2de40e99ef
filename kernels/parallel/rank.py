"""One rank of a context-parallel check: runs every case with the others, and rank 0 judges the result.

Started by torch.distributed.run; the order is a JSON file. Each rank appends lines to `rank-N.jsonl`: the next step
before it is taken, and the outcome of a case. A rank that fails alone ends the process: the launcher ends the others.
"""

import ctypes
import datetime
import json
import os
import signal
import sys
import time
import traceback

from .. import protocol
from ..attention.bounds import judge
from ..attention.reference import Reference
from ..attention.sdpa import profiled, repeatable
from ..attention.tensors import keep_mask, make_tensors
from ..attention.workload import workload, workload_of
from ..protocol import Refused, Unavailable
from .engines import DECLINED, engine_of
from .shards import joined, packed_mask, packed_starts

ALONE = 3  # exit status of a rank that failed while others may wait for it
CONTROL = 15.0  # seconds to wait for the outcome of the other ranks
PR_SET_PDEATHSIG = 1


class _Lines:
    """The file of this rank."""

    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115, PTH123 - for the life of the process
        self.case = None

    def write(self, record):
        """Append a line; it is on disk before the next step."""
        self.file.write(json.dumps(dict(record, case=self.case, at=time.time()), default=repr) + "\n")
        self.file.flush()

    def step(self, text):
        """Announce the next step."""
        self.write({"step": str(text)[:200]})


def _die_with_parent():
    """End this process when the launcher dies, also by SIGKILL; only Linux can."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, OSError):
        return


def _prepared(torch, request, ranks, device):
    """Return the case with its global tensors and its mask, the same on every rank."""
    case, shrunk = workload(dict(request, device="cpu" if device == "cpu" else "cuda"))
    if case.get("packed"):  # padding is what TransformerEngine calls the bounds of packed sequences
        case["mask"] = {"padding": "no_mask", "padding_causal": "causal"}.get(case["mask"], case["mask"])
    if case["mask"] not in ("no_mask", "causal"):
        raise Unavailable("this program knows no_mask and causal, not {}".format(case["mask"]))
    if case["seq_len_q"] != case["seq_len_kv"]:
        raise Unavailable(
            "context parallelism divides queries and keys alike: {seq_len_q} and {seq_len_kv}".format(**case)
        )
    unit = 2 * ranks
    rest = case["seq_len_q"] % unit
    if rest:
        before = case["seq_len_q"]
        case["seq_len_q"] = case["seq_len_kv"] = max(unit, before - rest)
        shrunk["seq_len_q"] = [shrunk.get("seq_len_q", [before])[0], case["seq_len_q"]]
    if case.get("packed"):
        case["batch_size"] = 1
        case["starts"] = packed_starts(case["seq_len_q"], ranks, int(case.get("sequences") or 3))
        case["seq_len_q"] = case["seq_len_kv"] = case["starts"][-1]
    data = make_tensors(torch, case, device, int(request.get("seed", 0)))
    return case, shrunk, data


def _reference(torch, case, data, device):
    problem = dict(zip(("q", "k", "v", "dout"), data))  # noqa: B905 - Python 3.8
    if case.get("starts"):
        problem["keep"] = packed_mask(torch, case["starts"], case["mask"] == "causal", case.get("window"), device)
    else:
        problem["keep"] = keep_mask(torch, case, device)
    problem["scale"] = case.get("scale") or case["head_dim_qk"] ** -0.5
    return Reference(torch, problem, backward=bool(case["training"]))


def _whole(torch, case, group, got, pattern):
    """Return the global tensors on every rank."""
    if pattern is None:
        return got
    whole = {}
    for name, tensor in got.items():
        if tensor is None:
            continue
        parts = [torch.empty_like(tensor.contiguous()) for _ in range(torch.distributed.get_world_size(group))]
        torch.distributed.all_gather(parts, tensor.contiguous(), group=group)
        whole[name] = joined(torch, parts, pattern, case.get("starts"))
    return whole


def measure(torch, request, group, device):
    """Run one case with the other ranks; return what is observed."""
    rank, ranks = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    case, shrunk, data = _prepared(torch, request, ranks, device)
    observed = {"engine": case["engine"], "ranks": ranks, "device": device, "torch": str(torch.__version__)}
    observed.update(case=dict(workload_of(case), packed=bool(case.get("packed"))), shrunk=shrunk)
    if int(request.get("cp_size") or ranks) != ranks:
        shrunk["cp_size"] = [int(request["cp_size"]), ranks]
    began = time.monotonic()

    def attend():
        with repeatable(torch, case):
            return engine_of(case["engine"])(torch, case, group, *data)

    (got, pattern), observed["ran"], observed["kernels"], problem = profiled(torch, device, attend, kernels=False)
    if problem:
        observed["profiler"] = problem
    protocol.step("gather")
    whole = _whole(torch, case, group, got, pattern)
    if device != "cpu":
        torch.cuda.synchronize()
    observed["elapsed"] = round(time.monotonic() - began, 4)
    if case.get("log"):
        observed["log"] = case["log"][-20:]
    if rank:
        return observed
    protocol.step("reference")
    reference = _reference(torch, case, data, device)
    errors = reference.errors(whole)
    bound, wrong, offenders = judge(case, errors, "cpu" if device == "cpu" else "cuda")
    observed.update(errors=errors, bound=bound, wrong=wrong, offenders=offenders)
    return observed


def _outcome(torch, request, group, device):
    """Return (outcome, observed, reason) of this rank."""
    try:
        return "ran", measure(torch, request, group, device), ""
    except Refused as error:
        return "refused", {}, str(error)
    except Unavailable as error:
        return "unavailable", {}, str(error)
    except Exception as error:
        text = "".join(traceback.format_exception_only(type(error), error)).strip()[:4000]
        declined = isinstance(error, (NotImplementedError, RuntimeError, AssertionError, ValueError)) and any(
            mark in text for mark in DECLINED
        )
        lost = any(mark in text for mark in (*protocol.LOST_DEVICE, "NCCL error", "out of memory"))
        frames = [
            "{}:{} {}".format(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)[-6:]
        ]
        return ("refused" if declined and not lost else "failed"), {"traceback": frames}, text


def main(path):
    """Run the cases of an order; see the module."""
    _die_with_parent()
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - Python 3.8
        order = json.load(file)
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    lines = _Lines(os.path.join(order["folder"], "rank-{}.jsonl".format(rank)))  # noqa: PTH118
    protocol.step = lines.step
    for module in list(sys.modules.values()):  # those that bound the name at import
        if getattr(module, "__name__", "").startswith(__name__.split(".")[0]) and hasattr(module, "step"):
            module.step = lines.step
    lines.step("import torch")
    import torch
    import torch.distributed as distributed

    limit = datetime.timedelta(seconds=float(order["timeout"]))
    device = order["device"]
    if device == "cuda":
        torch.cuda.set_device(local)
        device = "cuda:{}".format(local)
    lines.step("init_process_group")
    distributed.init_process_group("gloo" if device == "cpu" else "nccl", timeout=limit)
    group = distributed.group.WORLD
    # Apart from the cases, so that a rank that failed alone is noticed while the others wait in a collective.
    control = distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=min(CONTROL, order["timeout"])))
    for number, request in enumerate(order["cases"]):
        lines.case = order["first"] + number
        lines.step("start")
        outcome, observed, reason = _outcome(torch, request, group, device)
        lines.write({"outcome": outcome, "observed": protocol._finite(observed), "reason": reason})
        every = [None] * distributed.get_world_size()
        try:
            distributed.all_gather_object(every, [outcome, reason[:200] if outcome == "failed" else ""], group=control)
        except Exception:  # another rank is elsewhere: nothing of this process can be used again
            os._exit(ALONE)
        lost = any(mark in reason for mark in protocol.LOST_DEVICE) or "NCCL" in reason
        if any(item != every[0] for item in every) or lost:
            os._exit(ALONE)
    lines.case = None
    lines.step("done")
    lines.file.close()
    os._exit(0)  # the results are written: no crash of the tear-down counts
