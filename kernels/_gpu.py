"""The GPU of a case: its context, made once, with the reason where there is none, and how busy others keep it.

Standard library at import time; `torch` is handed in by the caller.
"""

import os
import pathlib

from _probe import Unavailable, step

#: What CUDA says of a GPU that is there and that others hold, or that went away: no fault of what is asked about.
TAKEN = ("busy or unavailable", "all CUDA-capable devices are busy", "out of memory", "GPU is lost", "MPS")
#: A GPU with more than this share of its memory in use by others, or this busy, is no place to take times.
BUSY_SHARE, BUSY_PERCENT = 0.1, 20

_opened = {}


def claim(torch, device):
    """Make the context on this device; Unavailable with the reason where that cannot be."""
    if device in _opened:
        return
    step("cuda context")
    if not torch.cuda.is_available():
        raise Unavailable(_why_not(torch))
    try:
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        if any(mark in text for mark in TAKEN):
            raise Unavailable("the GPU is held by others: {}".format(text)) from error
        raise
    step("cuda context made")
    _opened[device] = _seen(torch, device)


def state(device):
    """What was seen of the device when its context was made: name, memory, memory of others, `busy` as a sentence."""
    return _opened.get(device)


def _seen(torch, device):
    about = torch.cuda.get_device_properties(device)
    told = {"name": about.name, "memory_bytes": about.total_memory}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        told["visible"] = visible[:200]
    reasons = []
    try:
        free, total = torch.cuda.mem_get_info(device)
        told["free_bytes"] = free
        if total - free > BUSY_SHARE * total:  # our own context is far below that, but on a slice of a GPU
            gib = 2.0**30
            reasons.append("{:.1f} of {:.1f} GiB are in use".format((total - free) / gib, total / gib))
    except Exception as error:  # not told, which is no reason to ask nothing
        told["problem"] = str(error)[:300]
    try:
        told["utilization"] = torch.cuda.utilization(device)  # needs nvidia-ml-py in the patient
        if told["utilization"] > BUSY_PERCENT:
            reasons.append("{} % utilization".format(told["utilization"]))
    except Exception:
        told["utilization"] = None
    if reasons:
        told["busy"] = "{} is busy: {}".format(about.name, ", ".join(reasons))
    return told


def _why_not(torch):
    """Why torch has no CUDA device, as far as it can be told without one."""
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
        said = str(error).strip().split("\n")[0]
        return "{}: {}".format(text, said) if said else text
    return text


def _no_permission(folder="/dev"):
    """A device file of the driver that is there and may not be opened by this user."""
    try:
        nodes = sorted(pathlib.Path(folder).glob("nvidia*"))
    except OSError:
        return None
    for node in nodes:
        ours = node.name == "nvidiactl" or node.name[6:].isdigit()
        if ours and not os.access(str(node), os.R_OK | os.W_OK):
            return str(node)
    return None
