"""The ptxas and the libcuda that triton uses at run time, by the search in its own installed files.

triton compiles a small C file against the driver's library, and calls `ptxas` for each kernel. Which folders it
searches, and whether the linker needs `libcuda.so` or `libcuda.so.1`, changed with its releases: the text decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Fact
from doctor.sources.watch import Watch
from doctor.util.reading import open_regular

from .library_search import loader_cache
from .target import Target, TargetKind

PROMISES: tuple[str, ...] = ()

_SOURCES = ("backends/nvidia/driver.py", "common/build.py")  # from 3.0 on, and before
# Patterns are compiled at first use: most checks need none.
_CHECKED = r"""join\(path, ['"](libcuda\.so(?:\.1)?)['"]\)"""
_LISTED = r"""['"](libcuda\.so(?:\.1)?)['"] in line"""
_BY_NAME = r"""(?m)^libraries = \[['"]libcuda\.so\.1['"]\]"""
_RELEASE = rb"Cuda compilation tools, release (\d+\.\d+)"
#: Where GNU ld looks after the folders of the command line and of LIBRARY_PATH.
_LINKER_DIRS = (
    "/usr/local/lib/{machine}-linux-gnu", "/lib/{machine}-linux-gnu", "/usr/lib/{machine}-linux-gnu",
    "/usr/local/lib64", "/lib64", "/usr/lib64", "/usr/local/lib", "/lib", "/usr/lib",
)  # fmt: skip
#: Variable -> fact key.
_OVERRIDES = {"TRITON_PTXAS_PATH": "ptxas_override", "TRITON_PTXAS_BLACKWELL_PATH": "blackwell_ptxas_override"}
_MAX_TEXT, _MAX_TOOL = 1 << 20, 256 << 20


class Search(NamedTuple):
    """How one release of triton searches for the driver's library."""

    listed: str  # the text that a line of `ldconfig -p` must contain
    checked: str  # the file that must be in one of the folders
    linked: str  # the file that the linker needs
    by_variable: bool  # TRITON_LIBCUDA_PATH and LD_LIBRARY_PATH are read


def read_search(text: str) -> Search | None:
    """Return the search in the text of triton's driver module, None where it is another one (before 2.1)."""
    listed, checked = re.search(_LISTED, text), re.search(_CHECKED, text)
    if listed is None or checked is None:
        return None
    linked = "libcuda.so.1" if re.search(_BY_NAME, text) else "libcuda.so"
    return Search(listed[1], checked[1], linked, "TRITON_LIBCUDA_PATH" in text or "libcuda_path" in text)


def libcuda_problem(
    search: Search, environ: Mapping[str, str], cache: Mapping[str, str], linker_dirs: tuple[str, ...]
) -> str | None:
    """Return why triton cannot link against the driver's library, None where it can."""
    named = environ.get("TRITON_LIBCUDA_PATH") if search.by_variable else None
    if named:
        folders = [named]
    else:
        folders = [os.path.dirname(path) for name, path in cache.items() if search.listed in f"{name} => {path}"]  # noqa: PTH120
        path = environ.get("LD_LIBRARY_PATH", "") if search.by_variable else ""
        if path and not folders:
            folders = [folder for folder in path.split(":") if _exists(folder, search.checked)]
        if not any(_exists(folder, search.checked) for folder in folders):
            places = "ldconfig's cache or LD_LIBRARY_PATH" if search.by_variable else "ldconfig's cache"
            where = f"; ldconfig's cache has it in {', '.join(folders)}" if folders else ""
            return f"triton finds no `{search.checked}` by {places}{where}"
    if not any(_exists(folder, search.linked) for folder in (*folders, *linker_dirs)):
        return f"triton links against `{search.linked}`, and {', '.join(folders)} has none"
    return None


def _exists(folder: str, name: str) -> bool:
    return os.path.exists(f"{folder}/{name}")  # noqa: PTH110


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield which ptxas the variables name, and why triton finds no driver library; nothing without triton."""
    if target.kind != TargetKind.INTERPRETER or target.system not in (None, "Linux"):
        return
    folder = next((f"{site}/triton" for site in target.site_dirs if (site / "triton/__init__.py").is_file()), None)
    if folder is None:
        return
    for variable, key in _OVERRIDES.items():
        if value := target.environ.get(variable):
            yield from _override(variable, key, value)
    source = next((path for name in _SOURCES if os.path.isfile(path := f"{folder}/{name}")), None)  # noqa: PTH113
    search = read_search(_text(source)) if source else None
    if search is not None:
        machine = target.machine or "x86_64"
        extra = tuple(part for part in target.environ.get("LIBRARY_PATH", "").split(":") if part)
        linker_dirs = (*extra, *(place.format(machine=machine) for place in _LINKER_DIRS))
        problem = libcuda_problem(search, target.environ, loader_cache(containing="libcuda.so"), linker_dirs)
        yield fact("triton.libcuda_problem", problem or ABSENT, f"the search of {source}")


def _override(variable: str, key: str, value: str) -> Iterator[Fact]:
    problem = None
    if not os.path.isfile(value):  # noqa: PTH113
        problem = f"{variable} names `{value}`, which is no file"
    elif not os.access(value, os.X_OK):
        problem = f"{variable} names `{value}`, which cannot be executed"
    if problem:
        yield fact("triton.ptxas_problem", problem, f"environment variable {variable}")
        return
    release = tool_release(value)
    yield fact(f"triton.{key}", release, f"text in {value}", problem=None if release else "no CUDA release in the file")


def tool_release(path: str) -> str | None:
    """Return the CUDA release that a compiler tool carries in its text, without running it."""
    try:
        with open_regular(path) as stream:
            found = re.search(_RELEASE, stream.read(_MAX_TOOL))
    except OSError:
        return None
    return found[1].decode() if found else None


def _text(path: str) -> str:
    try:
        with open_regular(path) as stream:
            return stream.read(_MAX_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""
