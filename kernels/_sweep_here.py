"""What the sweep finds in this interpreter: devices, how busy they are, and which backends can be asked."""

import os
import time

import _attention
import _sweep_backends
import _sweep_text
from _probe import step

MODULES = (
    "flash_attn", "flash_attn_interface", "fa3_fwd_interface", "transformer_engine", "xformers", "sageattention",
    "transformers", "triton", "cudnn",
)  # fmt: skip


def describe(request):
    """Devices with their memory, versions, backends as available (None) or the reason why not, seconds spent."""
    began = time.perf_counter()
    step("import torch")
    torch = _attention.import_torch()
    imported = time.perf_counter()
    found = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "devices": [], "pid": os.getpid()}
    found["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    device = request.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
    if torch.version.cuda and not torch.cuda.is_available():
        found["no_gpu"] = _why_no_gpu(torch)
    if device.startswith("cuda"):
        found["devices"] = [_device(torch, index) for index in range(torch.cuda.device_count())]
    if request.get("context", True) and device.startswith("cuda"):
        step("CUDA context")
        (torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum().item()
    context = time.perf_counter()
    asked = request.get("backends")
    names = list(_sweep_backends.BACKENDS if asked is None else asked) + list(request.get("own") or ())
    found["backends"], found["versions"] = _backends(torch, names)
    found["device"] = device
    found["seconds"] = {
        "import": round(imported - began, 3), "context": round(context - imported, 3),
        "backends": round(time.perf_counter() - context, 3),
    }  # fmt: skip
    return found


def _why_no_gpu(torch):
    """What torch says when it is asked for the GPU that it was built for and does not see."""
    try:
        torch.cuda.init()
    except Exception as error:
        return "{}: {}".format(type(error).__name__, error)[:500]
    return "torch {} was built for CUDA {} and counts no device".format(torch.__version__, torch.version.cuda)


def _device(torch, index):
    about = torch.cuda.get_device_properties(index)
    told = {"index": index, "name": about.name, "memory_bytes": about.total_memory,
            "sm": "{}.{}".format(about.major, about.minor), "multiprocessors": about.multi_processor_count,
            "uuid": str(getattr(about, "uuid", ""))}  # fmt: skip
    step("look at device {}".format(index))
    try:
        free, _ = torch.cuda.mem_get_info(index)
        told["free_bytes"] = free
    except Exception as error:  # a GPU that vanished, or that we may not use: say so, go on
        told["problem"] = "{}: {}".format(type(error).__name__, error)[:500]
        return told
    try:
        told["utilization"] = torch.cuda.utilization(index)
    except Exception:  # needs nvidia-ml-py in the patient; memory in use says enough
        told["utilization"] = None
    return told


def _backends(torch, names):
    states, versions = {}, {}
    for name in names:
        step("import {}".format(name))
        case = _sweep_text.filled({"backend": name})
        try:
            lines = _sweep_backends.text(case)["setup"]
            if name.startswith("te."):  # the rest needs a GPU, and chooses for the process
                lines = [line for line in lines if line.startswith(("import", "from importlib"))]
            space = {"torch": torch}
            exec(compile("\n".join(lines), "<setup>", "exec"), space)
            states[name] = None
            if name.startswith("file:") and not callable(space["attention"]):
                states[name] = "it is no function but of type {}".format(type(space["attention"]).__name__)
        except BaseException as error:  # SystemExit in an import is an answer too
            states[name] = "{}: {}".format(type(error).__name__, error)[:600]
            if name.startswith("file:") and isinstance(error, KeyError):
                states[name] = "the file defines no {}".format(error)
    import sys

    for name in MODULES:
        module = sys.modules.get(name)
        if module is not None:
            versions[name] = str(getattr(module, "__version__", "?"))
    return states, versions
