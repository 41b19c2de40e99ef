"""The search order of the dynamic loader for a library, by ld.so(8)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Literal

from doctor.util.ld_cache import ld_cache_entries, read_ld_cache, text_at

from .elf import Dynamic

DEFAULT_DIRS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


def library_path(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the folders of LD_LIBRARY_PATH, without empty ones (the current folder)."""
    return tuple(part for part in environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":") if part)


def resolve(
    name: str,
    own: Dynamic | None,
    executable: Dynamic | None,
    cache: dict[str, str],
    environ: Mapping[str, str] = os.environ,
) -> str | None:
    """Return the file that the loader takes for `name`, needed by a library with the section `own`, or None."""
    for preloaded in environ.get("LD_PRELOAD", "").replace(":", " ").split():
        if os.path.basename(preloaded) == name and os.path.isfile(preloaded):  # noqa: PTH113, PTH119
            return preloaded
    runpath = own.runpath if own else ()
    if not runpath:  # a DT_RUNPATH disables every DT_RPATH, also that of the executable
        inherited = executable.rpath if executable and not executable.runpath else ()
        if (found := _first((*(own.rpath if own else ()), *inherited), name)) is not None:
            return found
    if (found := _first((*library_path(environ), *runpath), name)) is not None:
        return found
    cached = cache.get(name)
    if cached is not None and os.path.exists(cached):  # noqa: PTH110
        return cached
    return _first(DEFAULT_DIRS, name)


def _first(folders: Iterable[str], name: str) -> str | None:
    for folder in folders:
        path = f"{folder.rstrip('/')}/{name}"
        if os.path.isfile(path):  # noqa: PTH113
            return path
    return None


def loader_cache(path: str = "/etc/ld.so.cache", containing: str = "libcudnn") -> dict[str, str]:
    """Return library name -> file from ldconfig's cache, without running ldconfig; empty without a cache."""
    body, wanted = read_ld_cache(path), containing.encode()
    found: dict[str, str] = {}
    if wanted not in body:
        return found
    order: Literal["little", "big"] = "little" if body[28:29] in (b"\0", b"\2", b"\1") else "big"  # 0: unset
    for entry in ld_cache_entries(body, order):
        key = int.from_bytes(entry[4:8], order)
        if body.startswith(wanted, key):
            found.setdefault(text_at(body, key), text_at(body, int.from_bytes(entry[8:12], order)))
    return found
