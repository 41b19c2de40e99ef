"""The compiled rulebook: checked rule files as one JSON document, so that start-up parses no YAML.

The document is used only if its key equals the digest of everything that decides its content: path, size and
modification times of every rule file, and the code that checks rules. Tests inside rules stay in the YAML.
The cache is data, never code: it must be a regular file that belongs to this user and that others cannot write;
in any doubt it is rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

from doctor._version import __version__
from doctor.errors import DoctorError, reason_of
from doctor.facts import vocabulary
from doctor.util.cache_file import cache_folder, read_cache, write_cache
from doctor.util.resources import rules_dir

from . import schema
from .schema import read_file

FORMAT = 5  # of the cache file
_RACY = 50_000_000  # ns: a file written this shortly before may be written again within one tick of its clock

Body = tuple[str, str, str, dict[str, Any]]  # kind (library | rule), library name, path, content
Stamp = tuple[str, int, int, int]  # path, mtime and ctime in ns, size in bytes


def rule_files(folders: tuple[Path, ...]) -> list[Path]:
    """Return every `.yaml` below the folders, sorted within each; a folder may also be one library's."""
    return [Path(stamp[0]) for stamp in stamps(folders)]


def stamps(folders: tuple[Path, ...]) -> list[Stamp]:
    """Return the state of every rule file: equal stamps mean an unchanged rulebook."""
    found: dict[str, Stamp] = {}
    for folder in folders:
        below: list[Stamp] = []
        try:
            _scan(os.fspath(folder), below)
        except FileNotFoundError:
            raise DoctorError(f"rules folder `{folder}` does not exist") from None
        except NotADirectoryError:
            raise DoctorError(f"rules folder `{folder}` is no folder") from None
        except (OSError, ValueError) as problem:
            why = reason_of(problem)
            raise DoctorError(f"cannot read rules folder `{folder}`: {why}") from None
        if not below:
            raise DoctorError(f"rules folder `{folder}` holds no .yaml file")
        found.update((stamp[0], stamp) for stamp in sorted(below))
    return list(found.values())


def _scan(folder: str, found: list[Stamp]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.endswith(".yaml"):
                try:
                    status = entry.stat()
                except OSError as problem:  # a link to nowhere
                    why = reason_of(problem)
                    raise DoctorError(f"cannot read rule file `{entry.path}`: {why}") from None
                if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
                    raise DoctorError(f"rule file `{entry.path}` is no regular file")
                found.append((entry.path, status.st_mtime_ns, status.st_ctime_ns, status.st_size))
            elif entry.is_dir(follow_symlinks=False):
                _scan(entry.path, found)


def load_bodies(extra: tuple[str, ...] = ()) -> tuple[str, list[Body]]:
    """Return (version of the rulebook, contents of all files), from the cache if it is valid."""
    folders = (rules_dir(), *(Path(folder).absolute() for folder in extra))
    started = time.time_ns()
    files = stamps(folders)
    key = _key(files)
    cache = _cache_file(folders)
    stored = _read(cache, key) if cache is not None else None
    if stored is not None:
        return stored
    version, bodies = _compile([Path(stamp[0]) for stamp in files])
    if cache is not None and all(max(stamp[1], stamp[2]) < started - _RACY for stamp in files):
        _store(cache, key, version, bodies)
    return version, bodies


def _compile(files: list[Path]) -> tuple[str, list[Body]]:
    bodies = [read_file(path) for path in files]
    first: dict[tuple[str, str], str] = {}
    for kind, library, path, content in bodies:
        name = library if kind == "library" else content["id"]
        if (taken := first.setdefault((kind, name), path)) != path:
            raise DoctorError(f"{path}:1: {kind} `{name}` is taken by `{taken}`", "ids are unique over all folders")
    contents = json.dumps([body[3] for body in bodies], sort_keys=True)
    return hashlib.sha256(contents.encode()).hexdigest()[:12], bodies


def _without_tests(body: Body) -> Body:
    kind, library, path, content = body
    return kind, library, path, {key: value for key, value in content.items() if key != "tests"}


def _key(files: list[Stamp]) -> str:
    """Return the digest of all that decides the cache's content: the rule files, and the code that checks them."""
    code = []
    for module in (schema, vocabulary):
        status = Path(str(module.__file__)).stat()
        code.append((module.__name__, status.st_mtime_ns, status.st_size))
    digest = hashlib.sha256(repr((FORMAT, __version__, code, files)).encode(errors="surrogateescape"))
    return digest.hexdigest()


def _cache_file(folders: tuple[Path, ...]) -> Path | None:
    base = cache_folder()
    if base is None:
        return None
    # Folders that share a name cost a rebuild and no more: the key covers every file.
    name = hashlib.sha256("\0".join(map(str, folders)).encode(errors="surrogateescape")).hexdigest()[:16]
    return base / f"rules-{name}.json"


def _read(cache: Path, key: str) -> tuple[str, list[Body]] | None:
    """Return what the cache holds for exactly this key; None for a stale, damaged, foreign or missing one."""
    found = read_cache(cache, key)
    if found is None:
        return None
    header, content = found
    try:
        bodies: list[Body] = [
            (str(kind), str(library), str(path), dict(body)) for kind, library, path, body in json.loads(content)
        ]
        return str(header["version"]), bodies
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError):
        return None


def _store(cache: Path, key: str, version: str, bodies: list[Body]) -> None:
    content = json.dumps([_without_tests(body) for body in bodies], separators=(",", ":")).encode("ascii")
    write_cache(cache, key, content, version=version)
