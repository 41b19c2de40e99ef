"""The cuDNN that the process will load, and every other copy on the machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Fact
from doctor.sources.watch import Watch
from doctor.util.reading import open_regular

from .elf import Dynamic, NotElf, read_dynamic, section
from .library_search import DEFAULT_DIRS, library_path, loader_cache, resolve
from .target import Target, TargetKind
from .torch_build import torch_folder, version_file

PROMISES = ("cudnn.version", "cudnn.path", "cudnn.copies")

_MAIN = re.compile(r"libcudnn\.so(\.\d+)*")
_IN_NAME = re.compile(r"libcudnn\.so\.(\d+\.\d+\.\d+)")
_DEFINED = re.compile(r"#\s*define\s+CUDNN_(MAJOR|MINOR|PATCHLEVEL)\s+(\d+)")
_IN_GRAPH = re.compile(rb"cudnn_version_(\d{1,2})_(\d{1,3})_(\d{1,3})_")
_MAX_SECTION = 16 << 20
#: Libraries of torch that may need cuDNN; the first that does loads it.
_TORCH_LIBRARIES = (
    "libtorch_global_deps.so", "libtorch_cuda.so", "libtorch_cuda_cpp.so", "libtorch_python.so", "libtorch_cpu.so",
)  # fmt: skip
#: Folders where installers put cuDNN; `{machine}` is x86_64 or aarch64.
SYSTEM_DIRS = (
    "/usr/local/cuda/lib64", "/usr/local/cudnn/lib", "/usr/local/cudnn/lib64",
    "/usr/lib/{machine}-linux-gnu", "/lib/{machine}-linux-gnu", *DEFAULT_DIRS,
)  # fmt: skip
_HOMES = ("CUDNN_HOME", "CUDNN_PATH", "CUDA_HOME", "CUDA_PATH")


@dataclass(frozen=True)
class Loaded:
    """The cuDNN that the loader will take for torch."""

    path: str | None
    how: str  # the source, or why it is unknown; empty: no cuDNN is needed
    certain: bool = True  # False: unknown from torch's files, so that the release's own cuDNN may count


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield cudnn.copies always; cudnn.path and cudnn.version as far as torch's libraries determine them."""
    loaded = predict(target)
    if loaded.path is not None:
        version, source = version_of(loaded.path)
        yield fact("cudnn.path", loaded.path, loaded.how)
        yield fact("cudnn.version", version, f"{source}; {loaded.how}", problem=None if version else source)
    elif loaded.certain:
        yield Fact("cudnn.version", None if loaded.how else ABSENT, "search of the loader", problem=loaded.how or None)
        yield Fact("cudnn.path", None if loaded.how else ABSENT, "search of the loader", problem=loaded.how or None)
    copies = {os.path.realpath(path): path for path in reversed(list(_copies(target, loaded)))}
    listed = [f"{version_of(path)[0] or 'unknown'} {path}" for path in reversed(copies.values())]
    yield Fact("cudnn.copies", tuple(listed), "search of the import path, the loader's path and the CUDA folders")


def predict(target: Target) -> Loaded:
    """Return the cuDNN file that importing torch will load; with an empty reason where torch needs none."""
    folder = torch_folder(target)
    if folder is None:
        return Loaded(None, "no torch is installed", certain=False)
    if version_file(folder)[0].get("cuda") == "":
        return Loaded(None, "")  # a build without CUDA
    unreadable = []
    # conda keeps torch's libraries in the environment's own folder.
    libraries = [place / name for name in _TORCH_LIBRARIES for place in (folder / "lib", target.prefix / "lib")]
    for library in libraries:
        if not library.is_file():
            continue
        try:
            dynamic = read_dynamic(str(library))
        except (OSError, NotElf):
            unreadable.append(library.name)
            continue
        wanted = next((needed for needed in dynamic.needed if _MAIN.fullmatch(needed)), None)
        if wanted is not None:
            return _resolve(target, library.name, wanted, dynamic)
    if unreadable:
        return Loaded(None, f"cannot read torch's {', '.join(unreadable)}")
    return Loaded(None, "torch's libraries are missing, or do not need cuDNN", certain=False)


