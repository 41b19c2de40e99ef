"""The cuDNN that TransformerEngine loads: its own search differs from torch's.

The order changed twice (transformer_engine/common/__init__.py): up to 2.3 the wheel came first, from 2.4 the folders
that variables name, and from 2.11 the loader's path comes before the wheel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from doctor.facts.vocabulary import fact, parse_version
from doctor.model import Fact
from doctor.sources.watch import Watch
from doctor.util.deep_search import SearchTooLarge, deep_search

from .cudnn import executable, version_of
from .distributions import installed_version
from .library_search import loader_cache, resolve
from .target import Target, TargetKind

PROMISES = ("cudnn.te_version", "cudnn.te_path")

OLDEST = (1, 9)  # before it, TransformerEngine left the search to the loader
_LIBRARY = "libcudnn.so"
DEFAULT_CUDA = "/usr/local/cuda"


class _Unknown(Exception):
    """The search cannot be predicted; the text gives the reason."""


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield cudnn.te_path and cudnn.te_version where TransformerEngine is installed."""
    version = installed_version(target, "transformer-engine")
    if version is None:
        return
    try:
        path, how = _search(target, parse_version(version).release[:2])
    except _Unknown as problem:
        for key in PROMISES:
            yield Fact(key, None, f"search of TransformerEngine {version}", problem=str(problem))
        return
    number, source = version_of(path)
    yield fact("cudnn.te_path", path, how)
    yield fact("cudnn.te_version", number, f"{source}; {how}", problem=None if number else source)


def _search(target: Target, release: tuple[int, ...]) -> tuple[str, str]:
    if release < OLDEST:
        raise _Unknown("TransformerEngine before 1.9 leaves the search to the loader")
    steps: tuple[Callable[[Target, tuple[int, ...]], tuple[str, str] | None], ...]
    if release < (2, 4):
        steps = (_wheel, _homes, _loader)
    elif release < (2, 11):
        steps = (_homes, _wheel, _loader)
    else:
        steps = (_homes, _loader, _wheel)
    for step in steps:
        found = step(target, release)
        if found is not None:
            return found
    raise _Unknown(
        "TransformerEngine finds no cuDNN: not in a folder that a variable names, not by the loader, not in a wheel"
    )


def _wheel(target: Target, release: tuple[int, ...]) -> tuple[str, str] | None:
    for directory in target.site_dirs:
        found = sorted((directory / "nvidia/cudnn/lib").glob(f"{_LIBRARY}.*[0-9]"))
        if found:
            return str(found[0]), "TransformerEngine's search: the nvidia-cudnn wheel"
    return None


def _homes(target: Target, release: tuple[int, ...]) -> tuple[str, str] | None:
    """Search the folders that variables name for any libcudnn.so*; the last by name wins."""
    for variable, folder in _home_folders(target, release):
        if target.kind == TargetKind.SITE_PACKAGES:
            raise _Unknown("TransformerEngine searches folders of the machine it runs on, which are unknown here")
        found = _deep(folder)
        if found:
            best = sorted(found, key=os.path.basename, reverse=True)[0]
            return best, f"TransformerEngine's search: {variable}"
    return None


def _home_folders(target: Target, release: tuple[int, ...]) -> list[tuple[str, str]]:
    fallback = [("the default CUDA folder", DEFAULT_CUDA)] if release >= (1, 13) else []
    groups = [["CUDNN_HOME", "CUDNN_PATH"], ["CUDA_HOME", "CUDA_PATH"]]
    if release >= (2, 11):  # each variable in turn
        named = [(name, target.environ[name]) for group in groups for name in group if target.environ.get(name)]
        return named + fallback
    folders = []
    for group in groups:  # the first of each pair that is set, and no other
        folders += [(name, target.environ[name]) for name in group if target.environ.get(name)][:1]
    cuda_named = any(target.environ.get(name) for name in groups[1])
    return folders if cuda_named else folders + fallback


def _deep(folder: str) -> list[str]:
    """Return every libcudnn.so* below a folder."""
    try:
        return deep_search(folder, _LIBRARY)
    except SearchTooLarge as problem:
        raise _Unknown(str(problem)) from None


def _loader(target: Target, release: tuple[int, ...]) -> tuple[str, str] | None:
    if target.kind == TargetKind.SITE_PACKAGES:
        raise _Unknown("TransformerEngine uses the loader of the machine it runs on, which is unknown here")
    cache = loader_cache()
    if (2, 6) <= release < (2, 11) and _LIBRARY in cache and os.path.exists(cache[_LIBRARY]):  # noqa: PTH110
        return cache[_LIBRARY], "TransformerEngine's search: ldconfig's cache"
    path = resolve(_LIBRARY, None, executable(target), cache, target.environ)
    return (path, "TransformerEngine's search: the loader's path") if path else None
