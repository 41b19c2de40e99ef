"""What the build of a source archive needs; the archive is read, and nothing in it is unpacked or run."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from doctor.errors import DoctorError, reason_of
from doctor.packages.source_build import SourceBuild

from .project import read_build
from .scenario import Read

_MOST_TEXT = 1 << 21


def read_archive(path: Path) -> SourceBuild:
    """Return what the build of an sdist needs; DoctorError where it cannot be read."""
    try:
        found = read_build(reader_of(path))
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError) as problem:
        reason = reason_of(problem) if isinstance(problem, OSError) else str(problem)
        raise DoctorError(f"cannot read archive `{path}`: {reason}") from None
    return found or SourceBuild()


def reader_of(path: Path) -> Read:
    """Return a function from a path below the archive's one folder to the text of that file."""
    texts = _zip_texts(path) if path.suffix == ".zip" else _tar_texts(path)
    return lambda name: texts[name]() if name in texts else None


def _zip_texts(path: Path) -> dict[str, Callable[[], str]]:
    archive = zipfile.ZipFile(path)
    return {
        name.partition("/")[2]: lambda name=name: archive.read(name)[:_MOST_TEXT].decode("utf-8", "replace")  # type: ignore[misc]
        for name in archive.namelist()
        if _is_wanted(name)
    }


def _tar_texts(path: Path) -> dict[str, Callable[[], str]]:
    """Return the scripts of an archive, read in one pass: a compressed archive cannot be read out of order."""
    texts: dict[str, Callable[[], str]] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if not member.isfile() or not _is_wanted(member.name) or member.size > _MOST_TEXT:
                continue
            stream = archive.extractfile(member)
            text = "" if stream is None else stream.read(_MOST_TEXT).decode("utf-8", "replace")
            texts[member.name.partition("/")[2]] = lambda text=text: text  # type: ignore[misc]
    return texts


def _is_wanted(name: str) -> bool:
    return name.endswith((".py", "/pyproject.toml", "/setup.cfg", "/CMakeLists.txt")) and name.count("/") <= 5
