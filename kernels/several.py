"""Several questions in one process: torch is imported and the CUDA context made once for all of them.

Started with `--ahead`, it imports torch before it reads the request: what a case calls for is then still being judged.
Request: `kernel`, the name of a program in the folder `programs`, and `request`, what that program is asked. The answer
is that program's own.
"""

import pathlib
import sys

import _attention
from _probe import Unavailable, main, step

_programs = {}


def _load(name):
    """The program as a module of a name that shadows no library."""
    if name not in _programs:
        import importlib.util

        path = pathlib.Path(__file__).resolve().parent / "programs" / (name + ".py")
        if not path.is_file():
            raise Unavailable("there is no kernel `{}`".format(name))
        spec = importlib.util.spec_from_file_location("_program_" + name, str(path))
        _programs[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(_programs[name])
    return _programs[name]


def _tidy():
    """Give back what the case before left on the GPU, so that no peak is counted twice."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.empty_cache()


def run(request):
    """One program on one request."""
    _tidy()
    name = str(request["kernel"])
    step("load {}".format(name))
    return _load(name).run(request.get("request") or {})


if __name__ == "__main__":
    main(run, ahead=_attention.import_torch)
