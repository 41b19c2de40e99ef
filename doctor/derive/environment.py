"""Derived facts of the environment: what two or more installed things say together."""

from __future__ import annotations

from typing import Any

from ..model import ABSENT
from ..vocabulary import BOOLEAN, TEXT, VERSION, Term, declare, parse_version
from . import derived


@derived(
    "cudnn.copies_disagree", BOOLEAN, "cuDNN copies of different versions lie on the load path", needs=("cudnn.copies",)
)
def _copies_disagree(copies: tuple[str, ...] | str) -> bool:
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
def _serves_gpu(archs: tuple[str, ...] | str, sm: str) -> bool | None:
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


for _key, _kind, _meaning in (
    ("torch.cudnn_pin", VERSION, "the nvidia-cudnn wheel this torch release requires"),
    ("torch.nccl_pin", VERSION, "the nvidia-nccl wheel this torch release requires"),
    ("torch.triton_pin", VERSION, "the triton release this torch release requires"),
    ("xformers.torch_pin", VERSION, "the torch release this xformers release was built for"),
    ("vllm.torch_pin", VERSION, "the torch release this vllm release requires"),
    ("torchvision.torch_pin", VERSION, "the torch release this torchvision release was built for"),
):
    declare(Term(_key, _kind, _meaning, derived=True))


@derived(
    "cudnn.version",
    VERSION,
    "the cuDNN the process will load",
    needs=("torch.cuda_major",),
    uses=("nvidia-cudnn-cu13.version", "nvidia-cudnn-cu12.version", "nvidia-cudnn-cu11.version"),
)
def _loaded_cudnn(cuda_major: str, *wheels: str | None) -> str | None:
    """Torch finds its wheel's cuDNN by run path; two wheels share one folder, so both leave it open."""
    found = [wheel for wheel in wheels if wheel not in (None, ABSENT)]
    own = dict(zip(("13", "12", "11"), wheels, strict=True)).get(cuda_major)
    if own is None or own == ABSENT or any(wheel != own for wheel in found):
        return None
    return ".".join(str(part) for part in parse_version(own).release[:3])


@derived(
    "cudnn.pinned_wheel",
    VERSION,
    "the installed nvidia-cudnn wheel for the CUDA major torch was built for, four parts",
    needs=("torch.cuda_major",),
    uses=("nvidia-cudnn-cu13.version", "nvidia-cudnn-cu12.version", "nvidia-cudnn-cu11.version"),
)
def _pinned_wheel(cuda_major: str, *wheels: str | None) -> str | None:
    return dict(zip(("13", "12", "11"), wheels, strict=True)).get(cuda_major, ABSENT)


def _same(found: str, pinned: str) -> bool | None:
    """Whether two versions are one release; None where one of them is not there."""
    if ABSENT in (found, pinned):
        return None
    return parse_version(found).release == parse_version(pinned).release


@derived(
    "torch.cudnn_pin_held",
    BOOLEAN,
    "the cuDNN wheel is the one torch requires",
    needs=("cudnn.pinned_wheel", "torch.cudnn_pin"),
)
def _cudnn_pin_held(found: str, pinned: str) -> bool | None:
    return _same(found, pinned)


@derived(
    "torch.triton_pin_held",
    BOOLEAN,
    "triton is of the minor release torch requires",
    needs=("triton.version", "torch.triton_pin"),
)
def _triton_pin_held(found: str, pinned: str) -> bool | None:
    if ABSENT in (found, pinned):
        return None
    return parse_version(found).release[:2] == parse_version(pinned).release[:2]


@derived(
    "xformers.torch_pin_held",
    BOOLEAN,
    "torch is the release xformers was built for",
    needs=("torch.version", "xformers.torch_pin"),
)
def _xformers_pin_held(found: str, pinned: str) -> bool | None:
    return _same(found, pinned)


@derived(
    "vllm.torch_pin_held",
    BOOLEAN,
    "torch is the release vllm requires",
    needs=("torch.version", "vllm.torch_pin"),
)
def _vllm_pin_held(found: str, pinned: str) -> bool | None:
    return _same(found, pinned)


@derived(
    "torchvision.torch_pin_held",
    BOOLEAN,
    "torch is of the minor release torchvision was built for",
    needs=("torch.version", "torchvision.torch_pin"),
)
def _torchvision_pin_held(found: str, pinned: str) -> bool | None:
    if ABSENT in (found, pinned):
        return None
    return parse_version(found).release[:2] == parse_version(pinned).release[:2]


@derived(
    "flash-attn.known_absent",
    BOOLEAN,
    "flash-attn is known not to be installed (not merely unknown)",
    uses=("flash-attn.version",),
)
def _flash_attn_known_absent(version: str | None) -> bool:
    return version == ABSENT
