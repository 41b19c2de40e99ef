"""Derived facts of the environment: what follows from several installed packages together."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from doctor.facts.kinds import BOOLEAN, TEXT, VERSION
from doctor.facts.vocabulary import Term, declare, parse_version
from doctor.model import ABSENT

from .compiled import TEGRA, same_machine_code
from .labels import label_fits, wheel_fits
from .registry import derived, of_packages, shape


@derived(
    "cudnn.copies_disagree", BOOLEAN, "cuDNN copies of different versions are on the load path", needs=("cudnn.copies",)
)
def _copies_disagree(copies: tuple[str, ...] | str) -> bool:
    return copies != ABSENT and len({copy.split(" ", 1)[0] for copy in copies}) > 1


@derived(
    "cudnn.wheel_version",
    VERSION,
    "the cuDNN that the installed nvidia-cudnn wheel carries, three parts; of several, that of torch's CUDA",
    uses=("torch.cuda_major", "nvidia-cudnn-cu13.version", "nvidia-cudnn-cu12.version", "nvidia-cudnn-cu11.version"),
)
def _wheel_version(cuda_major: str | None, *wheels: str | None) -> str | None:
    installed = [wheel for wheel in wheels if wheel is not None and wheel != ABSENT]
    if not installed:
        return ABSENT if all(wheel == ABSENT for wheel in wheels) else None
    own = dict(zip(("13", "12", "11"), wheels, strict=True)).get(cuda_major or "")
    if own in (None, ABSENT) and len(installed) > 1:
        return None  # unknown which of them torch finds
    chosen = installed[0] if own in (None, ABSENT) else own
    return ".".join(str(part) for part in parse_version(str(chosen)).release[:3])


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


@derived(
    "cudnn.older_than_wheel",
    BOOLEAN,
    "the cuDNN that will be loaded is older than the wheel's",
    needs=("cudnn.version", "cudnn.wheel_version"),
)
def _older_than_wheel(loaded: str, wheel: str) -> bool:
    if ABSENT in (loaded, wheel):
        return False
    return parse_version(loaded).release[:3] < parse_version(wheel).release[:3]


@derived("torch.cuda_major", TEXT, "major of the CUDA torch was built for", needs=("torch.cuda",))
def _cuda_major(cuda: str) -> str:
    return ABSENT if cuda == ABSENT else str(parse_version(cuda).major)


@derived(
    "torch.cuda_label", TEXT, "that CUDA as torch's indexes and wheels name it: cu118, cu128", needs=("torch.cuda",)
)
def _cuda_label(cuda: str) -> str:
    return ABSENT if cuda == ABSENT else "cu" + "".join(map(str, _leading(cuda, 2)))


_MAXWELL, _VOLTA = 5, 7
_THOR = (11, 0)


@derived(
    "torch.serves_gpu",
    BOOLEAN,
    "torch has code that this GPU runs: same SM major, minor not above the GPU's; on Jetson the same SM",
    needs=("torch.arch_list", "gpu.sm"),
    uses=("platform.system", "platform.machine", "torch.arch_list.given"),
)
def _serves_gpu(
    archs: tuple[str, ...] | str, sm: str, system: str | None, machine: str | None, given: bool | None
) -> bool | None:
    if archs == ABSENT or sm == ABSENT:
        return None
    major, minor = map(int, sm.split("."))
    if system == "Windows" and not given and _MAXWELL <= major < _VOLTA:
        return None  # the release table is of Linux; wheels for Windows keep older GPUs for longer
    if (major, minor) in TEGRA and not given and (machine != "aarch64" or (major, minor) < _THOR):
        return None  # the release table is of other machines; up to Orin NVIDIA builds the wheels for Jetson
    for arch in archs:
        if arch.endswith("+PTX"):  # forward-compatible code: the driver compiles it
            base = tuple(map(int, arch.removesuffix("+PTX").rstrip("af").split(".")))
            if base <= (major, minor):
                return True
        if same_machine_code(tuple(map(int, arch.removesuffix("+PTX").rstrip("af").split("."))), (major, minor)):
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
    ("torchaudio.torch_pin", VERSION, "the torch release this torchaudio release was built for"),
    ("sglang.torch_pin", VERSION, "the torch release this sglang release requires"),
    ("sgl-kernel.torch_pin", VERSION, "the torch release this sgl-kernel wheel was built with"),
    ("sglang-kernel.torch_pin", VERSION, "the torch release this sglang-kernel wheel was built with"),
):
    declare(Term(_key, _kind, _meaning, derived=True))


declare(
    Term("xformers.flash3_built", BOOLEAN, "xFormers finds a FlashAttention 3 that fits (`python -m xformers.info`)")
)


@shape(
    "xformers.cuda_major_held",
    BOOLEAN,
    "torch is built for the major release of CUDA that xFormers was compiled for",
    needs=("xformers.cuda", "torch.cuda"),
)
def _cuda_major_held(built_for: str, cuda: str) -> bool:
    return parse_version(built_for).major == parse_version(cuda).major


@derived(
    "cudnn.version",
    VERSION,
    "the cuDNN the process will load",
    needs=("torch.cuda_major",),
    uses=("nvidia-cudnn-cu13.version", "nvidia-cudnn-cu12.version", "nvidia-cudnn-cu11.version"),
)
def _loaded_cudnn(cuda_major: str, *wheels: str | None) -> str | None:
    """Return the version of the wheel that torch finds by run path; unknown where two wheels share one folder."""
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


def _held(found: str, pin: str | None, parts: int) -> bool | None:
    """Return whether a release is the pinned one, by its first parts; an absent package meets any pin."""
    if found == ABSENT:
        return True
    if pin in (None, ABSENT):
        return None
    return _leading(found, parts) == _leading(str(pin), parts)


def _leading(version: str, number: int) -> tuple[int, ...]:
    """Return the first parts of a version: 2.2 is 2.2.0."""
    return (*parse_version(version).release, *([0] * number))[:number]


@derived(
    "torch.cudnn_pin_held",
    BOOLEAN,
    "the cuDNN wheel is the one torch requires",
    needs=("cudnn.pinned_wheel",),
    uses=("torch.cudnn_pin",),
)
def _cudnn_pin_held(found: str, pin: str | None) -> bool | None:
    return _held(found, pin, 4)


@derived(
    "torch.triton_pin_held",
    BOOLEAN,
    "triton is of the minor release torch requires",
    needs=("triton.version",),
    uses=("torch.triton_pin",),
)
def _triton_pin_held(found: str, pin: str | None) -> bool | None:
    return _held(found, pin, 2)


def _torch_pin_held(parts: int) -> Callable[[str, str, str | None], bool | None]:
    """Return a derivation: torch is the release an installed package was built for, by that many parts."""

    def compute(package: str, torch: str, pin: str | None) -> bool | None:
        # a pin that is absent: the package was built for torch's stable ABI
        return True if ABSENT in (package, torch, pin) else _held(torch, pin, parts)

    return compute


def _built_for_torch(package: str, parts: int) -> None:
    derived(
        f"{package}.torch_pin_held",
        BOOLEAN,
        f"torch is the release {package} was built for",
        needs=(f"{package}.version", "torch.version"),
        uses=(f"{package}.torch_pin",),
    )(_torch_pin_held(parts))


@of_packages("built_for_torch_release")
def _built_for_release(package: str) -> None:
    _built_for_torch(package, 3)


@of_packages("built_for_torch_minor")
def _built_for_minor(package: str) -> None:
    _built_for_torch(package, 2)


derived(
    "xformers.torch_minor_held",
    BOOLEAN,
    "torch is of the minor release xformers was built for",
    needs=("xformers.version", "torch.version"),
    uses=("xformers.torch_pin",),
)(_torch_pin_held(2))


@derived(
    "flash-attn.wheel_torch",
    TEXT,
    "the torch in the label of flash-attn's wheel: +cu12torch2.8cxx11abiTRUE → 2.8; absent without a label",
    needs=("flash-attn.version",),
    uses=("flash-attn.wheel",),
)
def _wheel_torch(version: str, wheel: str | None) -> str:
    named = re.search(r"torch(\d+\.\d+)", _label(version, wheel))
    return named[1] if named else ABSENT


@derived(
    "flash-attn.wheel_abi",
    BOOLEAN,
    "the C++11 ABI that the label of flash-attn's wheel names; absent without a label",
    needs=("flash-attn.version",),
    uses=("flash-attn.wheel",),
)
def _wheel_abi(version: str, wheel: str | None) -> bool | str:
    named = re.search(r"cxx11abi(true|false)", _label(version, wheel).lower())
    return ABSENT if named is None else named[1] == "true"


@derived(
    "flash-attn.wheel_abi_held",
    BOOLEAN,
    "torch has the C++ ABI that flash-attn's wheel names; true for a wheel without a label, and under Windows",
    needs=("flash-attn.wheel_abi",),
    uses=("torch.cxx11_abi", "platform.system"),
)
def _wheel_abi_held(named: bool | str, abi: bool | str | None, system: str | None) -> bool | None:
    if named == ABSENT or system == "Windows":  # the two ABIs are those of libstdc++
        return True
    return None if abi in (None, ABSENT) else named == abi


@derived(
    "flash-attn.wheel_cuda_held",
    BOOLEAN,
    "torch or the CUDA toolkit has the major release of CUDA that flash-attn's wheel names; true without a label",
    needs=("flash-attn.version",),
    uses=("flash-attn.wheel", "torch.cuda_major", "toolkit.nvcc"),
)
def _wheel_cuda_held(version: str, wheel: str | None, major: str | None, nvcc: str | None) -> bool | None:
    named = re.search(r"cu(1[0-9])\d*torch", _label(version, wheel))
    if named is None or (nvcc not in (None, ABSENT) and str(nvcc).partition(".")[0] == named[1]):
        return True  # the toolkit has a libcudart of that release too
    return None if major in (None, ABSENT) else named[1] == major


derived(
    "sageattention.wheel_cuda_held",
    BOOLEAN,
    "torch or the CUDA toolkit has the major release of CUDA that SageAttention's wheel names; true without a label",
    needs=("sageattention.version",),
    uses=("sageattention.wheel", "torch.cuda_major", "toolkit.nvcc"),
)(_wheel_cuda_held)


def _label(version: str, wheel: str | None) -> str:
    """The local label of a version, or that of the wheel file that was installed."""
    name = version if wheel in (None, ABSENT) else str(wheel).replace("%2B", "+")
    return name.partition("+")[2]


@derived(
    "flash-attn.wheel_torch_held",
    BOOLEAN,
    "torch is of the minor release that flash-attn's wheel was built for; true for one without a label",
    needs=("flash-attn.wheel_torch", "torch.version"),
)
def _wheel_torch_held(built_for: str, torch: str) -> bool:
    return ABSENT in (built_for, torch) or _leading(built_for, 2) == _leading(torch, 2)


def _wheel_label(version: str) -> str:
    return version.partition("+")[2] or ABSENT


@of_packages("wheel_label")
def _labelled(package: str) -> None:
    derived(
        f"{package}.wheel_label",
        TEXT,
        f"the local label of the {package} release, such as cu128; absent without one",
        needs=(f"{package}.version",),
    )(_wheel_label)


@derived(
    "sgl-kernel.built_for_cuda_13",
    BOOLEAN,
    "the label of sgl-kernel's wheel names CUDA 13; the wheels without a label are for CUDA 12",
    needs=("sgl-kernel.version",),
)
def _kernel_for_cuda_13(version: str) -> bool:
    return version.partition("+")[2].startswith("cu13")


@of_packages("label_names_torch")
def _label_held(package: str) -> None:
    """Register whether the label of a wheel (+cu12torch2.6cxx11abiFALSE) names the installed torch and ABI."""
    version = f"{package}.version"

    @derived(
        f"{package}.wheel_torch_held", BOOLEAN,
        f"torch is of the minor release that {package}'s wheel was built for; true for one without a label",
        needs=(version, "torch.version"),
    )  # fmt: skip
    def _torch_held(installed: str, torch: str) -> bool:
        return label_fits(installed, torch)

    @derived(
        f"{package}.wheel_abi_held", BOOLEAN,
        f"torch has the C++ ABI that {package}'s wheel names; true for one without a label, and under Windows",
        needs=(version,), uses=("torch.cxx11_abi", "platform.system"),
    )  # fmt: skip
    def _abi_held(installed: str, abi: bool | str | None, system: str | None) -> bool | None:
        held = _wheel_abi_held(_wheel_abi(installed, None), abi, system)
        return None if held is None else bool(held)


@derived(
    "torch.known_without_cuda",
    BOOLEAN,
    "torch is known to be a build without CUDA (not merely unknown)",
    uses=("torch.cuda",),
)
def _known_without_cuda(cuda: str | None) -> bool:
    return cuda == ABSENT


@derived(
    "flash-attn.known_absent",
    BOOLEAN,
    "flash-attn is known not to be installed (not merely unknown)",
    uses=("flash-attn.version",),
)
def _flash_attn_known_absent(version: str | None) -> bool:
    return version == ABSENT


@derived(
    "transformer-engine.core_alone",
    BOOLEAN,
    "a core wheel of TransformerEngine is known to be installed, and its torch part known not to be",
    uses=(
        "transformer-engine-torch.version", "transformer-engine-cu12.version", "transformer-engine-cu13.version",
        "transformer-engine.version",
    ),
)  # fmt: skip
def _core_alone(torch_part: str | None, cu12: str | None, cu13: str | None, whole: str | None) -> bool:
    if torch_part != ABSENT:
        return False
    if cu12 is None and cu13 is None:  # a release without a label is that of the package index, which is split
        return whole not in (None, ABSENT) and "+" not in str(whole)
    return any(core not in (None, ABSENT) for core in (cu12, cu13))


@derived(
    "declared.foreign_wheel",
    TEXT,
    "the first wheel installed by address that is for another system, machine or Python; absent where all fit",
    uses=("declared.wheels", "python.version", "platform.system", "platform.machine"),
)
def _foreign_wheel(
    wheels: tuple[str, ...] | str | None, python: str | None, system: str | None, machine: str | None
) -> str:
    if wheels in (None, ABSENT):
        return ABSENT
    return next((name for name in wheels if not wheel_fits(name, python, system, machine)), ABSENT)
