"""torch, and the device of a case: its CUDA context, why there is none, and how busy others keep it."""

import os
import pathlib
import sys

from ..protocol import Unavailable, step

#: CUDA's messages about a GPU that other processes hold or that is lost: the tested library is not to blame.
HELD_BY_OTHERS = ("busy or unavailable", "all CUDA-capable devices are busy", "out of memory", "GPU is lost", "MPS")
#: Above this share of memory in use by others, or this utilization, times measured on the GPU mean little.
BUSY_SHARE, BUSY_PERCENT = 0.1, 20

_states = {}
_import_errors = []  # why torch cannot be imported: a second import in one process fails for other reasons


def import_torch():
    """Import torch; raise Unavailable if it is not installed. Any other import error is raised unchanged."""
    if _import_errors:
        raise _import_errors[0]
    if "torch" in sys.modules:
        return sys.modules["torch"]
    step("import torch")
    try:
        import torch
    except ModuleNotFoundError as error:
        missing = Unavailable("torch is not installed") if error.name == "torch" else error
        _import_errors.append(missing)
        raise missing from error
    except BaseException as error:
        _import_errors.append(error)
        raise
    step("torch imported")
    return torch


def pick_device(torch, request):
    """Return the requested device, by default a GPU: a result of the CPU must not pass for one of the GPU."""
    device = str(request.get("device") or "cuda")
    if device.startswith("cuda"):
        claim(torch, device)
    return device


def claim(torch, device):
    """Create the CUDA context on this device; raise Unavailable with the reason if that is impossible."""
    if device in _states:
        return
    step("cuda context")
    if not torch.cuda.is_available():
        raise Unavailable(_why_not(torch))
    try:
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        if any(mark in text for mark in HELD_BY_OTHERS):
            raise Unavailable("the GPU is held by others: {}".format(text)) from error
        raise
    step("cuda context made")
    _states[device] = _state_of(torch, device)


def state(device):
    """Return the state of the device when its context was created: name, memory, and `busy` as a sentence."""
    return _states.get(device)


def poison(torch, device, like):
    """Leave NaN where the allocator will place the next results, so that an unwritten element shows."""
    if not device.startswith("cuda"):
        return
    blocks = [torch.full_like(t, float("nan")) for t in like for _ in range(2)]
    torch.cuda.synchronize()
    del blocks


def _state_of(torch, device):
    properties = torch.cuda.get_device_properties(device)
    state = {"name": properties.name, "memory_bytes": properties.total_memory}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        state["visible"] = visible[:200]
    reasons = []
    try:
        free, total = torch.cuda.mem_get_info(device)
        state["free_bytes"] = free
        if total - free > BUSY_SHARE * total:  # our own context takes far less, except on a slice of a GPU
            gib = 2.0**30
            reasons.append("{:.1f} of {:.1f} GiB are in use".format((total - free) / gib, total / gib))
    except Exception as error:  # unknown memory is no reason to skip the case
        state["problem"] = str(error)[:300]
    try:
        state["utilization"] = torch.cuda.utilization(device)  # needs nvidia-ml-py in the target environment
        if state["utilization"] > BUSY_PERCENT:
            reasons.append("{} % utilization".format(state["utilization"]))
    except Exception:
        state["utilization"] = None
    if reasons:
        state["busy"] = "{} is busy: {}".format(properties.name, ", ".join(reasons))
    return state


def _why_not(torch):
    """Explain why torch has no CUDA device."""
    text = "torch {} sees no CUDA device".format(torch.__version__)
    if getattr(torch.version, "cuda", None) is None:
        return text + ": it is a build without CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        text += " with CUDA_VISIBLE_DEVICES={!r}".format(visible[:200])
    closed = _no_permission()
    if closed:
        return "{}: no permission on {}".format(text, closed)
    try:
        torch.cuda.init()
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        return "{}: {}".format(text, reason) if reason else text
    return text


def _no_permission(folder="/dev"):
    """Return an existing device file of the driver that this user may not open, or None."""
    try:
        nodes = sorted(pathlib.Path(folder).glob("nvidia*"))
    except OSError:
        return None
    for node in nodes:
        of_driver = node.name == "nvidiactl" or node.name[6:].isdigit()
        if of_driver and not os.access(str(node), os.R_OK | os.W_OK):
            return str(node)
    return None
