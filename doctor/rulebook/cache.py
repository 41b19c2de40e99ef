"""The compiled rulebook: checked rule files in the form of `compiled`, so that start-up parses no YAML.

The file is used only if its key equals the digest of everything that decides its content: path, size and
modification times of every rule file, and the code that checks rules. Tests inside rules stay in the YAML.
The cache is data, never code: it must be a regular file that belongs to this user and that others cannot write;
in any doubt it is rebuilt. A wheel brings the compiled rules along (`shipped`): they spare the first rebuild.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import packaging

from doctor._version import __version__
from doctor.errors import DoctorError, reason_of
from doctor.facts.derived.registry import declare_facts_of
from doctor.facts.libraries.frameworks import declare_dependent_facts, declare_frameworks
from doctor.facts.vocabulary import term
from doctor.model import ABSENT
from doctor.util.cache_file import cache_folder, open_cache, write_cache, write_data
from doctor.util.open_flags import FOLDER
from doctor.util.resources import rules_dir

from .compiled import CompiledRules, from_bytes, section_of, to_bytes
from .effects import effects_of
from .rule import is_checked

LOGGER = logging.getLogger(__name__)

FORMAT = 9  # of the cache file
SHIPPED = "compiled.jsonl"  # in the rules of a wheel: what they compile to
EXPLAINS_ONLY = "LOG"  # file names of rules that `explain` alone needs: `check` neither reads nor watches them
CODE = ("", "facts", "rulebook", "util")  # packages of `doctor` that compiling uses; "": the modules of `doctor` itself
_PACKAGE = Path(__file__).parents[1]
_RACY = 50_000_000  # ns: a file written this shortly before may be written again within one tick of its clock

Body = tuple[str, str, str, dict[str, Any]]  # kind (library | rule), library name, path, content
Stamp = tuple[str, int, int, int]  # path, mtime and ctime in ns, size in bytes


def rule_files(folders: tuple[Path, ...]) -> list[Path]:
    """Return every `.yaml` below the folders, sorted within each; a folder may also be one library's."""
    return [Path(stamp[0]) for stamp in stamps(folders, explaining=True)]


def stamps(folders: tuple[Path, ...], *, explaining: bool = False) -> list[Stamp]:
    """Return the state of every rule file, on request of those for `explain` alone too; equal stamps mean no change."""
    found: dict[str, Stamp] = {}
    for folder in folders:
        below: list[Stamp] = []
        try:
            _scan(os.fspath(folder), below, explaining)
        except FileNotFoundError:
            raise DoctorError(f"rules folder `{folder}` does not exist") from None
        except NotADirectoryError:
            raise DoctorError(f"rules folder `{folder}` is no folder") from None
        except (OSError, ValueError) as problem:
            why = reason_of(problem)
            raise DoctorError(f"cannot read rules folder `{folder}`: {why}") from None
        if not below and (explaining or not stamps((folder,), explaining=True)):
            raise DoctorError(f"rules folder `{folder}` holds no .yaml file")
        found.update((stamp[0], stamp) for stamp in sorted(below))
    return list(found.values())


def _scan(folder: str, found: list[Stamp], explaining: bool) -> None:
    skipped = (".",) if explaining else (".", EXPLAINS_ONLY)
    start = os.path.join(folder, "")  # noqa: PTH118 - thousands of files: a Path takes longer than reading its state
    # The state of a file takes a third less time by its name in an open folder than by its whole path.
    here = os.open(folder, os.O_RDONLY | FOLDER) if os.scandir in os.supports_fd else None
    try:
        with os.scandir(folder if here is None else here) as entries:
            for entry in entries:
                if entry.name.startswith(skipped):
                    continue
                if entry.name.endswith(".yaml"):
                    found.append(_rule_stamp(entry, start + entry.name))
                elif entry.is_dir(follow_symlinks=False):
                    _scan(start + entry.name, found, explaining)
    finally:
        if here is not None:
            os.close(here)


def _rule_stamp(entry: os.DirEntry[str], path: str) -> Stamp:
    try:
        status = entry.stat()
    except OSError as problem:  # a link to nowhere
        why = reason_of(problem)
        raise DoctorError(f"cannot read rule file `{path}`: {why}") from None
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
        raise DoctorError(f"rule file `{path}` is no regular file")
    return _stamp(path, status)


class RuleFolder(NamedTuple):
    """One folder of rules as it is now."""

    path: Path
    files: tuple[Stamp, ...]
    key: str
    is_settled: bool  # no file may change without another stamp


def rule_paths(extra: Iterable[str] = ()) -> tuple[Path, ...]:
    """Return the folders of the built-in rules and of further ones."""
    return (rules_dir(), *(Path(folder).absolute() for folder in extra))


