"""Metadata folders of installed distributions, read by their names: few files are opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from doctor.errors import reason_of
from doctor.facts.vocabulary import parse_version
from doctor.util.redact import shortened

_HEADER = re.compile(r"^(Name|Version):[ \t]*(.*?)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_EGG = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py\d[\d.]*)?(-[^-]+)?\.(egg-info|egg)")


class Distribution(NamedTuple):
    """One metadata folder or file; `version is None` means broken, and `problem` says how."""

    name: str  # PEP 503
    version: str | None
    path: str  # the metadata folder or file
    problem: str | None = None

    @property
    def folder(self) -> str:
        """The folder on the import path; of an `.egg`, the egg itself."""
        return self.path if self.path.endswith(".egg") else os.path.dirname(self.path)  # noqa: PTH120


def scan(
    site_dirs: Iterable[Path],
    verify: frozenset[str] = frozenset(),
    unreadable: list[str] | None = None,
) -> Iterator[Distribution]:
    """Yield every distribution, in the order of the import path; the metadata of those in `verify` is opened."""
    for directory in site_dirs:
        base = str(directory)
        try:
            names = sorted(os.listdir(base))  # noqa: PTH208 - a Path per entry would triple the time
        except OSError as problem:
            if unreadable is not None and not isinstance(problem, (FileNotFoundError, NotADirectoryError)):
                unreadable.append(f"{base} ({reason_of(problem)})")
            continue
        if base.endswith(".egg"):
            yield from _egg(base, base, "EGG-INFO/PKG-INFO")
        for entry in names:
            if entry.endswith(".dist-info"):
                yield _dist_info(f"{base}/{entry}", entry[:-10], verify)
            elif entry.endswith(".egg-info"):
                yield from _egg(f"{base}/{entry}", entry, "PKG-INFO")


def _dist_info(path: str, stem: str, verify: frozenset[str]) -> Distribution:
    name, _, version = stem.partition("-")
    if stem.startswith("~"):
        return Distribution("", None, path, "left behind by an interrupted installation")
    metadata = f"{path}/METADATA"
    try:
        size = os.stat(metadata).st_size  # noqa: PTH116
    except OSError as problem:
        reason = "METADATA is missing" if isinstance(problem, FileNotFoundError) else _reason("METADATA", problem)
        return _broken(name, path, reason)
    if size == 0:
        return _broken(name, path, "METADATA is empty")
    plain = canonicalize_name(name)
    # The folder name has both. It is not trusted where rules read the package, or where it is malformed.
    if plain not in verify and _NAME.fullmatch(name) and _is_version(version):
        return Distribution(plain, version, path)
    return _from_file(path, metadata, name)


def _egg(path: str, entry: str, inner: str) -> Iterator[Distribution]:
    """Yield an `.egg-info` folder or file, or an `.egg`, as system packages and source builds leave them."""
    metadata = f"{path}/{inner}" if os.path.isdir(path) else path  # noqa: PTH112
    match = _EGG.fullmatch(os.path.basename(entry))  # noqa: PTH119
    guess = match["name"] if match else os.path.basename(entry).rpartition(".")[0]  # noqa: PTH119
    yield _from_file(path, metadata, guess, match["version"] if match else None)


def _from_file(path: str, metadata: str, guess: str, version: str | None = None) -> Distribution:
    try:
        headers = _headers(metadata)
    except OSError as problem:
        if version is not None and isinstance(problem, FileNotFoundError) and _is_version(version):
            return Distribution(canonicalize_name(guess), version, path)
        return _broken(guess, path, _reason(metadata.rpartition("/")[2], problem))
    except UnicodeDecodeError:
        return _broken(guess, path, f"{metadata.rpartition('/')[2]} is not text")
    name, found = headers.get("name", ""), headers.get("version") or version
    if not name or not _NAME.fullmatch(name):
        return _broken(guess, path, f"{metadata.rpartition('/')[2]} names no package")
    if not found:
        return _broken(name, path, f"{metadata.rpartition('/')[2]} gives no version")
    if not _is_version(found):
        return _broken(name, path, f"`{shortened(found, 60)}` is not a version")
    return Distribution(canonicalize_name(name), found, path)


def _broken(name: str, path: str, problem: str) -> Distribution:
    return Distribution(canonicalize_name(name) if _NAME.fullmatch(name) else "", None, path, problem)


def _reason(what: str, problem: OSError) -> str:
    return f"cannot read {what}: {reason_of(problem)}"


def _is_version(text: str) -> bool:
    try:
        parse_version(text)
    except InvalidVersion:
        return False
    return "_" not in text  # an escaped `-`: only the file has the real one


def _headers(path: str) -> dict[str, str]:
    """Return name and version from the head of a metadata file."""
    with open(path, "rb") as stream:  # noqa: PTH123
        head = stream.read(8192).decode("utf-8", "strict" if os.stat(path).st_size <= 8192 else "ignore")  # noqa: PTH116
    found: dict[str, str] = {}
    for match in _HEADER.finditer(head.replace("\r\n", "\n").partition("\n\n")[0]):
        found.setdefault(match[1].lower(), match[2])
    return found
