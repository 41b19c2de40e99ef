"""What the sweep finds in this interpreter: devices, how busy they are, and which backends can run."""

import os
import sys
import time

from ..attention.gpu import import_torch
from ..protocol import step
from . import calls, source

MODULES = (
    "flash_attn", "flash_attn_interface", "fa3_fwd_interface", "transformer_engine", "xformers", "sageattention",
    "transformers", "triton", "cudnn",
)  # fmt: skip


def describe(request):
    """Return devices with their memory, versions, each backend as available (None) or the reason, seconds spent."""
    began = time.perf_counter()
    step("import torch")
    torch = import_torch()
    imported = time.perf_counter()
    here = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "devices": [], "pid": os.getpid()}
    here["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    device = request.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
    if torch.version.cuda and not torch.cuda.is_available():
        here["no_gpu"] = _why_no_gpu(torch)
    if device.startswith("cuda"):
        here["devices"] = [_device(torch, index) for index in range(torch.cuda.device_count())]
    if request.get("context", True) and device.startswith("cuda"):
        step("CUDA context")
        (torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum().item()
    context = time.perf_counter()
    named = request.get("backends")
    names = list(calls.BACKENDS if named is None else named) + list(request.get("own") or ())
    here["backends"], here["versions"] = backend_states(torch, names)
    here["device"] = device
    here["seconds"] = {
        "import": round(imported - began, 3), "context": round(context - imported, 3),
        "backends": round(time.perf_counter() - context, 3),
    }  # fmt: skip
    return here


def _why_no_gpu(torch):
    """Return torch's error for the missing GPU that it was built for."""
    try:
        torch.cuda.init()
    except Exception as error:
        return "{}: {}".format(type(error).__name__, error)[:500]
    return "torch {} was built for CUDA {} and counts no device".format(torch.__version__, torch.version.cuda)


def _device(torch, index):
    properties = torch.cuda.get_device_properties(index)
    device = {"index": index, "name": properties.name, "memory_bytes": properties.total_memory,
              "sm": "{}.{}".format(properties.major, properties.minor),
              "multiprocessors": properties.multi_processor_count,
              "uuid": str(getattr(properties, "uuid", ""))}  # fmt: skip
    step("look at device {}".format(index))
    try:
        free, _ = torch.cuda.mem_get_info(index)
        device["free_bytes"] = free
    except Exception as error:  # a GPU that is lost, or that we may not use: report it and go on
        device["problem"] = "{}: {}".format(type(error).__name__, error)[:500]
        return device
    try:
        device["utilization"] = torch.cuda.utilization(index)
    except Exception:  # needs nvidia-ml-py in the target environment; the memory in use says enough
        device["utilization"] = None
    return device


def backend_states(torch, names):
    """Return ({backend: None if it can run, else the reason}, {module: version})."""
    states, versions = {}, {}
    for name in names:
        step("import {}".format(name))
        case = source.filled({"backend": name})
        try:
            lines = calls.text(case)["setup"]
            if name.startswith("te."):  # the other lines need a GPU, and select for the whole process
                lines = [line for line in lines if line.startswith(("import", "from importlib"))]
            space = {"torch": torch}
            exec(compile("\n".join(lines), "<setup>", "exec"), space)
            states[name] = None
            if name.startswith("file:") and not callable(space["attention"]):
                states[name] = "it is no function but of type {}".format(type(space["attention"]).__name__)
        except BaseException as error:  # SystemExit in an import is a result too
            states[name] = "{}: {}".format(type(error).__name__, error)[:600]
            if name.startswith("file:") and isinstance(error, KeyError):
                states[name] = "the file defines no {}".format(error)
    for name in MODULES:
        module = sys.modules.get(name)
        if module is not None:
            versions[name] = str(getattr(module, "__version__", "?"))
    return states, versions
