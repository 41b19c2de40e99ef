"""Run one case of the sweep, or a related operation: is every output and gradient of this attention right?

Request: `op`: case (default), hello (devices and backends), simpler (plainer cases), shrink (the smallest case that
fails in the same way, with a reproduction script), script, triton. A case is flat, see `sweep.source.DEFAULTS`, with
`backend` and optionally `profile`. Observed: `verdict` (ok, wrong), `faults` (kinds), `errors`, `bound`, `ran`,
`run_seconds`, `peak_bytes`, `flops`, `bytes`, `bits`.
"""

import time

from ..attention.gpu import import_torch
from ..protocol import LOST_DEVICE, Refused, Unavailable, step
from ..sweep import discovery, shrink, source, triton
from ..sweep.run import measure
from ..sweep.script import write_script

try:
    import resource
except ImportError:  # not on this system
    resource = None

_limited = False


def _limit_memory(request):
    """Limit the memory of this process: of its GPU, or of the host if it has none."""
    global _limited
    if request.get("memory_bytes") and not _limited:
        torch = import_torch()
        if torch.cuda.is_available():
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, request["memory_bytes"] / total))
        else:
            _limit_host_memory(int(request["memory_bytes"]))
        _limited = True


def _limit_host_memory(limit):
    """Make allocations beyond the limit fail, which is a result; without it the system kills some process."""
    if resource is None:
        return
    try:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
    except (OSError, ValueError):  # the system does not support it
        pass


def _faults(case):
    """Return the kinds of fault of a case, an exception being one; empty if it is right or refused."""
    try:
        return measure(case)["faults"]
    except (Refused, Unavailable, ValueError):
        return []
    except Exception as error:
        if any(mark in str(error) for mark in LOST_DEVICE):
            raise
        return ["failed:" + type(error).__name__]


def _shrunk(request):
    """Return the smallest case with a fault of this case, and a script that shows it."""
    case = source.filled({key: value for key, value in request.items() if key not in ("op", "profile")})
    wanted = set(request.get("kinds") or _faults(case))
    deadline = time.monotonic() + float(request.get("seconds", 60))
    if not wanted & set(_faults(case)):
        return {"reproduced": False, "case": case}

    def fails(candidate):
        return time.monotonic() < deadline and bool(wanted & set(_faults(candidate)))

    small, tried = shrink.shrink(case, fails)
    result = measure(small) if not any(k.startswith("failed:") for k in wanted) else {}
    return {
        "reproduced": True, "case": small, "tried": tried, "faults": result.get("faults", sorted(wanted)),
        "errors": result.get("errors"), "bound": result.get("bound"),
        "script": write_script(small, result.get("faults") or sorted(wanted), result.get("bound")),
    }  # fmt: skip


def run(request):
    """Run the operation `op`."""
    op = request.get("op", "case")
    if op == "simpler":
        return {"cases": shrink.simpler(request["case"])}
    if op == "hello":
        return discovery.describe(request)
    if op == "triton":
        return triton.smoke_test(request)
    _limit_memory(request)
    if op == "script":
        case = source.filled(request["case"])
        return {"script": write_script(case, request.get("kinds") or [], request.get("bound"))}
    if op == "shrink":
        step("shrink")
        return _shrunk(dict(request["case"], kinds=request.get("kinds"), seconds=request.get("seconds", 60)))
    return measure(request)
