"""The environment in which a build is tried: modules, torch, compiler, GPU and variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scenario:
    """What a set-up script finds where it runs."""

    modules: frozenset[str] = frozenset()  # importable, besides the standard library and the project's own
    torch: str | None = None  # its version, None where it cannot be imported
    torch_cuda: str | None = None
    cxx11_abi: bool = True
    nvcc: str | None = None  # release of the compiler, as 12.8; None where there is none
    gpu: str | None = None  # compute capability of the visible GPU, as 9.0
    environ: Mapping[str, str] = field(default_factory=dict)
    python: tuple[int, int] = (3, 12)
    machine: str = "x86_64"
    all_modules: bool = False  # any module but the project's own can be imported
    top_on_path: bool = (
        True  # the project's folder is on sys.path: without a [build-system], or with the legacy backend
    )

    @property
    def cuda_home(self) -> str | None:
        """The folder of the toolkit, as torch finds it."""
        return "/usr/local/cuda" if self.nvcc else None


@dataclass(frozen=True)
class Failed(Exception):
    """The script stops: the exception as Python would name it."""

    kind: str
    message: str
    module: str = ""  # the one that cannot be imported


Read = Callable[[str], "str | None"]  # path below the project's folder -> text; None where there is no such file