def rule_folders(extra: Iterable[str] = ()) -> tuple[RuleFolder, ...]:
    """Return the state of the built-in rules and of further folders; DoctorError for one that cannot be read."""
    started = time.time_ns()
    found = []
    for path in rule_paths(extra):
        files = stamps((path,))
        found.append(RuleFolder(path, tuple(files), cache_key(files), may_store(files, started)))
    return tuple(found)


def load_compiled(folders: Sequence[RuleFolder]) -> CompiledRules:
    """Return the contents of all rule files, of each folder from its cache where that is valid."""
    parts = []
    for folder in folders:
        parts.append(_load(folder))
        _declare(body for _, body, _ in parts[-1].libraries)  # the rules of the next folder use their words
    if len(parts) == 1:
        return parts[0]
    names = [("library", name) for part in parts for name, *_ in part.libraries]
    names += [("rule", name) for part in parts for section in part.sections for name in section.ids]
    if len(set(names)) < len(names):  # one folder is in another, or it is an error, which names both files
        return _compile([Path(name) for name in dict.fromkeys(stamp[0] for item in folders for stamp in item.files)])
    return CompiledRules(
        hashlib.sha256(" ".join(part.version for part in parts).encode()).hexdigest()[:12],
        tuple(library for part in parts for library in part.libraries),
        tuple(section for part in parts for section in part.sections),
    )


def _load(folder: RuleFolder) -> CompiledRules:
    cache = cache_file((folder.path,), "rules")
    stored = _read(cache, folder, folder.key) if cache is not None else None
    if stored is not None:
        LOGGER.debug("rules read from %s", cache)
        return stored
    LOGGER.debug("no valid cache at %s", cache)
    compiled = _read_shipped(folder) or _compile_folder(folder)
    _store(cache, folder, compiled)
    return compiled


def _store(cache: Path | None, folder: RuleFolder, compiled: CompiledRules) -> None:
    if cache is not None and folder.is_settled:
        write_cache(cache, folder.key, *to_bytes(compiled), version=compiled.version)


def _read_shipped(folder: RuleFolder) -> CompiledRules | None:
    """Return what a wheel brought for exactly these rules and this code, whatever the times of their files; or None."""
    shipped = folder.path / SHIPPED
    if folder.path != rules_dir() or not shipped.is_file():
        return None
    try:
        return _read(shipped, folder, contents_key(folder), like=Path(__file__))
    except OSError:  # a file is gone since
        return None


def write_shipped() -> None:
    """Write what the built-in rules compile to next to them, for a wheel; run by its build."""
    (folder,) = rule_folders()
    compiled = _compile_folder(folder)
    write_data(folder.path / SHIPPED, contents_key(folder), *to_bytes(compiled), version=compiled.version)


def contents_key(folder: RuleFolder) -> str:
    """Return the digest of the contents of these rules and of the code that checks them, with their names."""
    digest = hashlib.sha256(f"{FORMAT} {__version__}".encode())
    for base, files in ((folder.path, folder.files), (_PACKAGE, code())):
        for path, *_ in files:
            content = Path(path).read_bytes()
            digest.update(f"{path.removeprefix(str(base))}\0{len(content)}\0".encode(errors="surrogateescape"))
            digest.update(content)
    return digest.hexdigest()


def _compile_folder(folder: RuleFolder) -> CompiledRules:
    LOGGER.debug("reading %d rule files", len(folder.files))
    return _compile([Path(stamp[0]) for stamp in folder.files], str(folder.path))


def form() -> ModuleType:
    """Return the module that reads rule files and checks their form; a start from the cache never loads it."""
    from . import schema  # door: the definition of the format

    return schema


def _compile(files: list[Path], folder: str = "") -> CompiledRules:
    schema = form()
    described = {path: schema.parsed_file(path) for path in files if path.name == schema.LIBRARY}
    for shape, content in described.values():  # of all libraries first: any condition may use their words
        schema.declare_words(shape, content)
    parsed = ((path, described.get(path) or schema.parsed_file(path)) for path in files)
    sources = (item for path, part in parsed for item in schema.checked_sources(path, *part))
    bodies = [(item.kind, item.library, item.path, item.content) for item in sources]
    first: dict[tuple[str, str], str] = {}
    for kind, library, path, content in bodies:
        name = library if kind == "library" else content["id"]
        taken = first.get((kind, name))
        first[kind, name] = path
        if taken is not None:
            raise DoctorError(f"{path}:1: {kind} `{name}` is taken by `{taken}`", "ids are unique over all folders")
    contents = json.dumps([body[3] for body in bodies], sort_keys=True)
    libraries = {library: content for kind, library, _, content in bodies if kind == "library"}
    rules = [body for body in bodies if body[0] == "rule" and is_checked(body[3])]  # the others explain logs alone
    needed = [_needed_versions(content["when"]) for _, _, _, content in rules]
    common = Counter(key for keys in needed for key in keys)
    grouped: dict[tuple[str, str | None], list[Body]] = {}
    for body, keys in zip(rules, needed, strict=True):
        rarest = min(keys, key=lambda key: (common[key], key), default=None)
        grouped.setdefault((body[1], rarest), []).append(body)
    return CompiledRules(
        hashlib.sha256(contents.encode()).hexdigest()[:12],
        tuple((name, content, effects_of(content)) for name, content in libraries.items()),
        tuple(
            section_of(library, key, [(path, content) for _, _, path, content in rules], folder)
            for (library, key), rules in grouped.items()
        ),
    )


