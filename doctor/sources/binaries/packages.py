"""Which of its compiled files a package opens at import, in which order, and after which others.

A wheel may carry several libraries of which one is opened: bitsandbytes has one per CUDA release, sgl-kernel one per
GPU generation, torchcodec one per FFmpeg. The records of the libraries follow each package's own loading code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from doctor.packages.records import Opens

#: Libraries that come with the driver: a machine without a GPU has none of them, and that says nothing about a package.
OF_DRIVER = ("libcuda.so", "libnvidia-", "libnvcuvid.so", "libnvoptix.so", "libibverbs.so", "libmlx5.so", "libefa.so")


@dataclass(frozen=True)
class Opening:
    """What one package opens."""

    files: str  # pattern of paths below site-packages
    any_one: bool = False  # the first group that loads is enough
    after: tuple[str, ...] = ()  # files of other packages that it loads first, with symbols visible to all


#: Names without which a library is none of ours: it needs nothing of torch or CUDA.
_RELATED = ("libtorch", "libc10", "libcudart", "libcublas", "libcudnn", "libnccl", "libnvrtc", "libcuda.so")


def opening_of(opens: Opens | None, cuda: str | None, environ: Mapping[str, str]) -> Opening | None:
    """Return what a distribution opens; None where that is not known, so that each of its modules counts alone.

    `cuda` is that of the torch build (empty: none).
    """
    if opens is None:
        return None
    files = opens.files
    if "{cuda}" in files:
        if cuda is None:
            return Opening(r"-")  # which one is opened is unknown
        wanted = environ.get(opens.cuda_variable) or cuda.replace(".", "")
        files = files.replace("{cuda}", re.escape(wanted)) if cuda else opens.without_cuda
    return Opening(files, opens.any_one, opens.after)


def is_alternative(opens: Opens | None, file: str) -> bool:
    """Return whether a file is one of several of which a package opens one."""
    return opens is not None and opens.alternatives != "" and opens.alternatives in file


def is_related(needed: Iterable[str]) -> bool:
    """Return whether these NEEDED entries name a library of torch or CUDA."""
    return any(name.startswith(_RELATED) for name in needed)


def archs_for_pick(opens: Opens | None, file: str, archs: Iterable[str]) -> tuple[str, ...]:
    """Return the architectures for which a package opens this file: a folder may serve one GPU alone."""
    for folder, served in opens.folders.items() if opens is not None else ():
        if f"/{folder}/" in file:
            wanted = served.removeprefix("!")
            return tuple(arch for arch in archs if arch.startswith(wanted) is (wanted == served))
    return tuple(archs)
