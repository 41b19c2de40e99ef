"""Read what modules of a release define and import at their top, from the archive that the package index serves.

Nothing is installed or run. A large wheel is read by ranges: only its Python files are transferred. `Surface` reads a
release from a store (`release_store.py`).
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tarfile
import typing
import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import refresh_index
from release_store import Store

from doctor.rulebook.authoring.module_imports import imports_of

_WHOLE = 40 << 20  # archives up to this size are fetched in one request
_DYNAMIC = re.compile(r"__getattr__|_LazyModule|sys\.modules\[__name__\]|globals\(\)|lazy_import|attach\(")


class Parsed(NamedTuple):
    """What is at the top of one module; names of modules as they are written."""

    names: list[str]
    stars: list[str]
    dynamic: bool
    imports: list[list[str]]


class Surface:
    """One release: its modules with their names, and what they import at their top without a guard.

    A module is parsed when it is requested, and the store keeps the result: of most releases few modules matter.
    """

    def __init__(self, store: Store, version: str, roots: tuple[str, ...]) -> None:
        """Take the modules below the roots (`trl`, `megatron.core`) of a release that the store has."""
        self._store = store
        self._files: dict[str, str] = {}  # module -> digest of its file
        self.packages: set[str] = set()  # modules that are an __init__.py
        folders = tuple(root.replace(".", "/") for root in roots)
        for path, digest in store.paths(version).items():
            path = path.removeprefix("src/").removeprefix("python/")
            below = any(path.startswith(f"{folder}/") or path == f"{folder}.py" for folder in folders)
            if below and path.endswith(".py") and not re.search(r"(?:^|/)tests?/", path):
                name = path.removesuffix(".py").replace("/", ".")
                if name.endswith(".__init__"):
                    name = name.removesuffix(".__init__")
                    self.packages.add(name)
                self._files[name] = digest
        self._anywhere: dict[str, bool] = {}

    @property
    def modules(self) -> Collection[str]:
        """Every module of the release."""
        return self._files.keys()

    def _parsed(self, module: str) -> Parsed:
        return Parsed(*self._store.parsed(self._files[module], _parse))

    def names(self, module: str) -> Collection[str]:
        """Return what a module defines or imports at its top; nothing where it cannot be parsed."""
        return self._parsed(module).names

    def stars(self, module: str) -> list[str]:
        """Return the modules of which it imports every name."""
        return [self._absolute(star, module) for star in self._parsed(module).stars]

    def dynamic(self, module: str) -> bool:
        """Whether a module may make names when it runs."""
        return self._parsed(module).dynamic

    def imports(self, module: str) -> list[list[str]]:
        """Return what a module imports: module, name or "", gate."""
        return [[self._absolute(name, module), what, gate] for name, what, gate in self._parsed(module).imports]

    def anywhere(self, name: str) -> bool:
        """Whether some module of the release has a name."""
        if name not in self._anywhere:
            word = name.encode()
            self._anywhere[name] = any(
                name in self.names(module) for module, digest in self._files.items()
                if word in self._store.content(digest)
            )  # fmt: skip
        return self._anywhere[name]

    def _absolute(self, name: str, module: str) -> str:
        return _absolute(name, module if module in self.packages else module.rpartition(".")[0])


def releases_of(package: str, since: str) -> dict[Version, dict]:
    """Return the final releases that were uploaded from a date on, each with its best file."""
    page = f"{refresh_index.configured_index().rstrip('/')}/{package}/"
    found: dict[Version, list[dict]] = {}
    for item in refresh_index.files_of(page):
        tags = refresh_index.file_tags(item["filename"])
        if tags is None or tags[0].is_prerelease or tags[0].is_devrelease or item.get("upload-time", "9") < since:
            continue
        if item["filename"].endswith((".whl", ".tar.gz")) and not item.get("yanked"):
            found.setdefault(tags[0], []).append({**item, "url": urljoin(page, item["url"])})
    return {version: min(files, key=_preference) for version, files in sorted(found.items())}


def _preference(item: dict) -> tuple[int, str]:
    name = item["filename"]
    if name.endswith("none-any.whl"):
        return 0, name
    if name.endswith(".tar.gz") and item.get("size", 0) < _WHOLE:
        return 1, name
    return (2 if "manylinux" in name and "x86_64" in name else 3 if name.endswith(".whl") else 4), name


def python_files(item: dict, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of an archive's Python files; the first folder of a source archive is left out."""
    if item["filename"].endswith(".tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(refresh_index.fetch(item["url"]))) as archive:
            for member in archive:
                path = member.name.partition("/")[2].removeprefix("src/").removeprefix("python/")
                stream = (
                    archive.extractfile(member) if member.isfile() and path.endswith(".py") and wanted(path) else None
                )
                if stream:
                    yield path, stream.read()
        return
    size = item.get("size", 0)  # some indexes name no size
    file = io.BytesIO(refresh_index.fetch(item["url"])) if size < _WHOLE else refresh_index.RangeFile(item["url"], size)
    with zipfile.ZipFile(file) as archive:
        for entry in sorted(archive.infolist(), key=lambda one: one.header_offset):
            if entry.filename.endswith(".py") and wanted(entry.filename):
                yield entry.filename, archive.read(entry)


def _absolute(module: str, package: str) -> str:
    dots = len(module) - len(module.lstrip("."))
    if not dots:
        return module
    base = package.split(".")[: len(package.split(".")) - dots + 1]
    rest = module.lstrip(".")
    return ".".join([*base, rest] if rest else base)


def _parse(content: bytes) -> Parsed:
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return Parsed([], [], True, [])
    names, stars = set[str](), list[str]()
    imports = [list(item) for item in imports_of(tree.body)]
    _defined(tree.body, names, stars)
    return Parsed(sorted(names), stars, bool(_DYNAMIC.search(content.decode("utf-8", "replace"))), imports)


def _defined(body: list[ast.stmt], names: set[str], stars: list[str]) -> None:
    for item in body:
        match item:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names.update(node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Import(names=aliases):
                names.update(alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                if aliases[0].name == "*":
                    stars.append("." * level + (module or ""))
                names.update(alias.asname or alias.name for alias in aliases)
            case ast.If(body=first, orelse=other):
                _defined([*first, *other], names, stars)
            case ast.Try(body=first, orelse=other, handlers=handlers, finalbody=last):
                _defined([*first, *other, *last, *(x for h in handlers for x in h.body)], names, stars)
            case ast.With(body=first) | ast.For(body=first) | ast.While(body=first):
                _defined(first, names, stars)
            case _:
                pass


class Names:
    """Answer whether a module of a release has a name; in a compiled package, a module with code for it has any."""

    def __init__(self, surface: Surface, *, compiled: bool = False) -> None:
        self._surface = surface
        self._compiled = compiled

    def has(self, module: str, name: str) -> bool:
        """Say whether `from module import name` (or `import module`) finds what it names."""
        known = self._surface.modules
        if module not in known:
            return any(other.startswith(f"{module}.") for other in known) and (
                not name or f"{module}.{name}" in known or any(o.startswith(f"{module}.{name}.") for o in known)
            )
        return not name or name == "*" or f"{module}.{name}" in known or self._bound(module, name, set())

    def _bound(self, module: str, name: str, seen: set[str]) -> bool:
        if module in seen:
            return False
        seen.add(module)
        if module not in self._surface.modules:
            return False
        if self._surface.dynamic(module):
            return self._compiled or self._surface.anywhere(name)
        if name in self._surface.names(module):
            return True
        stars = self._surface.stars(module)
        outside = any(star not in self._surface.modules for star in stars)
        return outside or any(self._bound(star, name, seen) for star in stars)


class RecordedNames:
    """Answer the same from `rules/index/names/transformers.json.gz`, whose releases are one per minor."""

    def __init__(self, minor: Version, history: dict) -> None:
        minors = [Version(".".join(map(str, Version(text).release[:2]))) for text in history["releases"]]
        self._first, self._last = minors.index(minor), len(minors) - 1 - minors[::-1].index(minor)
        self._names: dict[str, str] = history["g"]
        self._five = minor >= Version("5.0")

    def has(self, module: str, name: str) -> bool:
        """Say whether a name of transformers is in this minor release; one without a record is in all."""
        del module
        if hasattr(typing, name):
            return True  # the record has no names that a module imports from elsewhere
        if self._five and name.endswith(("Tokenizer", "TokenizerFast")):
            return True  # from 5.0 on another class answers to the names of tokenizers that are gone
        spans = (map(int, span.split("-")) for span in self._names.get(name, f"0-{self._last}").split(","))
        return any(first <= self._last and last >= self._first for first, last in spans)
