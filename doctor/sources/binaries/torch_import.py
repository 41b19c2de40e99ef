"""The libraries that `import torch` loads, in its order, by the text of the installed `torch/__init__.py`.

torch first loads `libtorch_global_deps.so`, with symbols visible to all, then CUDA libraries of the wheels, then its
extension module. Which libraries come from the wheels changed with its releases (2.0, 2.6, 2.9, 2.10, 2.14), so the
installed file is read instead of a table of versions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from doctor.util.reading import open_regular

from .loader import Binder, Failure, FailureKind, Loaded, Process

_MAX_TEXT = 1 << 19
NO_EXTENSION = ("torch._C",)  # what is missing where torch is laid out in a way that is not known
_CUDNN_PARTS = ("graph", "ops", "cnn", "adv", "engines_precompiled", "engines_runtime_compiled", "heuristic")
_LIBRARY = r"""["'](?P<folder>\w+)["']\s*[,:]\s*["'](?P<name>lib[\w-]+\.so)\.\*\[0-9\]["']"""
_ENTRY = re.compile(_LIBRARY)
_CALL = re.compile(r"_preload_cuda_deps\(\s*" + _LIBRARY + r"\s*\)")
_WHOLE_LIST = re.compile(r"^[ ]+_preload_cuda_deps\((?P<best_effort>required=False)?\)\s*$", re.MULTILINE)
_GUARD = re.compile(r"""if ["']([^"']*libcudart\.so)["'] not in""")


@dataclass(frozen=True)
class Preloads:
    """Which CUDA libraries torch loads by their paths in the wheels."""

    always: tuple[tuple[str, str], ...] = ()  # (folder, library) after the global dependencies
    best_effort: bool = False  # a missing one does not end the list
    guard: str = ""  # only if a loaded path contains this
    on_error: tuple[tuple[str, str], ...] = ()  # where the global dependencies do not load
    shared_folder: bool = False  # also in nvidia/cu13/lib
    plain_folder: bool = False  # also in <folder>/lib next to nvidia/


def read_preloads(text: str) -> Preloads:
    """Return what this text of `torch/__init__.py` loads."""
    start = text.find("def _get_cuda_dep_paths")
    start = start if start >= 0 else text.find("def _preload_cuda_deps")
    if start < 0:
        return Preloads()
    part = text[start : text.find("if (USE_RTLD_GLOBAL_WITH_LIBTORCH", start)]
    calls = [(match["folder"], match["name"]) for match in _CALL.finditer(part)]
    listed = [(match["folder"], match["name"]) for match in _ENTRY.finditer(_CALL.sub("", part))]
    whole = _WHOLE_LIST.search(part)
    guard = _GUARD.search(part)
    return Preloads(
        always=tuple(listed if whole else calls) if guard else (),
        best_effort=bool(whole and whole["best_effort"]),
        guard=guard[1] if guard else "",
        on_error=tuple(listed),
        shared_folder='f"cu{maj_cuda_version}"' in part,
        plain_folder=re.search(r"join\(path, lib_folder, ", part) is not None,
    )


@dataclass(frozen=True)
class TorchFiles:
    """Where torch is installed."""

    folder: str  # …/site-packages/torch
    site_dirs: tuple[str, ...]
    cuda_major: str | None
    tag: str = ""  # cpython-311: of the extension module


def import_torch(process: Process, torch: TorchFiles, text: str, binder: Binder | None = None) -> Failure | None:
    """Load what `import torch` loads into the process; return why it fails."""
    preloads = read_preloads(text)
    global_deps = f"{torch.folder}/lib/libtorch_global_deps.so"
    if process.files.summary(global_deps) is None:  # a build without it
        found: Loaded | Failure | None = None
    else:
        found = process.dlopen(global_deps, make_global=True, binder=binder)
    if isinstance(found, Failure):
        if found.kind != FailureKind.MISSING_LIBRARY or not _is_listed(found, preloads.on_error):
            return found
        _preload(process, torch, preloads, preloads.on_error)
        found = process.dlopen(global_deps, make_global=True, binder=binder)
        if isinstance(found, Failure):
            return found
    elif preloads.guard and any(preloads.guard in one.path for one in process.loaded):
        _preload(process, torch, preloads, preloads.always)
    module = _extension(process, torch)
    if module is None:
        return Failure(FailureKind.MISSING_LIBRARY, torch.folder, NO_EXTENSION, "it has no extension module")
    loaded = process.dlopen(module, binder=binder)
    return loaded if isinstance(loaded, Failure) else None


def first_cudnn_call(process: Process) -> None:
    """Load what cuDNN 9 opens by name at its first call: the graph library, and what that needs."""
    for main in process.find_loaded("libcudnn.so")[:1]:
        major = os.path.basename(main.path).partition(".so.")[2].partition(".")[0] or "9"  # noqa: PTH119
        for part in _CUDNN_PARTS:
            process.dlopen(f"libcudnn_{part}.so.{major}", caller=main)


def _is_listed(failure: Failure, libraries: Iterable[tuple[str, str]]) -> bool:
    return any(missing.startswith(name.partition(".")[0]) for missing in failure.missing for _, name in libraries)


def _preload(process: Process, torch: TorchFiles, preloads: Preloads, libraries: Iterable[tuple[str, str]]) -> None:
    for folder, name in libraries:
        path = _in_wheels(process, torch, preloads, folder, name)
        if path is None:
            if preloads.best_effort:
                continue
            return  # torch gives up at the first that is missing, without an error
        if isinstance(process.dlopen(path), Failure) and not preloads.best_effort:
            return


def _in_wheels(process: Process, torch: TorchFiles, preloads: Preloads, folder: str, name: str) -> str | None:
    for base in torch.site_dirs:
        places = [f"{base}/nvidia/{folder}/lib"]
        if preloads.shared_folder and torch.cuda_major:
            places.append(f"{base}/nvidia/cu{torch.cuda_major}/lib")
        if preloads.plain_folder:
            places.append(f"{base}/{folder}/lib")
        for place in places:
            for entry in process.files.listing(place):
                if entry.startswith(name + ".") and entry[-1:].isdigit():
                    return f"{place}/{entry}"
    return None


def _extension(process: Process, torch: TorchFiles) -> str | None:
    names = [name for name in process.files.listing(torch.folder) if name.startswith("_C.") and name.endswith(".so")]
    own = [name for name in names if torch.tag and f".{torch.tag}-" in name]
    return f"{torch.folder}/{(own or names)[0]}" if names else None


def read_text(path: str) -> str:
    """Return the beginning of a Python file, empty where it cannot be read."""
    try:
        with open_regular(path) as stream:
            return stream.read(_MAX_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""
