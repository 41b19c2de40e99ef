"""Whether the compiled files of installed packages load next to torch, and on which GPUs: read from the files.

This module finds the packages that have such files. The reader of ELF files is imported only where there are some.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doctor.facts.vocabulary import fact
from doctor.model import Fact
from doctor.packages.records import UNKNOWN_PACKAGE, PackageRecords
from doctor.sources.watch import Watch

from .conda_meta import conda_folder
from .elf import NotElf, read_dynamic
from .module_copies import stray_files
from .target import Target, TargetKind
from .torch_build import torch_folder, version_file

PROMISES: tuple[str, ...] = ()

_SHARED = re.compile(rb"^\"?([^,\"\n]+\.so(?:\.[\d.]+)?)\"?,", re.MULTILINE)
_MAX_RECORD = 64 << 20
#: Beginnings of NEEDED entries that make a file one of ours.
_LIBRARIES = ("libtorch", "libc10", "libcudart", "libcublas", "libcudnn", "libnccl", "libnvrtc", "libcuda.so")
#: Distributions whose files are known to overwrite each other.
_OWNED = re.compile(r"nvidia-(cudnn|cublas|cuda-|nccl|cusparselt)|flash-attn|fa3-fwd|transformer-engine|xformers|apex$")
#: Large packages with many compiled files and none for torch.
_UNRELATED = frozenset((
    "aiohttp", "cmake", "cryptography", "cuda-bindings", "cupy-cuda12x", "cupy-cuda13x", "cython", "debugpy",
    "frozenlist", "grpcio", "h5py", "jax", "jaxlib", "llvmlite", "lxml", "matplotlib", "multidict", "mypy",
    "networkx", "ninja", "numba", "numpy", "onnxruntime", "opencv-python", "opencv-python-headless", "pandas",
    "pillow", "protobuf", "psutil", "pyarrow", "pydantic-core", "pyyaml", "ray", "regex", "ruff", "safetensors",
    "scikit-image", "scikit-learn", "scipy", "sentencepiece", "shapely", "statsmodels", "tensorflow", "tiktoken",
    "tokenizers", "torch", "triton", "uvloop", "yarl",
))  # fmt: skip

#: name, version, folder, compiled files below it
Package = tuple[str, str | None, str, tuple[str, ...]]


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield the facts of every package with compiled files for torch or CUDA; none where there is none."""
    if target.system not in (None, "Linux") or (target.kind == TargetKind.INTERPRETER and not target.glibc):
        return
    place = place_of(target)
    if place["torch_folder"] is None and target.kind == TargetKind.INTERPRETER:
        return  # nothing here can be imported
    packages = list(_packages(target, watch.packages))
    if not packages and not (place["torch_cuda"] and _has_libraries(target, place["torch_folder"])):
        return  # nothing that could fail to load, and no CUDA library that could be mixed
    yield from _missing_modules(packages, watch.packages)
    from doctor.sources.binaries import judge  # door: binaries

    owners = [
        judge.Owner(found.name, found.version, found.folder, f"{found.path}/RECORD")
        for found in target.distributions
        if _OWNED.match(found.name)
    ]
    installed = [judge.Installed(*package, watch.packages.get(package[0], UNKNOWN_PACKAGE)) for package in packages]
    for key, value, source in judge.judge(judge.Place(**place), installed, owners):
        yield fact(key, value, source)


def place_of(target: Target) -> dict[str, Any]:
    """Return what is known of the environment whose files are judged, by the names of `judge.Place`."""
    folder = torch_folder(target)
    assigned = version_file(folder)[0] if folder else {}
    starts = target.kind == TargetKind.INTERPRETER and target.python
    return {
        "site_dirs": tuple(str(path) for path in target.site_dirs),
        "machine": target.machine or "x86_64",
        "environ": target.environ,
        "program": os.path.realpath(str(target.python)) if starts else None,
        "python": target.version,
        "torch_folder": str(folder) if folder else None,
        "torch_version": assigned.get("__version__"),
        "torch_cuda": assigned.get("cuda"),
        "conda": conda_folder(target),
    }


def _missing_modules(packages: list[Package], records: PackageRecords) -> Iterator[Fact]:
    """Yield the compiled modules of a serving library that are listed and not there, or that its build left out."""
    servers = [package for package in packages if records.get(package[0], UNKNOWN_PACKAGE).chooses_by_modules]
    if not servers:
        return
    missing = []
    for name, _, base, files in servers:
        stems = {path: path.partition(".")[0] for path in files}
        missing += [stem for path, stem in stems.items() if not os.path.isfile(f"{base}/{path}")]  # noqa: PTH113
        missing += [names[0] for names in records[name].usual_modules if {*stems.values()}.isdisjoint(names)]
    modules = tuple(stem.replace("/", ".") for stem in missing)
    where = ", ".join(f"{base} ({name})" for name, _, base, _ in servers)
    yield Fact("machine.compiled_modules_missing", modules, f"RECORD and files below {where}")


def _has_libraries(target: Target, torch: str | None) -> bool:
    """Return whether torch or NVIDIA's wheels have a folder of libraries."""
    folders = (*(path / "nvidia" for path in target.site_dirs), *((Path(torch) / "lib",) if torch else ()))
    return any(map(Path.is_dir, folders))


def _packages(target: Target, records: PackageRecords) -> Iterator[Package]:
    """Yield the packages that list shared libraries; the copy that is imported counts, owned or not."""
    seen: set[str] = set()
    for name, (folder, files) in stray_files(target, records).items():
        if name not in _UNRELATED and _is_related(folder, files):
            name = "transformer-engine-torch" if name == "transformer-engine" else name
            seen.add(name)
            yield name, None, folder, files
    for found in target.distributions:
        if not found.name or found.name in seen or found.name in _UNRELATED or found.name.startswith("nvidia-"):
            continue
        seen.add(found.name)
        files = _compiled_files(f"{found.path}/RECORD")
        if files and _is_related(found.folder, files):
            yield found.name, found.version, found.folder, files


def _is_related(base: str, files: tuple[str, ...]) -> bool:
    """Return whether a file needs a library of torch or CUDA, or cannot be read."""
    for name in files:
        if not os.path.isfile(f"{base}/{name}"):  # noqa: PTH113 - opening a pipe would block
            continue
        try:
            needed = read_dynamic(f"{base}/{name}").needed
        except NotElf:
            return True
        except OSError:
            continue
        if any(library.startswith(_LIBRARIES) for library in needed):
            return True
    return False


def _compiled_files(record: str) -> tuple[str, ...]:
    """Return the shared libraries that a RECORD lists, as paths below its site-packages folder."""
    try:
        if not os.path.isfile(record):  # noqa: PTH113
            return ()
        with open(record, "rb") as stream:  # noqa: PTH123
            data = stream.read(_MAX_RECORD)
    except OSError:
        return ()
    if b".so" not in data:
        return ()
    return tuple(match.decode("utf-8", "replace") for match in _SHARED.findall(data) if not match.startswith(b"../.."))
