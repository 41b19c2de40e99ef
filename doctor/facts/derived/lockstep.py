"""Derived facts of packages that must be of one release, or of the release that another one requires."""

from __future__ import annotations

import re

from doctor.facts.derived.registry import derived, of_packages
from doctor.facts.kinds import BOOLEAN, VERSION
from doctor.facts.versions import cuda_of_label
from doctor.facts.vocabulary import Term, declare, parse_version
from doctor.model import ABSENT

declare(Term("sglang.flashinfer_pin", VERSION, "the flashinfer-python release this sglang requires", derived=True))
declare(Term("vllm.flashinfer_pin", VERSION, "the flashinfer-python release this vllm requires", derived=True))
declare(Term("sglang.kernel_pin", VERSION, "the kernel package's release this sglang requires", derived=True))


@of_packages("compressed_tensors_pin")
def _compressed_tensors_pin(package: str) -> None:
    meaning = f"the compressed-tensors release this {package} requires"
    declare(Term(f"{package}.compressed_tensors_pin", VERSION, meaning, derived=True))


def _same(one: str, other: str) -> bool:
    """Whether two versions are one release, labels aside."""
    return parse_version(one.partition("+")[0]) == parse_version(other.partition("+")[0])


def _agree(key: str, meaning: str, one: str, other: str) -> None:
    """Declare that two packages must be of one release; what is absent disagrees with nothing."""

    def compute(first: str, second: str) -> bool:
        return ABSENT in (first, second) or _same(first, second)

    derived(key, BOOLEAN, meaning, needs=(one, other))(compute)


_agree(
    "flashinfer.cubin_held", "flashinfer-cubin is of the release of flashinfer-python",
    "flashinfer-python.version", "flashinfer-cubin.version",
)  # fmt: skip
_agree(
    "flashinfer.jit_cache_held", "flashinfer-jit-cache is of the release of flashinfer-python",
    "flashinfer-python.version", "flashinfer-jit-cache.version",
)  # fmt: skip
_agree(
    "te.torch_part_held", "transformer-engine and transformer-engine-torch are of one release",
    "transformer-engine.version", "transformer-engine-torch.version",
)  # fmt: skip
_agree(
    "te.core_cu12_held", "transformer-engine-torch and transformer-engine-cu12 are of one release",
    "transformer-engine-torch.version", "transformer-engine-cu12.version",
)  # fmt: skip
_agree(
    "te.core_cu13_held", "transformer-engine-torch and transformer-engine-cu13 are of one release",
    "transformer-engine-torch.version", "transformer-engine-cu13.version",
)  # fmt: skip
_agree(
    "cutlass-dsl.libs_held", "nvidia-cutlass-dsl and its base libraries are of one release",
    "nvidia-cutlass-dsl.version", "nvidia-cutlass-dsl-libs-base.version",
)  # fmt: skip
_agree(
    "cutlass-dsl.cu13_held", "nvidia-cutlass-dsl and its CUDA 13 libraries are of one release",
    "nvidia-cutlass-dsl.version", "nvidia-cutlass-dsl-libs-cu13.version",
)  # fmt: skip
_agree(
    "llmcompressor.compressed_tensors_agreed", "vllm and llmcompressor require one release of compressed-tensors",
    "vllm.compressed_tensors_pin", "llmcompressor.compressed_tensors_pin",
)  # fmt: skip


def _older(key: str, meaning: str, package: str, pin: str) -> None:
    """Declare that an installed package is older than the release that another one requires; false if it is absent."""

    def compute(found: str, wanted: str) -> bool:
        if ABSENT in (found, wanted):
            return False
        return parse_version(found.partition("+")[0]) < parse_version(wanted.partition("+")[0])

    derived(key, BOOLEAN, meaning, needs=(package, pin))(compute)


_older(
    "sglang.flashinfer_older", "flashinfer-python is older than sglang requires",
    "flashinfer-python.version", "sglang.flashinfer_pin",
)  # fmt: skip
_older(
    "vllm.flashinfer_older", "flashinfer-python is older than vllm requires",
    "flashinfer-python.version", "vllm.flashinfer_pin",
)  # fmt: skip
_older(
    "sglang.sgl_kernel_older", "sgl-kernel is older than sglang requires", "sgl-kernel.version", "sglang.kernel_pin"
)  # fmt: skip
_older(
    "sglang.sglang_kernel_older", "sglang-kernel is older than sglang requires",
    "sglang-kernel.version", "sglang.kernel_pin",
)  # fmt: skip


@derived(
    "triton-windows.triton_held",
    BOOLEAN,
    "triton-windows is of the minor release of triton that torch requires",
    needs=("triton-windows.version", "torch.triton_pin"),
)
def _triton_windows_held(found: str, pin: str) -> bool:
    if ABSENT in (found, pin):
        return True
    return parse_version(found).release[:2] == parse_version(pin).release[:2]


