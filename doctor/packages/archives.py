"""Fetch the wheel or the source archive of one release; nothing in it is built or run.

pip downloads wheels. A source archive is fetched here, from where pip found it: `pip download` would run its build
backend to learn its metadata.
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from doctor.errors import DoctorError

TIMEOUT = 600.0
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64")
ARCHIVE_LIMIT = 2**30
#: How pip says, at its highest verbosity, that it passes over a source archive.
_SKIPPED = re.compile(r"Skipping link: No sources permitted[^:\n]*: ((?:https?|file)://[^\s#]+)")
_VERSIONS = re.compile(r"^Available versions: (.+)$", re.MULTILINE)
_OTHER_MACHINES = [
    [item for platform in PLATFORMS for item in ("--platform", platform)] + ["--python-version", minor]
    for minor in ("3.12", "3.10", "3.8")
]


class _Attempt(NamedTuple):
    """The outcome of one way to get a file; `error` is empty after success."""

    file: Path | None = None
    error: str = ""
    log: str = ""


def fetch_archive(name: str, version: str, into: Path, python: str = sys.executable) -> Path:
    """Download the wheel of a release into a folder, else its source archive, and return the file.

    Raises DoctorError where the registry has neither.
    """
    first = attempt = _wheel(name, version, into, python, [[]])
    if attempt.file is None and (address := archive_address(attempt.log, name, version)):
        first = attempt = _source_archive(address, into)
    if attempt.file is None:
        attempt = _wheel(name, version, into, python, _OTHER_MACHINES)
    if attempt.file is None:
        raise DoctorError(f"pip found no sources of `{name}=={version}`", first.error)
    return attempt.file


def published_releases(name: str, python: str = sys.executable) -> tuple[str, ...]:
    """Return every release of a package that the registry lists, oldest first; DoctorError where it lists none."""
    command = [python, "-m", "pip", "index", "versions", "--pre", "--ignore-requires-python", "--no-input", name]
    ended = _pip(command, Path.cwd())
    found = _VERSIONS.search(ended.log)
    if ended.error or found is None:
        raise DoctorError(f"the registry lists no releases of `{name}`", ended.error or None)
    return tuple(sorted(filter(_is_version, found[1].split(", ")), key=Version))


def _is_version(text: str) -> bool:
    """Whether a release has a valid number: old registries listed file names of installers, too."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _wheel(name: str, version: str, into: Path, python: str, options: Sequence[Sequence[str]]) -> _Attempt:
    """Run `pip download` for wheels only: pip never runs the build backend of a source archive for these."""
    wheels = into / "wheels"
    attempt = _Attempt(error="no wheel")
    for extra in options:
        command = [python, "-m", "pip", "download", "-vvv", "--no-deps", "--no-input", "--only-binary", ":all:"]
        attempt = _pip([*command, *extra, "-d", str(wheels), f"{name}=={version}"], into)
        found = [path for path in sorted(wheels.glob("*.whl")) if _is_wheel_of(path.name, name)]
        if found:
            return _Attempt(found[0])
    return attempt


def _is_wheel_of(file: str, name: str) -> bool:
    """Return whether a wheel belongs to a package: the folder may hold those of others."""
    return canonicalize_name(file.partition("-")[0]) == canonicalize_name(name)


def _pip(command: Sequence[str], work: Path) -> _Attempt:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        ended = subprocess.run(
            [*command, "--disable-pip-version-check"], cwd=work, env=environment, capture_output=True, text=True,
            errors="replace", timeout=TIMEOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _Attempt(error=f"pip took longer than {TIMEOUT:.0f} s")
    except OSError as error:
        return _Attempt(error=f"pip did not start: {error}")
    if ended.returncode == 0:
        return _Attempt(log=ended.stdout)
    lines = [line.strip() for line in ended.stderr.splitlines() if line.startswith("ERROR:")]
    return _Attempt(None, lines[-1] if lines else f"pip ended with {ended.returncode}", ended.stdout + ended.stderr)


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


def _source_archive(address: str, into: Path) -> _Attempt:
    if "****" in address:
        why = "the only file is a source archive, and its index needs credentials that pip does not show"
        return _Attempt(error=why)
    archive = into / unquote(urlsplit(address).path.rpartition("/")[2])
    try:
        answers = urllib.request.urlopen(address, timeout=TIMEOUT, context=_certificates())  # noqa: S310 - _SKIPPED
        with answers as answer, archive.open("wb") as file:
            while chunk := answer.read(2**20):
                file.write(chunk)
                if file.tell() > ARCHIVE_LIMIT:
                    return _Attempt(error=f"the source archive is larger than {ARCHIVE_LIMIT // 2**20} MiB")
    except (OSError, ValueError) as error:
        return _Attempt(error=f"the source archive cannot be read: {error}")
    return _Attempt(archive)


def _certificates() -> ssl.SSLContext:
    """Return the certificates that pip is configured with, else those of the machine."""
    return ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
