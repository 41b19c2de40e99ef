"""Which of its compiled files a package opens at import, in which order, and after which others.

A wheel may carry several libraries of which one is opened: bitsandbytes has one per CUDA release, sgl-kernel one per
GPU generation, torchcodec one per FFmpeg. Each entry follows the package's own loading code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

#: Libraries that come with the driver: a machine without a GPU has none of them, and that says nothing about a package.
OF_DRIVER = ("libcuda.so", "libnvidia-", "libnvcuvid.so", "libnvoptix.so", "libibverbs.so", "libmlx5.so", "libefa.so")


@dataclass(frozen=True)
class Opening:
    """What one package opens."""

    files: str  # pattern of paths below site-packages
    any_one: bool = False  # the first group that loads is enough
    after: tuple[str, ...] = ()  # files of other packages that it loads first, with symbols visible to all


_OPENINGS = {
    "flash-attn": Opening(r"flash_attn_2_cuda\.[^/]*so"),
    "flash-attn-3": Opening(r"(flash_attn_3/_C|flash_attn_3_cuda|flashattn_hopper_cuda)\.[^/]*so"),
    "fa3-fwd": Opening(r"(fa3_fwd/_C|fa3_fwd_cuda|flash_attn_3/_C)\.[^/]*so"),
    "vllm-flash-attn": Opening(r"(vllm_flash_attn_2_cuda|vllm_flash_attn/_vllm_fa2_C|vllm_flash_attn_c)\.[^/]*so"),
    "xformers": Opening(r"xformers/_C\.so"),
    "torchvision": Opening(r"torchvision/_C(_stable)?\.(so|[^/]*\.so)"),
    "torchaudio": Opening(r"(torchaudio/lib/(lib)?_?torchaudio|torchaudio/_torchaudio)\.[^/]*so"),
    "torchao": Opening(r"torchao/_C(?!.*cpython)[^/.]*\.[^/]*so"),
    "vllm": Opening(r"vllm/_C(_stable_libtorch)?\.[^/]*so"),
    "sgl-kernel": Opening(r"sgl_kernel/((sm90|sm100)/)?common_ops\.[^/]*so"),
    "sglang-kernel": Opening(r"(sgl_kernel|sglang_kernel)/((sm90|sm100)/)?common_ops\.[^/]*so"),
    "causal-conv1d": Opening(r"causal_conv1d_cuda\.[^/]*so"),
    "mamba-ssm": Opening(r"selective_scan_cuda\.[^/]*so"),
    "autoawq-kernels": Opening(r"awq_ext\.[^/]*so"),
    "transformer-engine-torch": Opening(r"transformer_engine_torch\.[^/]*so"),
    "transformer-engine-cu12": Opening(r"transformer_engine/(wheel_lib/)?libtransformer_engine\.so"),
    "transformer-engine-cu13": Opening(r"transformer_engine/(wheel_lib/)?libtransformer_engine\.so"),
    "xgrammar": Opening(
        r"xgrammar/(lib)?xgrammar_bindings\.[^/]*so", after=(r"tvm_ffi/lib/libtvm_ffi\.so", r"libtvm_ffi\.so")
    ),
    "torchcodec": Opening(r"torchcodec/libtorchcodec_core\d\.so", any_one=True),
}
#: Names without which a library is none of ours: it needs nothing of torch or CUDA.
_RELATED = ("libtorch", "libc10", "libcudart", "libcublas", "libcudnn", "libnccl", "libnvrtc", "libcuda.so")


def opening_of(name: str, files: Iterable[str], cuda: str | None, override: str | None = None) -> Opening | None:
    """Return what a distribution opens; None where that is not known, so that each of its modules counts alone.

    `cuda` is that of the torch build (empty: none), `override` the value of BNB_CUDA_VERSION.
    """
    if name != "bitsandbytes":
        return _OPENINGS.get(name)
    if cuda is None:
        return Opening(r"-")  # which one is opened is unknown
    if not cuda:
        return Opening(r"bitsandbytes/libbitsandbytes_cpu\.so")
    wanted = override or cuda.replace(".", "")
    return Opening(rf"bitsandbytes/libbitsandbytes_cuda{re.escape(wanted)}\.so")


def is_alternative(name: str, file: str) -> bool:
    """Return whether a file is one of several of which a package opens one."""
    return (name == "bitsandbytes" and "libbitsandbytes_" in file) or (name == "torchcodec" and "_" in file)


def is_related(needed: Iterable[str]) -> bool:
    """Return whether these NEEDED entries name a library of torch or CUDA."""
    return any(name.startswith(_RELATED) for name in needed)


def is_known(name: str) -> bool:
    """Return whether it is known what a distribution opens."""
    return name in _OPENINGS or name == "bitsandbytes"


def archs_for_pick(name: str, file: str, archs: Iterable[str]) -> tuple[str, ...]:
    """Return the architectures for which a package opens this file: sgl-kernel's `sm90` serves that GPU alone."""
    if "/sm90/" in file and name in ("sgl-kernel", "sglang-kernel"):
        return tuple(arch for arch in archs if arch.startswith("9.0"))
    if "/sm100/" in file and name in ("sgl-kernel", "sglang-kernel"):
        return tuple(arch for arch in archs if not arch.startswith("9.0"))
    return tuple(archs)
