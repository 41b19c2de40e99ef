"""Run cases of several programs in one process: torch is imported and the CUDA context created once.

Started with `--ahead`, it imports torch before it reads the requests, while the host still evaluates the rules.
Request: `kernel`, the name of a program, and `request`, that program's own request. The result is that program's.
"""

import importlib
import pathlib
import sys

from ..attention.gpu import import_torch
from ..protocol import Unavailable, step

#: `main` calls it when the process starts ahead of its requests.
prepare = import_torch


def _load(name):
    """Import the program as a module of this package."""
    if not (pathlib.Path(__file__).resolve().parent / (name + ".py")).is_file():
        raise Unavailable("there is no kernel `{}`".format(name))
    return importlib.import_module("." + name, __package__)


def _free_memory():
    """Release the GPU memory that the previous case left cached, so that no peak counts it twice."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.empty_cache()


def run(request):
    """Run one program on one request."""
    _free_memory()
    name = str(request["kernel"])
    step("load {}".format(name))
    return _load(name).run(request.get("request") or {})
