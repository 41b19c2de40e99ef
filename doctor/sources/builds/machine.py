"""What the modules of a build environment answer to a set-up script: os, sys, subprocess, packaging, torch."""

from __future__ import annotations

import os.path
import posixpath
import sys
from collections.abc import Callable, Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from doctor.model import TORCH

from .scenario import Failed, Scenario
from .values import UNKNOWN, Module, PythonVersion, Unknown, is_known

#: What setuptools carries along and puts on sys.path when it is imported, as build backends do first (from 71 on).
#: `pkg_resources` went with 82.
_VENDORED = ("packaging", "wheel", "platformdirs", "more_itertools", "jaraco", "importlib_metadata", "zipp", "tomli",
             "backports", "autocommand", "typeguard", "inflect")  # fmt: skip
STANDARD = frozenset(getattr(sys, "stdlib_module_names", ())) | {"distutils", "setuptools"}
WITH_SETUPTOOLS = STANDARD.union(_VENDORED)
_VERSIONS = ("packaging.version.parse", "packaging.version.Version", "pkg_resources.parse_version",
             "distutils.version.LooseVersion", "looseversion.LooseVersion")  # fmt: skip
_RUNS = ("subprocess.check_output", "subprocess.run", "subprocess.check_call", "subprocess.getoutput")
_NO_CUDA_HOME = "CUDA_HOME environment variable is not set. Please set it to your CUDA install root."


