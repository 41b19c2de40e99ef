"""The libraries that `import transformer_engine.common` loads before its own (transformer_engine/common/__init__.py).

The order changed with its releases: up to 2.3 the wheel of cuDNN came first, from 2.4 the folders that variables name,
and from 2.11 the loader's path comes before the wheels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from doctor.facts.vocabulary import parse_version

from .loader import Failure, FailureKind, Process

OLDEST = (1, 9)  # before it, TransformerEngine left the search to the loader
WHEEL_LATER, LOADER_EARLIER, CUDA_DEFAULT = (2, 4), (2, 11), (1, 13)
DEFAULT_CUDA = "/usr/local/cuda"
CUDNN = "cudnn"  # the library that torch and TransformerEngine both load: its family, and its folder in the wheels
MODULE = "transformer_engine"
LIBRARIES = (CUDNN, "nvrtc", "curand")
Release = tuple[int, ...]


def import_te_common(
    process: Process, site_dirs: tuple[str, ...], version: str | None, machine: str = "x86_64"
) -> Failure | None:
    """Load what TransformerEngine loads before its core library; return why that fails."""
    release = parse_version(version).release[:2] if version else (99, 0)
    if release < OLDEST:
        return None
    by_system: dict[str, bool] = {}
    for library in LIBRARIES if release >= (2, 8) else LIBRARIES[:2]:
        found = load_one(process, site_dirs, release, library)
        if isinstance(found, Failure):
            return found
        by_system[library] = found != "wheel"
    if release >= LOADER_EARLIER:
        if not by_system["nvrtc"] and not by_system["curand"]:
            for library in ("cublas", "cudart", CUDNN):
                if not _wheel(process, site_dirs, release, library):
                    return Failure(FailureKind.MISSING_LIBRARY, library, (f"lib{library}.so",), "no wheel has it")
    elif release >= (2, 8):
        for library in ("cublas", "cuda_runtime"):
            _wheel(process, site_dirs, release, library)
    return None


def load_one(process: Process, site_dirs: tuple[str, ...], release: Release, library: str) -> str | Failure:
    """Load one library by TransformerEngine's order; return the step that found it: wheel, home or loader."""
    steps: dict[str, Callable[[Process, tuple[str, ...], Release, str], bool]] = {
        "wheel": _wheel, "home": _home, "loader": _loader,
    }  # fmt: skip
    order = ("wheel", "home", "loader")
    if WHEEL_LATER <= release < LOADER_EARLIER or (release < WHEEL_LATER and library != CUDNN):
        order = ("home", "wheel", "loader")
    elif release >= LOADER_EARLIER:
        order = ("home", "loader", "wheel")
    for name in order:
        if steps[name](process, site_dirs, release, library):
            return name
    return Failure(FailureKind.MISSING_LIBRARY, MODULE, (f"lib{library}.so",), "TransformerEngine finds none")


def _home(process: Process, site_dirs: tuple[str, ...], release: Release, library: str) -> bool:
    """Load the last by name of all libraries below the first folder that has one."""
    for _, folder in home_folders(process.environ, release, library):
        found = process.files.below(folder, f"lib{library}.so")
        if found:
            best = sorted(found, key=os.path.basename, reverse=True)[0]
            process.dlopen(best, make_global=True)
            return True
    return False


def home_folders(environ: Mapping[str, str], release: Release, library: str = CUDNN) -> list[tuple[str, str]]:
    """Return the folders that variables name, with the variable, in the order of the search."""
    get = environ.get
    own = (
        [f"{library.upper()}_HOME", f"{library.upper()}_PATH"] if library == CUDNN or release >= LOADER_EARLIER else []
    )
    groups = [own, ["CUDA_HOME", "CUDA_PATH"]]
    fallback = [("the default CUDA folder", DEFAULT_CUDA)] if release >= CUDA_DEFAULT else []
    if release >= LOADER_EARLIER:  # each variable in turn
        return [(name, environ[name]) for group in groups for name in group if name in environ] + fallback
    folders: list[tuple[str, str]] = []
    for group in groups:  # the first of each pair that is set, and no other
        folders += [(name, environ[name]) for name in group if get(name)][:1]
    cuda_named = any(get(name) for name in groups[1])
    return folders if cuda_named else folders + fallback


def _loader(process: Process, site_dirs: tuple[str, ...], release: Release, library: str) -> bool:
    name = f"lib{library}.so"
    if (2, 6) <= release < LOADER_EARLIER and (cached := process.files.cached_path(name)):
        return not isinstance(process.dlopen(cached, make_global=True), Failure)
    return not isinstance(process.dlopen(name, make_global=True), Failure)


def _wheel(process: Process, site_dirs: tuple[str, ...], release: Release, library: str) -> bool:
    """Load every library of the first folder of the NVIDIA wheels that has one."""
    for base in site_dirs:
        folders = [(f"{base}/nvidia/{library}/lib", "lib"), (f"{base}/nvidia/cuda_{library}/lib", "lib")]
        if release >= LOADER_EARLIER:
            folders = [
                (f"{base}/nvidia/cu13/{library}/lib", "lib"), (f"{base}/nvidia/cu13/lib", f"lib{library}"), *folders,
            ]  # fmt: skip
        for folder, prefix in folders:
            names = [
                name
                for name in process.files.listing(folder)
                if name.startswith(prefix) and ".so." in name and name[-1:].isdigit()
            ]
            for name in names:
                process.dlopen(f"{folder}/{name}", make_global=True)
            if names:
                return True
    return False
