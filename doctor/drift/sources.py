"""Find installed packages and their Python files, and parse them within limits; import nothing."""

from __future__ import annotations

import ast
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .findings import Notice, Release

#: A larger file is generated code, and takes seconds and hundreds of megabytes to parse.
FILE_LIMIT = 3 * 2**20
#: More lines than these in one file are not written by hand either.
DEPTH_LIMIT = 150
FILES_LIMIT = 30_000
FOLDER_DEPTH = 24
#: Characters that open a nested expression; the parser recurses on them.
_OPENERS = re.compile(rb"[\[({]")
COMPILED = (".so", ".pyd", ".dylib", ".pyx")
#: Not part of an installed stack: found in every environment, and never a caller.
NOT_FOLLOWED = frozenset({"__pycache__", "node_modules", ".git"})


def normalized(name: str) -> str:
    """Return the canonical name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


class SourceFile(NamedTuple):
    """A module on disk; `compiled` files have a name and no source."""

    module: str
    path: Path
    is_package: bool
    compiled: bool = False


class Parsed(NamedTuple):
    """A syntax tree; `assigns_globals` says whether a function may assign variables of the module."""

    tree: ast.Module
    assigns_globals: bool


@dataclass
class Package:
    """An importable top-level package or module, and the distribution that installed it."""

    name: str
    root: Path
    location: Path
    """The folder on the search path that holds it."""
    release: Release
    is_code: bool = False
    """A folder of the user's own code rather than an installed package."""
    is_flat: bool = False
    """Files in folders below do not belong to it."""
    is_of_stack: bool = False
    """Its distribution belongs to the attention stack."""
    files_cache: list[Path] | None = field(default=None, repr=False)


