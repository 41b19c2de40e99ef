"""Installed distributions by the names of their metadata folders: nothing is imported, few files are opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from doctor.errors import reason_of
from doctor.facts.vocabulary import fact, parse_version
from doctor.model import Fact
from doctor.sources.watch import Watch
from doctor.util.reading import regular_bytes
from doctor.util.redact import shortened

from .target import Target

PROMISES = ("distributions.complete", "distributions.broken", "distributions.duplicates")

MAX_METADATA = 1 << 20
_HEADER = re.compile(r"^(Name|Version):[ \t]*(.*?)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_EGG = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py\d[\d.]*)?(-[^-]+)?\.(egg-info|egg)")


@dataclass(frozen=True)
class Distribution:
    """One metadata folder or file; `version is None` means broken, and `problem` says how."""

    name: str  # PEP 503
    version: str | None
    path: str  # the metadata folder or file
    problem: str | None = None


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield `<name>.version` of every distribution, the broken and duplicate ones, and whether the list is complete."""
    broken: list[str] = []
    unreadable: list[str] = []
    by_name: dict[str, list[Distribution]] = {}
    for found in scan(target.site_dirs, frozenset(canonicalize_name(name) for name in watch.distributions), unreadable):
        if found.problem:
            broken.append(f"{found.path}: {found.problem}")
        if found.name:
            by_name.setdefault(found.name, []).append(found)
    duplicates: list[str] = []
    for name, copies in by_name.items():
        chosen = _first_on_path(copies)
        if len(copies) > 1:
            duplicates.append(f"{name}: " + ", ".join(f"{copy.version or 'broken'} ({copy.path})" for copy in copies))
        yield fact(f"{name}.version", chosen.version, chosen.path, problem=chosen.problem)
    where = ", ".join(str(path) for path in target.site_dirs)
    yield Fact("distributions.broken", tuple(broken), where)
    yield Fact("distributions.duplicates", tuple(duplicates), where)
    if unreadable:  # a distribution that was not found may still be there
        yield Fact("distributions.complete", None, where, problem="cannot read " + ", ".join(unreadable))
    elif by_name and "torch" not in by_name:  # an image layer, or half installed
        problem = "it has no torch, so it is only a part of the environment of the job"
        yield Fact("distributions.complete", None, where, problem=problem)
    else:
        yield Fact("distributions.complete", True, where)


def _first_on_path(copies: list[Distribution]) -> Distribution:
    """Return the copy that an import finds; its version is unknown where one folder holds two versions."""
    first = copies[0]
    folder = os.path.dirname(first.path)  # noqa: PTH120 - hundreds of these at every start
    same_folder = [copy for copy in copies if os.path.dirname(copy.path) == folder]  # noqa: PTH120
    versions = list(dict.fromkeys(copy.version for copy in same_folder if copy.version))
    if len(versions) > 1:
        return Distribution(
            first.name,
            None,
            folder,
            f"installed as {' and '.join(versions)} in one folder, so the files of both may be mixed",
        )
    return next((copy for copy in same_folder if copy.version), first)


def scan(
    site_dirs: Iterable[Path],
    verify: frozenset[str] = frozenset(),
    unreadable: list[str] | None = None,
    only: str | None = None,
) -> Iterator[Distribution]:
    """Yield every distribution, in the order of the import path; the metadata of those in `verify` is opened.

    With `only`, folders whose names clearly belong to another distribution are skipped.
    """
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
                if only is not None and _is_another(entry[:-10], only):
                    continue
                yield _dist_info(f"{base}/{entry}", entry[:-10], verify)
            elif entry.endswith(".egg-info"):
                yield from _egg(f"{base}/{entry}", entry, "PKG-INFO")


def _is_another(stem: str, wanted: str) -> bool:
    name, _, version = stem.partition("-")
    return canonicalize_name(name) != wanted and _NAME.fullmatch(name) is not None and _is_version(version)


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


def installed_version(target: Target, name: str) -> str | None:
    """Return the version of one distribution, None where it is missing or broken."""
    wanted = canonicalize_name(name)
    return next((found.version for found in scan(target.site_dirs, only=wanted) if found.name == wanted), None)


def installed_requirements(target: Target) -> dict[str, list[str]]:
    """Return the requirements of every installed distribution by its metadata; opens all files, so call it late."""
    requirements: dict[str, list[str]] = {}
    for found in scan(target.site_dirs):
        if found.name and found.version and found.name not in requirements:
            requirements[found.name] = _requires(found.path)
    return requirements


def _requires(path: str) -> list[str]:
    for name in ("METADATA", "PKG-INFO", "EGG-INFO/PKG-INFO", ""):
        candidate = f"{path}/{name}" if name else path
        if os.path.isfile(candidate):  # noqa: PTH113
            try:
                with open(candidate, "rb") as stream:  # noqa: PTH123
                    text = stream.read(MAX_METADATA).decode("utf-8", "replace").replace("\r\n", "\n")
            except OSError:
                return []
            head = text.partition("\n\n")[0]
            declared = re.findall(r"^Requires-Dist:[ \t]*(.+?)[ \t]*$", head, re.MULTILINE | re.IGNORECASE)
            return declared or _requires_txt(path)
    return []


def _requires_txt(path: str) -> list[str]:
    """Read `requires.txt` of an egg, up to the first `[extra]` heading."""
    for name in ("requires.txt", "EGG-INFO/requires.txt"):
        candidate = Path(path) / name
        if candidate.is_file():
            try:
                text = regular_bytes(candidate, MAX_METADATA).decode("utf-8", "replace")
            except OSError:
                return []
            plain = re.split(r"^\[", text, maxsplit=1, flags=re.MULTILINE)[0]
            return [line.strip() for line in plain.splitlines() if line.strip()]
    return []