def _declare(libraries: Iterable[Mapping[str, Any]]) -> None:
    """Add the words of libraries to the vocabulary."""
    for body in libraries:
        if "frameworks" in body:
            declare_frameworks(body["name"], body["frameworks"])
        for package, row in (body.get("packages") or {}).items():
            declare_facts_of(package, row.get("facts") or ())
    declare_dependent_facts()


def _needed_versions(when: Mapping[str, Any]) -> set[str]:
    """Return the fact keys of libraries without which a condition cannot hold; derived versions do not count."""
    found: set[str] = set()
    for key, wanted in when.items():
        if key == "all":
            found.update(*map(_needed_versions, wanted))
        elif key == "any":
            found |= set.intersection(*map(_needed_versions, wanted))
        elif key.endswith(".version") and isinstance(wanted, str) and wanted != ABSENT and not term(key).derived:
            found.add(key)
    return found


def cache_key(files: list[Stamp]) -> str:
    """Return the digest of all that decides the cache's content: the rule files, and the code that checks them."""
    parts = (FORMAT, __version__, sys.implementation.cache_tag, packaging.__version__, _yaml_library(), code())
    names, *numbers = zip(*files, strict=True) if files else ((), (), (), ())  # none but those for `explain` alone
    digest = hashlib.sha256("\0".join((str(parts), *names, "")).encode(errors="surrogateescape"))
    for column in numbers:
        digest.update(array("q", column))
    return digest.hexdigest()


def _yaml_library() -> Stamp | None:
    """Return the state of the installed PyYAML: its import costs more than the rest of a start from the cache."""
    found = PathFinder.find_spec("yaml")
    return None if found is None or not found.origin else stamp_of(Path(found.origin))


def stamp_of(path: Path) -> Stamp:
    """Return the state of one file that decides a cache's content."""
    return _stamp(str(path), path.stat())


def _stamp(path: str, status: os.stat_result) -> Stamp:
    return (path, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def code() -> list[Stamp]:
    """Return the state of every module that compiling a rule file may use: packages as a whole, to miss none."""
    found: list[Stamp] = []
    for name in CODE:
        _scan_code(os.fspath(_PACKAGE / name), found, deep=bool(name))
    return sorted(found)


def _scan_code(folder: str, found: list[Stamp], *, deep: bool) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                found.append(_stamp(entry.path, entry.stat()))
            elif deep and entry.name != "__pycache__" and entry.is_dir():
                _scan_code(entry.path, found, deep=True)


def may_store(files: list[Stamp], started: int) -> bool:
    """Return whether no file was written so shortly before `started` that it may change within one tick."""
    _, modified, changed, _ = zip(*files, strict=True) if files else ((), (0,), (0,), ())
    newest: int = max(*modified, *changed)
    return newest < started - _RACY


def cache_file(folders: tuple[Path, ...], kind: str) -> Path | None:
    """Return the file that holds what these folders compile to; None without a place for caches."""
    base = cache_folder()
    if base is None:
        return None
    # Folders that share a name cost a rebuild and no more: the key covers every file.
    name = hashlib.sha256("\0".join(map(str, folders)).encode(errors="surrogateescape")).hexdigest()[:16]
    return base / f"{kind}-{name}.json"


def _read(cache: Path, folder: RuleFolder, key: str, like: Path | None = None) -> CompiledRules | None:
    """Return what the file holds for exactly this key; None for a stale, damaged, foreign or missing one."""
    found = open_cache(cache, key, like)
    if found is None:
        return None

    def compile_again() -> CompiledRules:
        compiled = _compile_folder(folder)
        _store(cache if like is None else None, folder, compiled)
        return compiled

    try:
        return from_bytes(*found, str(folder.path), compile_again)
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError):
        return None