def _resolve(target: Target, name: str, wanted: str, dynamic: Dynamic) -> Loaded:
    if target.kind == TargetKind.SITE_PACKAGES:
        # Only files of the tree count: the loader path of this machine is not that of the machine it will run on.
        inside = [path for path in dynamic.rpath if not dynamic.runpath and os.path.isfile(f"{path}/{wanted}")]  # noqa: PTH113
        if inside:
            return Loaded(f"{inside[0]}/{wanted}", f"DT_RPATH of torch's {name}")
        return Loaded(
            None,
            f"torch's {name} finds `{wanted}` on the loader's path, which a folder does not determine",
            certain=False,
        )
    path = resolve(wanted, dynamic, executable(target), loader_cache(), target.environ)
    if path is None:
        return Loaded(None, f"the loader finds no `{wanted}`, which torch's {name} needs")
    return Loaded(os.path.normpath(path), f"the loader's search for torch's {name}")


def executable(target: Target) -> Dynamic | None:
    """Return the dynamic section of the interpreter: conda's has a DT_RPATH that all libraries inherit."""
    try:
        return read_dynamic(os.path.realpath(target.python)) if target.python else None
    except (OSError, NotElf):
        return None


def version_of(path: str) -> tuple[str | None, str]:
    """Return the version of one copy and its source, or None and why it is unknown."""
    real = os.path.realpath(path)
    if match := _IN_NAME.search(os.path.basename(real)):  # noqa: PTH119
        return match[1], f"file name {real}"
    # In a store of links, look next to the link first, then next to its target.
    folders = tuple(dict.fromkeys((os.path.dirname(path), os.path.dirname(real))))  # noqa: PTH120
    # The library before the header next to it: two wheels that own the same files may mix.
    for folder in folders:
        if (found := _in_graph(folder, real)) is not None:
            return found
    for header in (header for folder in folders for header in _headers(folder)):
        try:
            with open_regular(header) as stream:
                numbers = dict(_DEFINED.findall(stream.read(1 << 16).decode("utf-8", "replace")))
        except OSError:
            continue
        if len(numbers) == 3:
            return f"{numbers['MAJOR']}.{numbers['MINOR']}.{numbers['PATCHLEVEL']}", header
    return None, f"unknown version of {path}: no number in its name, its library or a header next to it"


def _headers(folder: str) -> Iterator[str]:
    parent = os.path.dirname(folder)  # noqa: PTH120
    places = [f"{parent}/include", folder]
    if os.path.basename(parent) == "lib":  # noqa: PTH119 - /usr/lib/x86_64-linux-gnu → /usr/include/x86_64-linux-gnu
        include = f"{os.path.dirname(parent)}/include"  # noqa: PTH120
        places += [f"{include}/{os.path.basename(folder)}", include]  # noqa: PTH119
    for place in places:
        yield f"{place}/cudnn_version.h"
        yield f"{place}/cudnn_version_v9.h"


def _in_graph(folder: str, real: str) -> tuple[str, str] | None:
    """Return version and source from libcudnn_graph of cuDNN 9, whose plan serialisation names the version."""
    soname = os.path.basename(real).replace("libcudnn.", "libcudnn_graph.")  # noqa: PTH119
    path = f"{folder}/{soname}"
    try:
        for name in (".rodata", ".dynstr"):
            found = section(path, name)
            if found is None or found[1] > _MAX_SECTION:
                continue
            with open_regular(path) as stream:
                stream.seek(found[0])
                if match := _IN_GRAPH.search(stream.read(found[1])):
                    return ".".join(part.decode() for part in match.groups()), f"text in {path}"
    except (OSError, NotElf):
        pass
    return None


def _copies(target: Target, loaded: Loaded) -> Iterator[str]:
    """Yield every main cuDNN library, first the one that will be loaded."""
    if loaded.path is not None:
        yield loaded.path
    for folder in _folders(target):
        try:
            names = sorted(name for name in os.listdir(folder) if _MAIN.fullmatch(name))  # noqa: PTH208
        except OSError:
            continue
        for name in names:
            if os.path.exists(f"{folder}/{name}"):  # noqa: PTH110 - not a dangling link
                yield f"{folder}/{name}"
    if target.kind != TargetKind.SITE_PACKAGES:
        cache = loader_cache()
        yield from (path for name, path in cache.items() if _MAIN.fullmatch(name) and os.path.exists(path))  # noqa: PTH110


def _folders(target: Target) -> Iterator[str]:
    for directory in target.site_dirs:
        yield f"{directory}/nvidia/cudnn/lib"
        yield f"{directory}/torch/lib"
    if target.kind == TargetKind.SITE_PACKAGES:
        return
    yield from library_path(target.environ)
    for variable in _HOMES:
        home = target.environ.get(variable)
        if home:
            yield from (f"{home}/lib64", f"{home}/lib", home)
    if Path(target.prefix, "conda-meta").is_dir():
        yield f"{target.prefix}/lib"
    yield from (folder.format(machine=target.machine or "x86_64") for folder in SYSTEM_DIRS)
