"""Fetch the sources of one release without building or installing anything.

pip downloads wheels. A source archive is fetched here, from where pip found it: `pip download` would run its build
backend to learn its metadata.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from doctor.errors import DoctorError
from doctor.util.cache_file import cache_folder

TIMEOUT = 600.0
#: Text files that the analyzer reads. Compiled modules are kept as empty files, so that their names are known.
READ = (".py", ".pyi")
NAMED = (".so", ".pyd", ".pyx")
METADATA = ("METADATA", "PKG-INFO", "top_level.txt", "RECORD", "entry_points.txt")
#: Folders of a source archive that hold no installed module.
NOT_INSTALLED = {"test", "tests", "docs", "doc", "examples", "benchmarks", "scripts", "tools", "build", "dist", "csrc"}
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64")
MEMBER_LIMIT = 60 * 2**20
TOTAL_LIMIT = 2**28  # bytes of the files that are unpacked from one archive
ARCHIVE_LIMIT = 2**30
#: How pip says, at its highest verbosity, that it passes over a source archive.
_SKIPPED = re.compile(r"Skipping link: No sources permitted[^:\n]*: ((?:https?|file)://[^\s#]+)")


class _Attempt(NamedTuple):
    """The outcome of one way to get sources; `error` is empty after success."""

    error: str = ""
    log: str = ""


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
        attempt = _from_wheel(name, version, work, made, python, [[]])
        if attempt.error and (address := archive_address(attempt.log, name, version)):
            attempt = _from_archive(address, name, version, work, made)
        if attempt.error:
            attempt = min(attempt, _from_wheel(name, version, work, made, python, _OTHER_MACHINES), key=_failed)
        if attempt.error:
            raise DoctorError(f"pip found no sources of `{name}=={version}`", attempt.error)
        (made / ".complete").write_text("")
        shutil.rmtree(place, ignore_errors=True)
        made.rename(place)
    return place


def _failed(attempt: _Attempt) -> bool:
    return bool(attempt.error)


_OTHER_MACHINES = [
    [item for platform in PLATFORMS for item in ("--platform", platform)] + ["--python-version", minor]
    for minor in ("3.12", "3.10", "3.8")
]


def _from_wheel(name: str, version: str, work: Path, made: Path, python: str, options: list[list[str]]) -> _Attempt:
    wheels = work / "wheels"
    attempt = _Attempt("no wheel")
    for extra in options:
        attempt = _pip(python, [*extra, "-d", str(wheels), f"{name}=={version}"], work)
        found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
        if found:
            try:
                unpack_wheel(found[0], made)
            except (OSError, ValueError, zipfile.BadZipFile) as error:
                return _Attempt(f"the wheel cannot be read: {error}")
            return _Attempt()
    return attempt


def _pip(python: str, arguments: list[str], work: Path) -> _Attempt:
    """Run `pip download` for wheels only: pip never runs the build backend of a source archive for these."""
    command = [python, "-m", "pip", "download", "-vvv", "--no-deps", "--no-input", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        ended = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, errors="replace", timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _Attempt(f"pip took longer than {TIMEOUT:.0f} s")
    except OSError as error:
        return _Attempt(f"pip did not start: {error}")
    if ended.returncode == 0:
        return _Attempt()
    lines = [line.strip() for line in ended.stderr.splitlines() if line.startswith("ERROR:")]
    return _Attempt(lines[-1] if lines else f"pip ended with {ended.returncode}", ended.stdout + ended.stderr)


def archive_address(log: str, name: str, version: str) -> str:
    """Return where the source archive of a release is, from what `pip download -vvv` says of the links that it skips.

    Empty where pip names none.
    """
    for address in _SKIPPED.findall(log):
        file = unquote(urlsplit(address).path.rpartition("/")[2])
        try:
            found, release = parse_sdist_filename(file)
        except (InvalidSdistFilename, InvalidVersion):
            continue
        if found == canonicalize_name(name) and release == Version(version):
            return str(address)
    return ""


def _from_archive(address: str, name: str, version: str, work: Path, made: Path) -> _Attempt:
    """Fetch a source archive and unpack it; nothing in it is run."""
    if "****" in address:
        return _Attempt("the only file is a source archive, and its index needs credentials that pip does not show")
    archive = work / unquote(urlsplit(address).path.rpartition("/")[2])
    try:
        answers = urllib.request.urlopen(address, timeout=TIMEOUT, context=_certificates())  # noqa: S310 - _SKIPPED
        with answers as answer, archive.open("wb") as file:
            while chunk := answer.read(2**20):
                file.write(chunk)
                if file.tell() > ARCHIVE_LIMIT:
                    return _Attempt(f"the source archive is larger than {ARCHIVE_LIMIT // 2**20} MiB")
        unpack = unpack_wheel if archive.suffix == ".zip" else _unpack_tar
        unpack(archive, work / "archive")
    except (OSError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        return _Attempt(f"the source archive cannot be read: {error}")
    top = next(iter(sorted((work / "archive").glob("*/"))), None)
    if top is None:
        return _Attempt("the source archive is empty")
    layout_sources(top, made, name, version)
    return _Attempt()


def _certificates() -> ssl.SSLContext:
    """Return the certificates that pip is configured with, else those of the machine."""
    return ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)


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
