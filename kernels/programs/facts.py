"""What does this interpreter really load: torch's build, its cuDNN, the GPUs, TransformerEngine?

Request: `{"transformer_engine": bool, "cuda": bool}`, both optional: `cuda: false` avoids everything that creates a
context. Observed: flat; a value that could not be read is `{"error": text}`, so one broken part hides no other.
"""

import platform
import sys

from ..protocol import step


def _read(function):
    """Return the value, or the error as data."""
    try:
        return function()
    except BaseException as error:  # an import may raise SystemExit
        return {"error": "{}: {}".format(type(error).__name__, error)[:2000]}


def _mapped():
    """Return the shared libraries of the attention stack in this process, in address order."""
    wanted = ("libcudnn", "libtransformer_engine", "libcudart", "libcuda.so", "libcublas", "libnvrtc", "flash_attn")
    files = []
    with open("/proc/self/maps", errors="replace") as maps:  # noqa: PTH123
        for line in maps:
            path = line.rstrip("\n").split(None, 5)[5:]
            if path and any(mark in path[0] for mark in wanted) and path[0] not in files:
                files.append(path[0])
    return files


def _cudnn_files():
    """Return cuDNN's files: more than one folder means two cuDNNs in one process."""
    return [path for path in _mapped() if path.rsplit("/", 1)[-1].startswith("libcudnn")]


def _cudnn_core_version():
    """Return the version that the mapped core library states, without torch's own checks."""
    import ctypes  # some builds of Python lack it

    versions = {}
    for path in _cudnn_files():
        if path.rsplit("/", 1)[-1].startswith("libcudnn.so"):
            function = ctypes.CDLL(path).cudnnGetVersion
            function.restype = ctypes.c_size_t
            versions[path] = function()
    return versions


def _gpus(torch):
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": properties.name,
                "sm": "{}.{}".format(properties.major, properties.minor),
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
            }
        )
    return gpus


def _touch_cudnn(torch):
    """Run a small convolution through cuDNN, so that the libraries it loads lazily are mapped too."""
    x = torch.randn(1, 8, 8, 8, device="cuda", dtype=torch.float16)
    torch.nn.functional.conv2d(x, torch.randn(8, 8, 3, 3, device="cuda", dtype=torch.float16))
    torch.cuda.synchronize()
    return True


def _torch_facts(torch, observed, cuda):
    observed["torch.version"] = str(torch.__version__)
    observed["torch.git_version"] = _read(lambda: torch.version.git_version)
    observed["torch.cuda"] = _read(lambda: torch.version.cuda)
    observed["torch.hip"] = _read(lambda: getattr(torch.version, "hip", None))
    observed["torch.cxx11_abi"] = _read(lambda: bool(torch._C._GLIBCXX_USE_CXX11_ABI))
    observed["torch.arch_list"] = _read(lambda: torch._C._cuda_getArchFlags().split() if torch.version.cuda else [])
    observed["torch.file"] = _read(lambda: torch.__file__)
    step("cudnn version")
    observed["torch.cudnn_available"] = _read(lambda: bool(torch.backends.cudnn.is_available()))
    observed["cudnn.version"] = _read(torch.backends.cudnn.version)
    if not cuda:
        return
    step("cuda init")
    observed["cuda.available"] = _read(lambda: bool(torch.cuda.is_available()))
    if observed["cuda.available"] is True:
        observed["gpus"] = _read(lambda: _gpus(torch))
        step("cudnn use")
        observed["cudnn.used"] = _read(lambda: _touch_cudnn(torch))
    elif torch.version.cuda:
        observed["cuda.init"] = _read(lambda: torch.cuda.init())  # raises the reason


def run(request):
    """Return what this process loads; a broken or missing part raises no error."""
    observed = {"python.version": platform.python_version(), "python.executable": sys.executable}
    cuda = request.get("cuda", True)
    step("import torch")

    def load():
        import torch

        return torch

    torch = _read(load)
    if isinstance(torch, dict):
        observed["torch"] = torch
    else:
        _torch_facts(torch, observed, cuda)
        observed["libraries.after_torch"] = _read(_mapped)
    if request.get("transformer_engine"):
        step("import transformer_engine.pytorch")

        def load_te():
            import transformer_engine
            import transformer_engine.pytorch

            return str(getattr(transformer_engine, "__version__", "unknown"))

        observed["transformer_engine.version"] = _read(load_te)
        if not isinstance(torch, dict):
            # Read again: TransformerEngine may have loaded another cuDNN.
            observed["cudnn.version_after_te"] = _read(torch.backends.cudnn.version)
        observed["libraries.after_te"] = _read(_mapped)
    observed["cudnn.files"] = _read(_cudnn_files)
    observed["cudnn.core_versions"] = _read(_cudnn_core_version)
    return observed
