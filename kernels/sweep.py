"""One case of the whole sweep, or what belongs to it: is every output and gradient of this attention right?

Request: `op`: case (default), hello (what is here: devices, backends), simpler (plainer cases), shrink (the smallest
case that fails in the same way, with a reproduction script), script. A case is flat, see `_sweep_text.DEFAULTS`, with
`backend` and optionally `profile`. Observed: `verdict` (ok, wrong), `faults` (kinds), `errors`, `bound`, `ran`,
`run_seconds`, `peak_bytes`, `flops`, `bytes`, `bits`.
"""

import time

import _attention
import _probe
import _sweep_here
import _sweep_run
import _sweep_script
import _sweep_shrink
import _sweep_text
from _probe import Refused, Unavailable, main, step

_capped = False


def _cap(request):
    """Hold this process to the memory it was given: that of its GPU, or else what it may take of the host's."""
    global _capped
    if request.get("memory_bytes") and not _capped:
        torch = _attention.import_torch()
        if torch.cuda.is_available():
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, request["memory_bytes"] / total))
        else:
            _cap_host(int(request["memory_bytes"]))
        _capped = True


def _cap_host(limit):
    """What lies beyond the limit is refused, and that is an answer; the system would kill, and whom it likes."""
    try:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
    except (ImportError, OSError, ValueError):  # no such limit on this system
        pass


def _kinds(case):
    """The faults of a case, an exception being one too; empty if it is right or refused."""
    try:
        return _sweep_run.measure(case)["faults"]
    except (Refused, Unavailable, ValueError):
        return []
    except Exception as error:
        if any(mark in str(error) for mark in _probe.LOST_DEVICE):
            raise
        return ["failed:" + type(error).__name__]


def _shrunk(request):
    """The smallest case with one of the faults of this one, and the script that shows it."""
    case = _sweep_text.filled({key: value for key, value in request.items() if key not in ("op", "profile")})
    wanted = set(request.get("kinds") or _kinds(case))
    deadline = time.monotonic() + float(request.get("seconds", 60))
    if not wanted & set(_kinds(case)):
        return {"reproduced": False, "case": case}

    def fails(candidate):
        return time.monotonic() < deadline and bool(wanted & set(_kinds(candidate)))

    small, tried = _sweep_shrink.shrink(case, fails)
    found = _sweep_run.measure(small) if not any(k.startswith("failed:") for k in wanted) else {}
    return {
        "reproduced": True, "case": small, "tried": tried, "faults": found.get("faults", sorted(wanted)),
        "errors": found.get("errors"), "bound": found.get("bound"),
        "script": _sweep_script.script(small, found.get("faults") or sorted(wanted), found.get("bound")),
    }  # fmt: skip


def run(request):
    """Dispatch on `op`."""
    op = request.get("op", "case")
    if op == "simpler":
        return {"cases": _sweep_shrink.simpler(request["case"])}
    if op == "hello":
        return _sweep_here.describe(request)
    if op == "triton":
        import _sweep_triton

        return _sweep_triton.smoke(request)
    _cap(request)
    if op == "script":
        case = _sweep_text.filled(request["case"])
        return {"script": _sweep_script.script(case, request.get("kinds") or [], request.get("bound"))}
    if op == "shrink":
        step("shrink")
        return _shrunk(dict(request["case"], kinds=request.get("kinds"), seconds=request.get("seconds", 60)))
    return _sweep_run.measure(request)


if __name__ == "__main__":
    main(run)
