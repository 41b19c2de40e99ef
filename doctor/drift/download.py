"""Unpack the Python sources of one release without building or installing anything."""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from doctor.errors import DoctorError
from doctor.packages.archives import fetch_archive
from doctor.util.cache_file import cache_folder

#: Text files that the analyzer reads. Compiled modules are kept as empty files, so that their names are known.
READ = (".py", ".pyi")
NAMED = (".so", ".pyd", ".pyx")
METADATA = ("METADATA", "PKG-INFO", "top_level.txt", "RECORD", "entry_points.txt")
#: Folders of a source archive that hold no installed module.
NOT_INSTALLED = {"test", "tests", "docs", "doc", "examples", "benchmarks", "scripts", "tools", "build", "dist", "csrc"}
MEMBER_LIMIT = 60 * 2**20
TOTAL_LIMIT = 2**28  # bytes of the files that are unpacked from one archive


def parse_pin(text: str) -> tuple[str, str]:
    """Return name and version of `name==version`; raise DoctorError for anything else."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise DoctorError(f"`{text}` is no requirement", "write `flash-attn==2.8.3`") from error
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator not in ("==", "===") or "*" in specifiers[0].version:
        raise DoctorError(f"`{text}` names no single release", "write `flash-attn==2.8.3`")
    return canonicalize_name(requirement.name), specifiers[0].version


def fetch_all(pins: Sequence[tuple[str, str]], on_step: Callable[[str], None]) -> tuple[Path, ...]:
    """Return the folder of each release, kept in the cache folder of the user."""
    places = []
    for name, version in pins:
        on_step(f"fetching the sources of {name} {version}")
        places.append(fetch_release(name, version, _downloads()))
    return tuple(places)


def _downloads() -> Path:
    found = cache_folder("sources")
    if found is None:
        raise DoctorError("there is no folder for downloads", "set `XDG_CACHE_HOME`")
    return found


def fetch_release(name: str, version: str, into: Path, python: str = sys.executable) -> Path:
    """Unpack the Python sources of a release into `into`, laid out like site-packages, and return that folder.

    A wheel is preferred. From a source archive the top-level packages are taken. An existing folder is reused.
    Raises DoctorError where the registry has no such release.
    """
    place = into / f"{canonicalize_name(name)}-{version}"
    if (place / ".complete").is_file():
        return place
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into, prefix=".fetch-") as scratch:
        work = Path(scratch)
        made = work / "site"
        made.mkdir()
        archive = fetch_archive(name, version, work, python)
        try:
            _unpack(archive, name, version, work, made)
        except (OSError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
            raise DoctorError(f"the sources of `{name}=={version}` cannot be read", str(error)) from error
        (made / ".complete").write_text("")
        shutil.rmtree(place, ignore_errors=True)
        made.rename(place)
    return place


def _unpack(archive: Path, name: str, version: str, work: Path, made: Path) -> None:
    if archive.suffix == ".whl":
        unpack_wheel(archive, made)
        return
    unpack = unpack_wheel if archive.suffix == ".zip" else _unpack_tar
    unpack(archive, work / "archive")
    top = next(iter(sorted((work / "archive").glob("*/"))), None)
    if top is None:
        raise ValueError("the source archive is empty")
    layout_sources(top, made, name, version)


def _wanted(name: str) -> bool:
    return name.endswith(READ) or name.rpartition("/")[2] in METADATA


def unpack_wheel(archive: Path, into: Path) -> None:
    """Unpack Python files and metadata of a wheel; compiled modules become empty files."""
    root = into.resolve()
    root.mkdir(parents=True, exist_ok=True)
    left = TOTAL_LIMIT
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            target = (root / _below_data(member.filename)).resolve()
            if member.is_dir() or not target.is_relative_to(root):
                continue
            if _wanted(member.filename) and member.file_size <= MEMBER_LIMIT:
                left = _left_after(left, member.file_size)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(opened.read(member))
            elif member.filename.endswith(NAMED):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(b"")


def _left_after(left: int, size: int) -> int:
    """Return what may still be unpacked after a file; ValueError where that is less than nothing."""
    if size > left:
        raise ValueError(f"its files have more than {TOTAL_LIMIT >> 20} MiB")
    return left - size


def _below_data(name: str) -> str:
    """Map `x.data/purelib/pkg/a.py` to `pkg/a.py`, where an installer puts it."""
    parts = name.split("/")
    if len(parts) > 2 and parts[0].endswith(".data") and parts[1] in ("purelib", "platlib"):
        return "/".join(parts[2:])
    return name


def _unpack_tar(archive: Path, into: Path) -> None:
    root, left = into.resolve(), TOTAL_LIMIT
    with tarfile.open(archive) as opened:
        for member in opened:
            target = (root / member.name).resolve()
            if not member.isfile() or not target.is_relative_to(root) or member.size > MEMBER_LIMIT:
                continue
            stream = opened.extractfile(member) if _wanted(member.name) else None
            if stream is not None or member.name.endswith(NAMED):
                left = _left_after(left, member.size) if stream is not None else left
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(stream.read() if stream is not None else b"")


def layout_sources(unpacked: Path, made: Path, name: str, version: str) -> None:
    """Copy the importable packages of an unpacked source tree to `made`, with metadata that names the release."""
    base = (
        unpacked / "src" if (unpacked / "src").is_dir() and not (unpacked / "src" / "__init__.py").is_file() else None
    )
    for root in [base or unpacked] + ([unpacked] if base is not None and not any(base.glob("*/*.py")) else []):
        for path in sorted(root.iterdir()):
            if path.is_dir() and path.name not in NOT_INSTALLED and path.name.isidentifier():
                if any(path.glob("*.py")) or any(path.glob("*/__init__.py")):
                    _copy_python(path, made / path.name)
            elif (
                path.suffix == ".py" and path.stem not in ("setup", "conftest", "version") and path.stem.isidentifier()
            ):
                shutil.copyfile(path, made / path.name)
    information = made / f"{canonicalize_name(name).replace('-', '_')}-{version}.dist-info"
    information.mkdir(exist_ok=True)
    declared = unpacked / "PKG-INFO"
    if declared.is_file():
        shutil.copyfile(declared, information / "METADATA")
    else:
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _copy_python(folder: Path, into: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or not path.name.endswith(READ + NAMED):
            continue
        target = into / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes() if path.name.endswith(READ) else b"")
