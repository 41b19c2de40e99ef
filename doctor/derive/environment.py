"""Derived facts of the environment: what two or more installed things say together."""

from __future__ import annotations

from typing import Any

from ..model import ABSENT
from ..vocabulary import BOOLEAN, TEXT, VERSION, parse_version
from . import derived


@derived(
    "cudnn.copies_disagree", BOOLEAN, "cuDNN copies of different versions lie on the load path", needs=("cudnn.copies",)
)
def _copies_disagree(copies: tuple[str, ...]) -> bool:
    return copies != ABSENT and len({copy.split(" ", 1)[0] for copy in copies}) > 1


@derived(
    "cudnn.wheel_version",
    VERSION,
    "the cuDNN that the installed nvidia-cudnn wheel carries, three parts",
    uses=("nvidia-cudnn-cu13.version", "nvidia-cudnn-cu12.version", "nvidia-cudnn-cu11.version"),
)
def _wheel_version(*wheels: str | None) -> str | None:
    for wheel in wheels:
        if wheel is not None and wheel != ABSENT:
            return ".".join(str(part) for part in parse_version(wheel).release[:3])
    return ABSENT if all(wheel == ABSENT for wheel in wheels) else None


@derived(
    "cudnn.wheel_shadowed",
    BOOLEAN,
    "the cuDNN that will be loaded is not the wheel's",
    needs=("cudnn.version", "cudnn.wheel_version"),
)
def _wheel_shadowed(loaded: str, wheel: str) -> bool:
    if ABSENT in (loaded, wheel):
        return False
    return parse_version(loaded).release[:3] != parse_version(wheel).release[:3]


@derived("torch.cuda_major", TEXT, "major of the CUDA torch was built for", needs=("torch.cuda",))
def _cuda_major(cuda: str) -> str:
    return ABSENT if cuda == ABSENT else str(parse_version(cuda).major)


@derived(
    "torch.serves_gpu",
    BOOLEAN,
    "torch carries code that this GPU runs: same SM major, minor not above the GPU's",
    needs=("torch.arch_list", "gpu.sm"),
)
def _serves_gpu(archs: tuple[str, ...], sm: str) -> bool | None:
    if archs == ABSENT or sm == ABSENT:
        return None
    major, minor = map(int, sm.split("."))
    for arch in archs:
        if arch.endswith("+PTX"):  # forward-compatible code: the driver compiles it
            base = tuple(map(int, arch.removesuffix("+PTX").split(".")))
            if base <= (major, minor):
                return True
        arch_major, arch_minor = map(int, arch.removesuffix("+PTX").rstrip("af").split("."))
        if arch_major == major and arch_minor <= minor:
            return True
    return False


@derived("gpu.sm_family", TEXT, "the SM major as text: 8, 9, 10, 12", needs=("gpu.sm",))
def _sm_family(sm: str) -> Any:
    return sm if sm == ABSENT else sm.split(".")[0]
