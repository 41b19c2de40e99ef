"""Facts of wheels that requirement files name and that are files here: what their compiled files fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from doctor.errors import DoctorError
from doctor.facts.vocabulary import fact, parse_version
from doctor.model import Fact
from doctor.packages.records import PackageRecords
from doctor.util.reading import TRUST_HINT, contained, is_trusted

from .base import DeclaredRequirement

_MOST = 16  # wheels that are read
_OF_TORCH = ("torch-", "triton-", "nvidia_", "nvidia-")  # beginnings of wheels that fit no torch but are of it
_NAMED = re.compile(r"[\w.+%!-]{1,200}\.whl\b")
Wheel = tuple[Path, str]  # the file, and the line that names it


def named_file(address: str, folder: Path) -> Path | None:
    """Return the wheel that an address names on this machine, None for another address or a missing file."""
    bare = unquote(address.strip().partition("#")[0])
    if bare.startswith("file:"):
        bare = bare.removeprefix("file:").removeprefix("//").removeprefix("localhost")
    elif "://" in bare or bare.startswith("git+"):
        return None
    path = folder / bare
    try:
        return path if path.suffix == ".whl" and path.is_file() else None
    except (OSError, ValueError):
        return None


def wheel_names(entries: Iterable[DeclaredRequirement]) -> list[str]:
    """Return the file names of the wheels that lines install by address."""
    found = (_NAMED.search(entry.raw) for entry in entries if entry.raw and ".whl" in entry.raw)
    return [unquote(match[0]) for match in found if match is not None]


def found_in(folders: Iterable[Path], name: str, version: str) -> Path | None:
    """Return the wheel of a release in the folders of `--find-links`, the first by its name."""
    for folder in folders:
        try:
            names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".whl"))
        except OSError:
            continue
        for entry in names:
            try:
                own, release, _, _ = parse_wheel_filename(entry)
            except InvalidWheelFilename:
                continue
            if own == canonicalize_name(name) and release == parse_version(version):
                return folder / entry
    return None


def wheel_facts(wheels: Iterable[Wheel], top: Path, records: PackageRecords) -> Iterator[Fact | str]:
    """Yield the facts of wheels inside a project, and a note for each that is not read."""
    read_wheel = import_module("doctor.sources.binaries.wheel_file").read_wheel  # door: binaries
    for path, place in [item for item in wheels if not item[0].name.startswith(_OF_TORCH)][:_MOST]:
        if not (is_trusted() or contained(path, top)):
            yield f"{place}: `{path.name}` is outside the project and was not read ({TRUST_HINT})"
            continue
        try:
            found = read_wheel(path, records)
        except DoctorError as problem:
            yield f"{place}: {problem.message}"
            continue
        if found.fitting_torch is not None:
            yield fact(
                f"{found.name}.fitting_torch", found.fitting_torch or ("none",), f"{path.name}, named in {place}"
            )
        if found.gpu_code:
            yield fact(f"{found.name}.gpu_code", found.gpu_code, f"{path.name}, named in {place}")
