"""Whether a library and torch agree on the layout of a class that both compile in: symbols cannot show it.

A library that registers operators hands objects with a `c10::KernelFunction` inside to torch. torch 2.9 added a member
to that class (`tokens_`, ATen/core/boxing/KernelFunction.h). Across that change every symbol binds, and the
registration reads past the object: the process ends with std::bad_alloc or a segmentation fault (pytorch/ao issue
2919). The torch that has the member exports a destructor for it. A library compiled with it contains it as well.
"""

from __future__ import annotations

from collections.abc import Iterable

from doctor.packages.torch_symbols import TorchBuild, load_torch_symbols

from .elf import ElfFile

_DESTRUCTOR = ("_ZN3c1014KernelFunctionD1Ev", "_ZN3c1014KernelFunctionD2Ev")
#: Only where a compiler emits every inline function, it emits these: one of the new layout, one of both.
_TOKEN = ("_ZN3c1011KernelToken10invalidateEv", "_ZNSt8weak_ptrIN3c1011KernelTokenEED2Ev")
_MEMBER = ("_ZN3c1011BoxedKernelD1Ev", "_ZN3c1011BoxedKernelD2Ev")
_HANDED_OVER = ("11CppFunction", "c1017RegisterOperators")  # torch::CppFunction and what older code uses hold the class


def registers_operators(undefined: Iterable[str]) -> bool:
    """Return whether a library hands torch objects of the class."""
    return any(part in name for name in undefined for part in _HANDED_OVER)


def has_new_layout(elf: ElfFile) -> bool:
    """Return whether a library that registers operators was compiled with the member."""
    if not _any(elf, _DESTRUCTOR):
        return False
    return _any(elf, _TOKEN) or not _any(elf, _MEMBER)


def torch_has_new_layout(libraries: Iterable[ElfFile]) -> bool:
    """Return whether torch's libraries were compiled with the member."""
    return any(_any(elf, _DESTRUCTOR) for elf in libraries)


def builds_with(new: bool, builds: Iterable[TorchBuild]) -> list[TorchBuild]:
    """Return the builds on record of one layout."""
    late = {build.version for build in load_torch_symbols().exporters(_DESTRUCTOR[:1])}
    return [build for build in builds if (build.version in late) is new]


def _any(elf: ElfFile, names: Iterable[str]) -> bool:
    return any(elf.defines(name) for name in names)
