"""Copies of one module on the import path: which is imported, and whether an installed distribution owns it.

A build in a checkout that PYTHONPATH names, or in the user's own site-packages, comes before the environment's. Nothing
is imported: Python's own order decides (a package, then an extension module, then a source file, folder by folder).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from doctor.facts.vocabulary import fact
from doctor.model import Fact
from doctor.packages.records import PackageRecords
from doctor.sources.watch import Watch
from doctor.util.redact import tilde

from .metadata import Distribution
from .target import Target

PROMISES: tuple[str, ...] = ()

_EXTENSION = r"\.(?:cpython-(\d{2,3})t?-[\w-]+\.|abi3\.)?so$"
_MAX_FILES, _MAX_DEPTH = 256, 4


class Copy(NamedTuple):
    """One copy of a module; `owner` is the distribution whose metadata is in the same folder."""

    module: str
    folder: str
    file: str  # its name in the folder, as `flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so`
    owner: Distribution | None

    def words(self) -> str:
        """Return the copy as a text for a report."""
        owned = f"{self.owner.name} {self.owner.version}" if self.owner else "no distribution owns it"
        return f"`{tilde(f'{self.folder}/{self.file}')}` ({owned})"


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield which modules are imported from a copy that no distribution owns, are split, or have hidden copies."""
    found = module_copies(target, watch.packages)
    stray: list[str] = []
    hidden: list[str] = []
    for module, copies in found.items():
        if len(copies) < 2:
            continue
        first, other = copies[0], copies[1]
        words = f"`{module}` is imported from {first.words()}, not from {other.words()}"
        (hidden if first.owner else stray).append(words)
    for key, texts in (("stray", stray), ("split", list(_split(found, watch.packages))), ("hidden", hidden)):
        if texts:
            yield fact(f"modules.{key}", tuple(texts), "the modules in the folders of the import path")


def _split(found: dict[str, list[Copy]], records: PackageRecords) -> Iterator[str]:
    """Yield packages whose Python code and compiled module come from two folders."""
    for record in records.values():
        first = [found[module][0] for module in record.modules if module in found]
        for other in first[1:]:
            if other.folder != first[0].folder and not (first[0].owner and other.owner):
                yield (
                    f"`{first[0].module}` is imported from {first[0].words()}, its compiled `{other.module}` from "
                    + (other.words())
                )


def module_copies(target: Target, records: PackageRecords) -> dict[str, list[Copy]]:
    """Return module -> its copies, the one that is imported first."""
    found: dict[str, list[Copy]] = {}
    distributions = _distributions(records)
    tag = "".join((target.version or "").split(".")[:2])
    seen: set[str] = set()
    for directory in target.site_dirs:
        folder = str(directory)
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        try:
            names = os.listdir(folder)  # noqa: PTH208
        except OSError:
            continue
        present: dict[str, list[str]] = {}
        for name in names:
            module = name.partition(".")[0]
            if module in distributions and _is_module(folder, name, module, tag):
                present.setdefault(module, []).append(name)
        owners = {one.name: one for one in target.distributions if one.folder == folder} if present else {}
        for module, files in present.items():
            chosen = min(files, key=_order)
            owner = next((owners[name] for name in distributions[module] if name in owners), None)
            found.setdefault(module, []).append(Copy(module, folder, chosen, owner))
    return found


def _distributions(records: PackageRecords) -> dict[str, tuple[str, ...]]:
    """Return module -> the distributions that install it at the top level; the first gives its name to the module."""
    return {module: (name, *record.modules_also_in) for name, record in records.items() for module in record.modules}


def _is_module(folder: str, name: str, module: str, tag: str) -> bool:
    if name == module:  # without this file it is a part of a namespace package, which comes after all others
        return os.path.isfile(f"{folder}/{name}/__init__.py")  # noqa: PTH113
    if name == f"{module}.py":
        return True
    match = re.fullmatch(_EXTENSION, name[len(module) :])
    return match is not None and (match[1] is None or not tag or match[1] == tag)


def _order(name: str) -> int:
    """Return Python's order within a folder: package, tagged extension, abi3, plain `.so`, source."""
    if "." not in name:
        return 0
    return 1 if ".cpython-" in name else 2 if ".abi3." in name else 3 if name.endswith(".so") else 4


def stray_files(target: Target, records: PackageRecords) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return distribution -> folder and compiled files below it, where a copy is imported that none owns there."""
    strays: dict[str, tuple[str, tuple[str, ...]]] = {}
    distributions = _distributions(records)
    for module, copies in module_copies(target, records).items():
        first = copies[0]
        if first.owner is not None:
            continue
        if first.file.endswith(".so"):
            files: tuple[str, ...] = (first.file,)
        elif "." not in first.file:
            files = tuple(_compiled_below(first.folder, first.file, _MAX_DEPTH))[:_MAX_FILES]
        else:
            files = ()
        name = distributions[module][0]
        before = strays.get(name, (first.folder, ()))
        if files and before[0] == first.folder:
            strays[name] = first.folder, (*before[1], *files)
    return strays


def _compiled_below(base: str, inner: str, depth: int) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(f"{base}/{inner}"), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(".so"):
            yield f"{inner}/{entry.name}"
        elif depth > 1 and entry.is_dir(follow_symlinks=False):
            yield from _compiled_below(base, f"{inner}/{entry.name}", depth - 1)
