"""The compiled files of a wheel that is a file on this machine: which torch builds on record they fit, their GPU code.

The files are unpacked into a temporary folder, read, and removed. Nothing is installed or executed.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from doctor._version import __version__
from doctor.errors import DoctorError, reason_of
from doctor.packages.records import UNKNOWN_PACKAGE, Opens, PackageRecord, PackageRecords
from doctor.packages.torch_symbols import load_torch_symbols
from doctor.util.cache_file import cache_folder, read_cache, write_cache
from doctor.util.redact import shortened

from .files import stamp
from .packages import archs_for_pick, is_alternative, opening_of
from .survey import Installed, archs_of, fitting_builds, labelled

MAX_FILES, MAX_BYTES = 256, 4 << 30  # of the libraries that are unpacked
_CHUNK = 1 << 20
_LIBRARY = re.compile(r"\.so(\.[\d.]+)?$")


@dataclass(frozen=True)
class WheelFit:
    """What a wheel's files say."""

    name: str
    version: str
    fitting_torch: tuple[str, ...] | None  # builds on record, as 2.8.0+cu128; None where no file needs torch
    gpu_code: tuple[str, ...]


def read_wheel(path: Path, records: PackageRecords) -> WheelFit:
    """Return what the files of a wheel say, remembered by path, size and time; DoctorError where it is no wheel."""
    name, version = name_of(path)
    folder = cache_folder()
    record = records.get(name, UNKNOWN_PACKAGE)
    key = repr((stamp(str(path)), __version__, len(load_torch_symbols().builds), record.opens))
    digest = hashlib.sha256(str(path.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    cache = folder / f"wheel-{digest}.json" if folder else None
    kept = read_cache(cache, key) if cache else None
    if kept is not None:
        fits, archs = json.loads(kept[1])
        return WheelFit(name, version, None if fits is None else tuple(fits), tuple(archs))
    with unpacked(path, record, opened_only=True) as package:
        found = _read(package)
    if cache is not None:
        write_cache(cache, key, json.dumps([found.fitting_torch, found.gpu_code]).encode())
    return found


def name_of(path: Path) -> tuple[str, str]:
    """Return name and version by the file name of a wheel; DoctorError for another file name."""
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        raise DoctorError(f"`{path.name}` is not the name of a wheel") from None
    return str(name), str(version)


@contextmanager
def unpacked(path: Path, record: PackageRecord, *, opened_only: bool = False) -> Iterator[Installed]:
    """Unpack the shared libraries of a wheel for the time of the block; DoctorError where that is not possible.

    opened_only: those that the package opens at import, where that is known.
    """
    name, version = name_of(path)
    with tempfile.TemporaryDirectory(prefix="attn-doctor-") as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if _LIBRARY.search(name)]
                wanted = _opened(record.opens, names) if opened_only else names
                files = tuple(_unpack(archive, wanted[:MAX_FILES], Path(folder)))
        except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError) as problem:
            reason = reason_of(problem) if isinstance(problem, OSError) else str(problem)
            raise DoctorError(f"cannot read wheel `{path}`: {reason}") from None
        yield Installed(name, version, folder, files, record)


def _opened(opens: Opens | None, names: list[str]) -> list[str]:
    """Return what a package opens; all that are not alternatives where that is not known."""
    opening = opening_of(opens, None, {})
    if opening is None:
        return [name for name in names if not is_alternative(opens, name)]
    return [name for name in names if re.fullmatch(opening.files, name)]


def _unpack(archive: zipfile.ZipFile, names: list[str], folder: Path) -> Iterator[str]:
    left = MAX_BYTES
    for member in names:
        parts = Path(member).parts
        if member.startswith("/") or ".." in parts:
            raise ValueError(f"`{shortened(member, 80)}` leads out of it")
        target = folder.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(member) as source, target.open("wb") as copy:
            while chunk := source.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise ValueError(f"its libraries have more than {MAX_BYTES >> 30} GB")
                copy.write(chunk)
        yield member


def _read(package: Installed) -> WheelFit:
    common: set[str] | None = None
    archs: dict[str, None] = {}
    for name in package.files:
        path = f"{package.base}/{name}"
        found = fitting_builds(path)
        if found is not None:
            common = set(found) if common is None else common & set(found)
        archs.update(dict.fromkeys(archs_for_pick(package.record.opens, name, archs_of(path))))
    fits = None
    if common is not None:
        fits = tuple(label for label in map(labelled, load_torch_symbols().builds) if label in common)
    return WheelFit(package.name, str(package.version), fits, tuple(archs))