class BuildMachine:
    """Answers for the modules that a script imports, in one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.environ: dict[str, Any] = dict(scenario.environ)

    def importable(self, name: str) -> bool:
        """Return whether a module that is not the project's can be imported."""
        top = name.partition(".")[0]
        if top == TORCH:
            return self.scenario.torch is not None
        return self.scenario.all_modules or top in WITH_SETUPTOOLS or top in self.scenario.modules

    def attribute(self, name: str) -> Any:
        """Return the value of `torch.version.cuda` and the like; a `Module` where it is no constant."""
        answer = self._constants().get(name, self)
        return Module(name) if answer is self else answer

    def _constants(self) -> Mapping[str, Any]:
        place, release = self.scenario, self.scenario.python
        return {
            "sys.platform": "linux", "os.name": "posix", "os.sep": "/", "os.pathsep": ":", "os.environ": self.environ,
            "sys.version_info": PythonVersion(*release), "sys.argv": UNKNOWN, "sys.path": Module("sys.path"),
            "sys.executable": "python", "sys.maxsize": 2**63 - 1, "sys.version": f"{release[0]}.{release[1]}.0",
            "torch.__version__": place.torch, "torch.version.__version__": place.torch,
            "torch.version.cuda": place.torch_cuda, "torch.version.hip": None, "torch.version.xpu": None,
            "torch._C._GLIBCXX_USE_CXX11_ABI": place.cxx11_abi,
            "torch.utils.cpp_extension.CUDA_HOME": place.cuda_home, "torch.utils.cpp_extension.ROCM_HOME": None,
            "torch.utils.cpp_extension.HIP_HOME": None, "torch.utils.cpp_extension.IS_HIP_EXTENSION": False,
            "torch.utils.cpp_extension.IS_WINDOWS": False, "torch.utils.cpp_extension.IS_MACOS": False,
            "torch.cuda.CUDA_HOME": place.cuda_home, "typing.TYPE_CHECKING": False, "os.curdir": ".",
        }  # fmt: skip

    def call(self, name: str, arguments: list[Any], keywords: Mapping[str, Any]) -> Any:
        """Return what a function of these modules returns; `Failed` where it raises."""
        if name.startswith("torch."):
            return self._torch(name, arguments)
        if name in _VERSIONS:
            return _version(arguments[0] if arguments else UNKNOWN)
        if name in _RUNS:
            return self._run(name, arguments)
        if name in ("sys.exit", "os._exit"):
            raise Failed("SystemExit", str(arguments[0]) if arguments and is_known(arguments[0]) else "")
        answer = self._simple().get(name)
        return UNKNOWN if answer is None else answer(arguments)

    def _simple(self) -> Mapping[str, Callable[[list[Any]], Any]]:
        return {
            "os.getenv": self._getenv, "os.environ.get": self._getenv, "os.path.join": _join,
            "platform.machine": lambda _: self.scenario.machine, "platform.system": lambda _: "Linux",
            "platform.python_version_tuple": lambda _: (*map(str, self.scenario.python), "0"),
            "shutil.which": self._which, "os.path.basename": _on_text(posixpath.basename),
            "os.path.dirname": _on_text(posixpath.dirname), "os.environ.setdefault": self._getenv,
            "importlib.util.find_spec": self._spec, "os.environ.copy": lambda _: UNKNOWN,
        }  # fmt: skip

    def _getenv(self, arguments: list[Any]) -> Any:
        name, *default = arguments or [UNKNOWN]
        if not isinstance(name, str):
            return UNKNOWN
        if name in ("CUDA_HOME", "CUDA_PATH") and self.scenario.cuda_home:
            return self.scenario.cuda_home
        if name in ("PATH", "HOME", "LD_LIBRARY_PATH", "CXX", "CC"):
            return UNKNOWN
        return self.environ.get(name, default[0] if default else None)

    def _which(self, arguments: list[Any]) -> Any:
        if arguments[:1] == ["nvcc"]:
            return f"{self.scenario.cuda_home}/bin/nvcc" if self.scenario.nvcc else None
        return UNKNOWN

    def _spec(self, arguments: list[Any]) -> Any:
        if arguments and isinstance(arguments[0], str) and not self.importable(arguments[0]):
            return None
        return UNKNOWN

    def _run(self, name: str, arguments: list[Any]) -> Any:
        """Return what a program prints; `FileNotFoundError` for a CUDA compiler that is not there."""
        command = arguments[0] if arguments else UNKNOWN
        words = command if isinstance(command, list) else command.split() if isinstance(command, str) else [UNKNOWN]
        program = words[0] if words else UNKNOWN
        if not isinstance(program, str) or os.path.basename(program) != "nvcc":  # noqa: PTH119
            return UNKNOWN
        if self.scenario.nvcc is None:
            raise Failed("FileNotFoundError", f"[Errno 2] No such file or directory: '{program}'")
        text = f"nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release {self.scenario.nvcc}, V{self.scenario.nvcc}.0\n"  # noqa: E501
        return text if name.endswith(("check_output", "getoutput")) else UNKNOWN

    def _torch(self, name: str, arguments: list[Any]) -> Any:
        gpu = self.scenario.gpu
        if name == "torch.cuda.is_available":
            return gpu is not None and self.scenario.torch_cuda is not None
        if name == "torch.cuda.device_count":
            return 0 if gpu is None else 1
        if name in (
            "torch.cuda.get_device_capability",
            "torch.cuda.get_device_properties",
            "torch.cuda.current_device",
        ):
            return self._device(name)
        if name == "torch.utils.cpp_extension.CUDAExtension" and self.scenario.cuda_home is None:
            raise Failed("OSError", _NO_CUDA_HOME)
        if name == "torch.compiled_with_cxx11_abi":
            return self.scenario.cxx11_abi
        if name in ("torch.utils.cpp_extension._find_cuda_home", "torch.utils.cpp_extension._join_cuda_home"):
            if name.endswith("_join_cuda_home") and self.scenario.cuda_home is None:
                raise Failed("OSError", _NO_CUDA_HOME)
            return self.scenario.cuda_home if name.endswith("find_cuda_home") else UNKNOWN
        return UNKNOWN

    def _device(self, name: str) -> Any:
        if self.scenario.torch_cuda is None:
            raise Failed("AssertionError", "Torch not compiled with CUDA enabled")
        if self.scenario.gpu is None:
            raise Failed("RuntimeError", "Found no NVIDIA driver on your system")
        major, minor = (int(part) for part in self.scenario.gpu.split("."))
        return {"get_device_capability": (major, minor), "current_device": 0}.get(name.rpartition(".")[2], UNKNOWN)


def _version(text: Any) -> Any:
    if isinstance(text, Unknown):
        return UNKNOWN
    if not isinstance(text, str):
        raise Failed("InvalidVersion", f"Invalid version: {text!r}")
    try:
        return Version(text)
    except InvalidVersion:
        raise Failed("InvalidVersion", f"Invalid version: {text!r}") from None


def _join(arguments: list[Any]) -> Any:
    if any(part is None for part in arguments):
        raise Failed("TypeError", "expected str, bytes or os.PathLike object, not NoneType")
    return posixpath.join(*arguments) if all(isinstance(part, str) for part in arguments) and arguments else UNKNOWN


def _on_text(function: Callable[[str], str]) -> Callable[[list[Any]], Any]:
    return lambda arguments: function(arguments[0]) if arguments and isinstance(arguments[0], str) else UNKNOWN
