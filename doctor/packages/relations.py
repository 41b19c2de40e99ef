"""Which packages hang on another: parts come along at the version their owner pins, and are never chosen; what is
compiled against torch is built again when it moves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from doctor.model import ABSENT, TORCH

#: What a torch wheel brings along: CUDA's own libraries and the compiler. Not nvidia-cudnn-frontend, nvidia-ml-py ….
_OF_TORCH = re.compile(
    r"nvidia-.+-cu[0-9][0-9]|nvidia-(cublas|cuda-.+|cufft|cufile|curand|cusolver|cusparse|nvjitlink|nvtx)"
    r"|cuda-(toolkit|bindings|pathfinder)|(pytorch-)?triton"
)
#: Compiled against one torch (its C++ ABI and CUDA): another torch needs another build of the same release.
FROM_THE_REGISTRY = ("flash-attn", "transformer-engine-torch", "causal-conv1d", "mamba-ssm", "grouped-gemm")
#: The same, but under these names the registry has nothing, or something else.
FROM_THEIR_SOURCE = ("flash-attn-3", "flashattn-hopper", "apex", "deep-ep", "deep-gemm")
BUILT_AGAINST_TORCH = (*FROM_THE_REGISTRY, *FROM_THEIR_SOURCE)

#: Built for each CUDA in the PyTorch indexes; the registry has one build of each.
BUILT_PER_INDEX = ("torchaudio", "torchcodec", "torchvision", "xformers")
#: What a package pins: its install replaces other releases of these. Source: the `pyproject.toml` of its releases.
PINNED_BY: Mapping[str, tuple[str, ...]] = {
    "sglang": (
        "flashinfer-python", "flashinfer-cubin", "sgl-kernel", "sglang-kernel", TORCH, "torchaudio", "torchvision",
        "transformers", "xgrammar",
    ),
}  # fmt: skip


@lru_cache(maxsize=4096)
def owner_of(package: str) -> str | None:
    """The package whose part this one is: it brings it along at the version it pins."""
    if _OF_TORCH.fullmatch(package):
        return TORCH
    return "transformer-engine" if package.startswith("transformer-engine-") else None


def other_build(torch: str, part: str) -> bool:
    """Whether a torch from another index (2.6.0+cu126) brings its own release of this part."""
    label = re.search(r"\+cu([0-9][0-9])", torch)
    made_for = re.search(r"-cu([0-9][0-9])$", part)
    return label is not None and (made_for is None or made_for[1] == label[1])


def orphans(installed: Mapping[str, str], versions: Mapping[str, str], chosen: Mapping[str, str]) -> list[str]:
    """Parts of the old release that the new one replaces by other packages (cu12 wheels by cu13 ones)."""
    return sorted(
        name
        for name, version in versions.items()
        if version == ABSENT and installed.get(name, ABSENT) != ABSENT and name not in chosen
    )


def install_order(package: str) -> tuple[bool, str]:
    """Return the sort key of packages in plans, commands and reports: torch first, the others by name."""
    return package != TORCH, package