@derived(
    "triton.newer_than_pin",
    BOOLEAN,
    "triton is of a later minor release than torch requires",
    needs=("triton.version", "torch.triton_pin"),
)
def _triton_newer(found: str, pin: str) -> bool:
    return ABSENT not in (found, pin) and parse_version(found).release[:2] > parse_version(pin).release[:2]


@derived(
    "flashinfer.jit_cache_cuda_held",
    BOOLEAN,
    "flashinfer-jit-cache was built for the major CUDA release of torch",
    needs=("flashinfer-jit-cache.version", "torch.cuda_major"),
)
def _jit_cache_cuda_held(version: str, torch_major: str) -> bool | None:
    named = re.search(r"cu(1[0-9])\d", version.partition("+")[2])
    return None if named is None or torch_major == ABSENT else named[1] == torch_major


@derived(
    "torch.nccl_older",
    BOOLEAN,
    "the NCCL wheel for torch's CUDA is of an older minor release than the one torch requires",
    needs=("torch.nccl_pin", "torch.cuda_major"),
    uses=("nvidia-nccl-cu13.version", "nvidia-nccl-cu12.version", "nvidia-nccl-cu11.version"),
)
def _nccl_older(pin: str, cuda_major: str, *wheels: str | None) -> bool | None:
    own = dict(zip(("13", "12", "11"), wheels, strict=True)).get(cuda_major)
    if own is None:
        return None
    return ABSENT not in (own, pin) and parse_version(own).release[:2] < parse_version(pin).release[:2]


@derived(
    "torchvision.build_held",
    BOOLEAN,
    "torchvision's label names the major CUDA release of torch, or neither is a CUDA build; true without a label",
    needs=("torchvision.version", "torch.cuda_major"),
)
def _vision_build_held(version: str, cuda_major: str) -> bool:
    label = version.partition("+")[2]
    if label == "cpu":
        return cuda_major == ABSENT
    named = re.fullmatch(r"cu(1[0-9])\d", label)
    return named is None or named[1] == cuda_major


@derived(
    "torchvision.cuda_held",
    BOOLEAN,
    "torchvision's label names the CUDA release of torch, minor included; true without a label or for a CPU build",
    needs=("torchvision.version", "torch.cuda"),
)
def _vision_cuda_held(version: str, cuda: str) -> bool:
    return bool(_audio_build_held(version, cuda))  # one meaning of a label


@derived(
    "torchvision.only_torch_is_cpu",
    BOOLEAN,
    "torch's label is that of the CPU build, and torchvision has none, as the wheels of the default index",
    needs=("torchvision.version", "torch.version"),
)
def _only_torch_is_cpu(version: str, torch: str) -> bool:
    return torch.endswith("+cpu") and version != ABSENT and "+" not in version


@derived(
    "torchaudio.build_held",
    BOOLEAN,
    "torchaudio's label names the CUDA release of torch, minor included; true without a label or for a CPU build",
    needs=("torchaudio.version", "torch.cuda"),
)
def _audio_build_held(version: str, cuda: str) -> bool:
    named = cuda_of_label(version.partition("+")[2])
    return named is None or cuda == ABSENT or named == ".".join(cuda.split(".")[:2])


_NEW_ABI_OF_2_6 = ("cu126", "xpu")  # the builds of 2.6 with the C++11 ABI; the others came with it in 2.7


@of_packages("abi_of_torch_2_6")
def _abi_held(package: str) -> None:
    """Declare whether two builds of the releases of torch 2.6 have one C++ ABI."""

    @derived(
        f"{package}.abi_of_2_6_held",
        BOOLEAN,
        f"the labels of {package} and torch, both of the 2.6 family, name builds of one C++ ABI; true without labels",
        needs=(f"{package}.version", "torch.version"),
    )
    def held(version: str, torch: str) -> bool:
        labels = [text.partition("+")[2] for text in (version, torch)]
        return not all(labels) or len({label in _NEW_ABI_OF_2_6 for label in labels}) == 1


@of_packages("nightly")
def _nightly(package: str) -> None:
    """Declare whether a package is a nightly build."""

    def compute(version: str) -> bool:
        return version != ABSENT and parse_version(version).is_devrelease

    meaning = f"{package} is a nightly build"
    derived(f"{package}.is_nightly", BOOLEAN, meaning, needs=(f"{package}.version",))(compute)


@derived(
    "te.has_source_label",
    BOOLEAN,
    "TransformerEngine's version carries a label, as a build from its repository does",
    needs=("transformer-engine.version",),
)
def _te_source_label(version: str) -> bool:
    return "+" in version
