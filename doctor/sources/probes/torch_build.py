"""The build of the installed torch, from its files: version with label, CUDA, C++ ABI, architectures."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, TORCH, Fact
from doctor.sources.watch import Watch
from doctor.util.reading import open_regular

from .elf import NotElf, section
from .target import Target

PROMISES = ("torch.version", "torch.cuda", "torch.cxx11_abi", "torch.arch_list", "torch.git_version")

_ASSIGNED = re.compile(
    r"""^(?P<name>__version__|cuda|hip|git_version)\s*(?::[^=\n]*)?=\s*(?P<value>None|'[^'\n]*'|"[^"\n]*")""",
    re.MULTILINE,
)
_ABI_FLAG = re.compile(r"_GLIBCXX_USE_CXX11_ABI=([01])")
#: torch's check macro takes a std::string: its mangled name says which one, in a library of 1.5 MB.
_ABI_SYMBOLS = ((b"torchCheckFailEPKcS2_jRKNSt7__cxx11", True), (b"torchCheckFailEPKcS2_jRKSs", False))
_ARCH = rb"(?:sm|compute)_\d{2,3}[af]?"
#: `torch.cuda.get_arch_list()` is this text, kept between two NULs.
_ARCH_FLAGS = re.compile(rb"\0(" + _ARCH + rb"(?: " + _ARCH + rb")*)\0")
_MAX_SECTION = 32 << 20


def torch_folder(target: Target) -> Path | None:
    """Return the folder of the torch that an import finds."""
    for directory in target.site_dirs:
        if os.path.isfile(f"{directory}/torch/__init__.py"):  # noqa: PTH113
            return directory / TORCH
    return None


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield the torch.* facts; none where no torch is installed."""
    folder = torch_folder(target)
    if folder is None:
        yield from _without_files(target)
        return
    assigned, source = version_file(folder)
    if "__version__" in assigned:
        yield fact("torch.version", assigned["__version__"], source)
    missing = f"`{source}` does not give it"
    cuda = assigned.get("cuda")  # empty: a build without CUDA
    if cuda is not None:
        yield fact(
            "torch.cuda",
            cuda or ABSENT,
            source,
            raw=f"hip {assigned['hip']}" if assigned.get("hip") else None,
        )
    else:
        yield Fact("torch.cuda", None, source, problem=missing)
    if assigned.get("git_version"):
        yield fact("torch.git_version", assigned["git_version"], source)
    if (abi := _abi(folder)) is not None:
        yield fact("torch.cxx11_abi", *abi)
    if cuda == "":
        yield Fact("torch.arch_list", ABSENT, source)  # a build without CUDA has code for no GPU
    elif (archs := _arch_list(folder)) is not None:
        yield fact("torch.arch_list", *archs)


def _without_files(target: Target) -> Iterator[Fact]:
    """Yield an unknown version where only the metadata is left, so that nothing can be imported."""
    left = next((found for found in target.distributions if found.name == TORCH), None)
    if left is not None:
        yield Fact("torch.version", None, left.path, left.version, "it has metadata, but no `torch` folder")


def version_file(folder: Path) -> tuple[dict[str, str], str]:
    """Return what torch/version.py assigns, with None as an empty text, and the path of the file."""
    path = folder / "version.py"
    try:
        with open_regular(path) as stream:
            text = stream.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return {}, str(path)
    assigned = {}
    for match in _ASSIGNED.finditer(text):
        value = match["value"]
        assigned[match["name"]] = "" if value == "None" else value[1:-1]
    return assigned, str(path)


def _abi(folder: Path) -> tuple[bool, str] | None:
    """Return the C++11 ABI by torch's CMake file or, in releases without that flag, by symbols of libc10.so."""
    config = folder / "share/cmake/Torch/TorchConfig.cmake"
    try:
        with open_regular(config) as stream:
            match = _ABI_FLAG.search(stream.read(1 << 16).decode("utf-8", "replace"))
        if match:
            return match[1] == "1", str(config)
    except OSError:
        pass
    library = folder / "lib/libc10.so"
    names = _section(library, ".dynstr")
    for symbol, abi in _ABI_SYMBOLS:
        if symbol in names:
            return abi, f"symbols of {library}"
    return None


def _arch_list(folder: Path) -> tuple[list[str], str] | None:
    library = folder / "lib/libtorch_python.so"
    match = _ARCH_FLAGS.search(_section(library, ".rodata"))
    if match is None:
        return None
    archs = []
    for arch in match[1].decode().split():
        kind, _, number = arch.partition("_")
        digits = number.rstrip("af")
        name = f"{digits[:-1]}.{digits[-1]}"
        # The driver compiles PTX for any later GPU; machine code with a letter runs on that GPU alone.
        archs.append(name + "+PTX" if kind == "compute" else name + number[len(digits) :])
    return archs, str(library)


def _section(path: Path, name: str) -> bytes:
    """Return one section of a library, empty where it cannot be read."""
    try:
        found = section(str(path), name)
        if found is None or found[1] > _MAX_SECTION:
            return b""
        with open_regular(path) as stream:
            stream.seek(found[0])
            return stream.read(found[1])
    except (OSError, NotElf):
        return b""
