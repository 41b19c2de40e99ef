"""How the installed torch was built, read from its files: version and label, CUDA, C++ ABI, architectures."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Fact

from .distributions import scan
from .elf import NotElf, section
from .target import Target, Watch

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
    """The folder of the torch that an import finds."""
    for directory in target.site_dirs:
        if os.path.isfile(f"{directory}/torch/__init__.py"):  # noqa: PTH113
            return directory / "torch"
    return None


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """The torch.* facts; none at all where no torch is installed."""
    folder = torch_folder(target)
    if folder is None:
        yield from _without_files(target)
        return
    said, source = version_file(folder)
    if "__version__" in said:
        yield fact("torch.version", said["__version__"], source)
    missing = f"`{source}` does not say"
    if "cuda" in said:
        yield fact("torch.cuda", said["cuda"] or ABSENT, source, raw=f"hip {said['hip']}" if said.get("hip") else None)
    else:
        yield Fact("torch.cuda", None, source, problem=missing)
    if said.get("git_version"):
        yield fact("torch.git_version", said["git_version"], source)
    if (abi := _abi(folder)) is not None:
        yield fact("torch.cxx11_abi", *abi)
    if "cuda" in said and not said["cuda"]:
        yield Fact("torch.arch_list", ABSENT, source)  # a build without CUDA carries code for no GPU
    elif (archs := _arch_list(folder)) is not None:
        yield fact("torch.arch_list", *archs)


def _without_files(target: Target) -> Iterator[Fact]:
    """Metadata may stay behind after the files are gone: then nothing can be imported."""
    left = next((found for found in scan(target.site_dirs) if found.name == "torch"), None)
    if left is not None:
        yield Fact(
            "torch.version", None, left.path, left.version, "its metadata is there but the `torch` folder is not"
        )


def version_file(folder: Path) -> tuple[dict[str, str], str]:
    """What torch/version.py assigns, None as an empty text, and where that file is."""
    path = folder / "version.py"
    try:
        with path.open("rb") as stream:
            text = stream.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return {}, str(path)
    said = {}
    for match in _ASSIGNED.finditer(text):
        value = match["value"]
        said[match["name"]] = "" if value == "None" else value[1:-1]
    return said, str(path)


def _abi(folder: Path) -> tuple[bool, str] | None:
    """The flag that torch's CMake file passes on, or, since that is gone, the symbols of its smallest library."""
    config = folder / "share/cmake/Torch/TorchConfig.cmake"
    try:
        with config.open("rb") as stream:
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
        # PTX is compiled by the driver for any later GPU; machine code with a letter serves that very one.
        archs.append(name + "+PTX" if kind == "compute" else name + number[len(digits) :])
    return archs, str(library)


def _section(path: Path, name: str) -> bytes:
    """One section of a library, which is a small part of it; empty when it cannot be had."""
    try:
        found = section(str(path), name)
        if found is None or found[1] > _MAX_SECTION:
            return b""
        with path.open("rb") as stream:
            stream.seek(found[0])
            return stream.read(found[1])
    except (OSError, NotElf):
        return b""
