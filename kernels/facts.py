"""What does this interpreter really load: torch's build, its cuDNN, the GPUs, TransformerEngine?

Request: `{"transformer_engine": bool, "cuda": bool}`, both optional: `cuda: false` asks nothing that creates a context.
Observed: flat; what could not be read is `{"error": text}` in its place, so one broken part hides no other.
"""

from _probe import main, step


def _ask(question):
    """The answer, or the error as data."""
    try:
        return question()
    except BaseException as error:  # an import may raise SystemExit
        return {"error": "{}: {}".format(type(error).__name__, error)[:2000]}


def _mapped():
    """Shared libraries of the attention stack in this process, in the order of the address space."""
    wanted = ("libcudnn", "libtransformer_engine", "libcudart", "libcuda.so", "libcublas", "libnvrtc", "flash_attn")
    found = []
    with open("/proc/self/maps", errors="replace") as maps:  # noqa: PTH123
        for line in maps:
            path = line.rstrip("\n").split(None, 5)[5:]
            if path and any(mark in path[0] for mark in wanted) and path[0] not in found:
                found.append(path[0])
    return found


def _cudnn_files():
    """Only cuDNN's own files: more than one folder among them is two cuDNNs in one process."""
    return [path for path in _mapped() if path.rsplit("/", 1)[-1].startswith("libcudnn")]


def _cudnn_core_version():
    """What the mapped core library says of itself, past any check that torch makes."""
    import ctypes

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
    """One small attention or convolution through cuDNN, so that the libraries it loads late are mapped too."""
    x = torch.randn(1, 8, 8, 8, device="cuda", dtype=torch.float16)
    torch.nn.functional.conv2d(x, torch.randn(8, 8, 3, 3, device="cuda", dtype=torch.float16))
    torch.cuda.synchronize()
    return True


def _torch_facts(torch, observed, cuda):
    observed["torch.version"] = str(torch.__version__)
    observed["torch.git_version"] = _ask(lambda: torch.version.git_version)
    observed["torch.cuda"] = _ask(lambda: torch.version.cuda)
    observed["torch.hip"] = _ask(lambda: getattr(torch.version, "hip", None))
    observed["torch.cxx11_abi"] = _ask(lambda: bool(torch._C._GLIBCXX_USE_CXX11_ABI))
    observed["torch.arch_list"] = _ask(lambda: torch._C._cuda_getArchFlags().split() if torch.version.cuda else [])
    observed["torch.file"] = _ask(lambda: torch.__file__)
    step("cudnn version")
    observed["torch.cudnn_available"] = _ask(lambda: bool(torch.backends.cudnn.is_available()))
    observed["cudnn.version"] = _ask(torch.backends.cudnn.version)
    if not cuda:
        return
    step("cuda init")
    observed["cuda.available"] = _ask(lambda: bool(torch.cuda.is_available()))
    if observed["cuda.available"] is True:
        observed["gpus"] = _ask(lambda: _gpus(torch))
        step("cudnn use")
        observed["cudnn.used"] = _ask(lambda: _touch_cudnn(torch))
    elif torch.version.cuda:
        observed["cuda.init"] = _ask(lambda: torch.cuda.init())  # says why


def run(request):
    """Read off what this process loads; never raises for a part that is broken or missing."""
    import platform
    import sys

    observed = {"python.version": platform.python_version(), "python.executable": sys.executable}
    cuda = request.get("cuda", True)
    step("import torch")

    def load():
        import torch

        return torch

    torch = _ask(load)
    if isinstance(torch, dict):
        observed["torch"] = torch
    else:
        _torch_facts(torch, observed, cuda)
        observed["libraries.after_torch"] = _ask(_mapped)
    if request.get("transformer_engine"):
        step("import transformer_engine.pytorch")

        def load_te():
            import transformer_engine
            import transformer_engine.pytorch

            return str(getattr(transformer_engine, "__version__", "unknown"))

        observed["transformer_engine.version"] = _ask(load_te)
        if not isinstance(torch, dict):
            # The same question again: another cuDNN may have come in between.
            observed["cudnn.version_after_te"] = _ask(torch.backends.cudnn.version)
        observed["libraries.after_te"] = _ask(_mapped)
    observed["cudnn.files"] = _ask(_cudnn_files)
    observed["cudnn.core_versions"] = _ask(_cudnn_core_version)
    return observed


if __name__ == "__main__":
    main(run)
