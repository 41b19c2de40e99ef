"""Which packages are parts of another: they come along at the version their leader pins, and are never chosen."""

from __future__ import annotations

import re
from functools import lru_cache

#: What a torch wheel brings along: CUDA's own libraries and the compiler. Not nvidia-cudnn-frontend, nvidia-ml-py ….
_OF_TORCH = re.compile(
    r"nvidia-.+-cu\d\d|nvidia-(cublas|cuda-.+|cufft|cufile|curand|cusolver|cusparse|nvjitlink|nvtx)"
    r"|cuda-(toolkit|bindings|pathfinder)|(pytorch-)?triton"
)


@lru_cache(maxsize=4096)
def leader_of(package: str) -> str | None:
    """The package whose part this one is: it brings it along at the version it pins."""
    if _OF_TORCH.fullmatch(package):
        return "torch"
    return "transformer-engine" if package.startswith("transformer-engine-") else None


def other_build(torch: str, part: str) -> bool:
    """Whether a torch from another index (2.6.0+cu126) brings its own release of this part."""
    label = re.search(r"\+cu(\d\d)", torch)
    made_for = re.search(r"-cu(\d\d)$", part)
    return label is not None and (made_for is None or made_for[1] == label[1])