class Environment:
    """The importable packages of some search paths."""

    def __init__(
        self,
        paths: Sequence[Path],
        stack: Set[str],
        *,
        code: Sequence[Path] = (),
        models: Sequence[Path] = (),
        overlay: Sequence[Path] = (),
    ) -> None:
        """Index `paths` (site-packages folders), with `overlay` folders in front of them.

        `stack` names the distributions whose sources are read: who calls, and who is called.
        `code` are folders of the user's own code, `models` folders of which only the files in them count.
        A package in an overlay hides the installed one of the same name, and so does its distribution.
        """
        self.stack = stack
        self.notices: list[Notice] = []
        self._found: dict[str, SourceFile | None] = {}
        self.packages: dict[str, Package] = {}
        self.releases: dict[str, Release] = {}
        self.installed, self.overlay = tuple(paths), tuple(overlay)
        self.code, self.models = tuple(code), tuple(models)
        for path in (*overlay, *paths):
            self._index(path)
        for folder in code:
            self._index_code(folder, False)
        for folder in models:
            self._index_code(folder, True)

    def _index(self, path: Path) -> None:
        try:
            entries = sorted(os.scandir(path), key=_name_of)
        except OSError as error:
            self.notices.append(Notice(str(path), f"cannot be read: {error.strerror or error}"))
            return
        owners: dict[str, Release] = {}
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                release = _release_of(Path(entry.path))
                if release is not None and release.name not in self.releases:
                    self.releases[release.name] = release
                    if release.name in self.stack:  # what others are called decides nothing
                        for top in _top_levels(Path(entry.path), release):
                            owners.setdefault(top, release)
        for entry in entries:
            name = entry.name.partition(".")[0]
            if not name.isidentifier() or name in self.packages or entry.name.endswith((".dist-info", ".egg-info")):
                continue
            is_folder = entry.is_dir()
            if is_folder and entry.name != name:
                continue
            if not is_folder and not entry.name.endswith((".py", *COMPILED)):
                continue
            release = owners.get(name) or self._owner_by_name(name)
            is_of_stack = release.name in self.stack
            self.packages[name] = Package(name, Path(entry.path), path, release, is_of_stack=is_of_stack)

    def _owner_by_name(self, top: str) -> Release:
        name = normalized(top)
        return self.releases.get(name) or self.releases.get(f"{name}-core") or Release(name)

    def _index_code(self, folder: Path, is_flat: bool) -> None:
        root = folder.resolve()
        if not root.is_dir():
            self.notices.append(Notice(str(folder), "is no folder"))
            return
        name = re.sub(r"\W", "_", root.name) or "code"
        while name in self.packages:
            name += "_"
        self.packages[name] = Package(name, root, root.parent, Release(str(folder)), True, is_flat)

    def release_of(self, distribution: str) -> Release | None:
        """Return the installed release of a distribution, by any spelling of its name."""
        return self.releases.get(normalized(distribution))

    def version_of(self, distribution: str) -> str | None:
        """Return the installed version, None where the distribution is not installed."""
        release = self.release_of(distribution)
        return release.version if release is not None else None

    def package_of(self, module: str) -> Package | None:
        """Return the top-level package that holds a module."""
        return self.packages.get(module.partition(".")[0])

    def find(self, module: str) -> SourceFile | None:
        """Return the file of a dotted module, None where there is none."""
        if module not in self._found:
            self._found[module] = self._find(module)
        return self._found[module]

    def _find(self, module: str) -> SourceFile | None:
        package = self.package_of(module)
        if package is None:
            return None
        parts = module.split(".")[1:]
        if package.root.is_file():
            if parts:
                return None
            return SourceFile(module, package.root, False, package.root.suffix != ".py")
        place = package.root.joinpath(*parts[:-1]) if parts else package.root.parent
        last = parts[-1] if parts else package.root.name
        initial = place / last / "__init__.py"
        if initial.is_file():
            return SourceFile(module, initial, True)
        plain = place / f"{last}.py"
        if parts and plain.is_file():
            return SourceFile(module, plain, False)
        if parts and place.is_dir():
            for name in _names_in(place):
                if name.endswith(COMPILED) and name.partition(".")[0] == last:
                    return SourceFile(module, place / name, False, True)
        folder = place / last
        return SourceFile(module, folder, True) if folder.is_dir() else None

    def files(self, package: Package) -> list[Path]:
        """Return the Python files of a package, without following symbolic links to folders."""
        if package.files_cache is None:
            package.files_cache = list(self._walk(package))
        return package.files_cache

    def _walk(self, package: Package) -> Iterator[Path]:
        if package.root.is_file():
            if package.root.suffix == ".py":
                yield package.root
            return
        count = 0
        waiting = [(package.root, 0)]
        while waiting:
            folder, depth = waiting.pop()
            try:
                entries = sorted(os.scandir(folder), key=_name_of)
            except OSError:
                continue
            for entry in entries:
                if entry.name in NOT_FOLLOWED or (package.is_code and entry.name.startswith(".")):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if package.is_flat:
                        continue
                    virtual = package.is_code and (Path(entry.path) / "pyvenv.cfg").is_file()
                    if depth < FOLDER_DEPTH and not virtual:
                        waiting.append((Path(entry.path), depth + 1))
                elif entry.name.endswith(".py") and Path(entry.path).is_file():
                    count += 1
                    if count > FILES_LIMIT:
                        self.notices.append(Notice(package.name, f"only the first {FILES_LIMIT} files were read"))
                        return
                    yield Path(entry.path)

    def module_name(self, package: Package, path: Path) -> str:
        """Return the dotted module of a file of a package."""
        if package.root.is_file():
            return package.name
        parts = list(path.relative_to(package.root).with_suffix("").parts)
        if parts and parts[-1] == "__init__":
            parts.pop()
        return ".".join([package.name, *parts])

    def display(self, package: Package | None, path: Path) -> str:
        """Return a path as findings name it: relative to the folder on the search path."""
        if package is None:
            return str(path)
        if package.is_code:
            return str(Path(package.release.name) / path.relative_to(package.root))
        try:
            return path.relative_to(package.location).as_posix()
        except ValueError:
            return str(path)

    def read(self, path: Path, subject: str) -> bytes | None:
        """Return the bytes of a file; None, with a notice, where it cannot be read or is too large."""
        try:
            if path.stat().st_size > FILE_LIMIT:
                self.notices.append(Notice(subject, f"skipped: larger than {FILE_LIMIT // 2**20} MiB"))
                return None
            return path.read_bytes()
        except OSError as error:
            self.notices.append(Notice(subject, f"skipped: {error.strerror or error}"))
            return None

    def peek(self, path: Path) -> bytes:
        """Return the bytes of a file to search in; nothing, without a notice, where it cannot be read."""
        try:
            return path.read_bytes() if path.stat().st_size <= FILE_LIMIT else b""
        except OSError:
            return b""

    def parse(self, path: Path, subject: str) -> Parsed | None:
        """Return the syntax tree of a file; None, with a notice, where there is none."""
        data = self.read(path, subject)
        if data is None:
            return None
        if _too_deep(data):
            self.notices.append(Notice(subject, f"skipped: brackets nested deeper than {DEPTH_LIMIT}"))
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(data, filename=subject)
        except (SyntaxError, ValueError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
            self.notices.append(Notice(subject, f"skipped: not Python {sys.version_info.major} source: {reason}{line}"))
            return None
        except (RecursionError, MemoryError):
            self.notices.append(Notice(subject, "skipped: nested too deeply"))
            return None
        return Parsed(tree, b"global " in data)


def is_readable(package: Package) -> bool:
    """Return whether a package is part of the stack and was installed, or is the user's own code.

    A folder that only shares its name with a package of the stack, such as `kernels`, is neither.
    """
    return package.is_code or (package.is_of_stack and package.release.version != "")


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        return []


def _name_of(entry: os.DirEntry[str]) -> str:
    return entry.name


def _too_deep(data: bytes) -> bool:
    """Return whether a file may nest brackets too deeply for the parser; brackets in strings count too."""
    if len(_OPENERS.findall(data)) < DEPTH_LIMIT:
        return False
    depth = 0
    for character in re.findall(rb"[\[({\])}]", data):
        depth = depth + 1 if character in b"[({" else max(0, depth - 1)
        if depth > DEPTH_LIMIT:
            return True
    return False


def _release_of(information: Path) -> Release | None:
    """Return name and version of a `.dist-info` or `.egg-info` entry; the former has both in its name."""
    stem, _, suffix = information.name.rpartition(".")
    name, _, version = stem.partition("-")
    if suffix == "dist-info" and name and version and "-" not in version:
        return Release(normalized(name), version)
    for candidate in (information / "METADATA", information / "PKG-INFO", information):
        if not candidate.is_file():
            continue
        name = version = ""
        try:
            with candidate.open(encoding="utf-8", errors="replace") as lines:
                for number, line in enumerate(lines):
                    key, _, value = line.partition(":")
                    if key == "Name":
                        name = normalized(value.strip())
                    elif key == "Version":
                        version = value.strip()
                    if (name and version) or number > 200 or not line.strip():
                        break
        except OSError:
            return None
        if name:
            return Release(name, version)
    name, _, version = stem.partition("-")
    return Release(normalized(name), version.partition("-")[0]) if name and version else None


def _top_levels(information: Path, release: Release) -> list[str]:
    """Return the import names of a distribution, from its own lists of files."""
    tops: list[str] = []
    listed = information / "top_level.txt"
    record = information / "RECORD"
    try:
        if listed.is_file():
            tops += [line.strip() for line in listed.read_text(errors="replace").splitlines() if line.strip()]
        if record.is_file() and record.stat().st_size < FILE_LIMIT * 4:
            for line in record.read_text(errors="replace").splitlines():
                head, slash, rest = line.partition("/")
                name = head.partition(",")[0]
                if slash and rest.partition(",")[0].endswith((".py", *COMPILED)) and name.isidentifier():
                    tops.append(name)
                elif not slash and name.endswith(".py"):
                    tops.append(name[:-3])
    except OSError:
        pass
    return list(dict.fromkeys([*tops, release.name.replace("-", "_")]))
