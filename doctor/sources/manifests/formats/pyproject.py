"""pyproject.toml: the packages of a plain install of the project, and of the extras and groups that are named.

`[project]` (PEP 621), dependency groups (PEP 735), `[tool.uv]` with its sources, overrides and constraints, and the
tables of poetry, pdm and pixi. A plain install brings the dependencies and the default groups of uv and poetry. Where
these hold no attention library, every extra and group is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from doctor.errors import DoctorError, fault
from doctor.model import Fact
from doctor.packages.release_wheels import PACKAGE
from doctor.sources.manifests.base import (
    MAX_BYTES,
    DeclaredRequirement,
    Manifest,
    all_read,
    builds,
    builds_of_extra,
    left_out,
    without_conflicts,
)
from doctor.sources.watch import Watch
from doctor.util.reading import contained, read_text
from doctor.util.redact import shortened
from doctor.util.toml_text import Places, load_toml

from . import pixi_project, poetry_project, uv_project
from .requirements import Reader, project_top

Table = dict[str, Any]
EVERYTHING = "*"


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the packages of a plain install."""
    return read_project(path, text, watch)


def read_project(
    path: Path, text: str, watch: Watch, chosen: Sequence[str] = (), groups: Sequence[str] | None = None
) -> Manifest:
    """Return the packages of an install with these extras and groups; `groups` replaces the default groups."""
    project = _Project(path, text, load_toml(path, text), watch)
    names = tuple(canonicalize_name(name) for name in chosen if name != EVERYTHING)
    return project.manifest(names, EVERYTHING in chosen, groups)


class _Project:
    """The tables of one file."""

    def __init__(self, path: Path, text: str, content: Table, watch: Watch) -> None:
        self.path, self.content, self.places, self.watch = path, content, Places(text), watch
        self.folder = path.resolve().parent
        self.project = self._table(content, "project")
        self.tool = self._table(content, "tool")
        self.poetry = self._table(self.tool, "poetry", "tool.poetry")
        self.uv = self._table(self.tool, "uv", "tool.uv")
        self.pixi = self._table(self.tool, "pixi", "tool.pixi")
        self.groups: dict[str, tuple[str, Any]] = {
            canonicalize_name(name): (name, items) for name, items in self._table(content, "dependency-groups").items()
        }
        given = self.project.get("name")
        self.name = canonicalize_name(given) if isinstance(given, str) else None
        extras = self._table(self.project, "optional-dependencies", "project.optional-dependencies")
        self.extras: dict[str, tuple[str, Any]] = {
            canonicalize_name(name): (name, items) for name, items in extras.items()
        }
        self.included: set[str] = set()  # extras and groups that others include
        self.notes: list[str] = []
        self.facts: list[Fact] = []

    def manifest(self, chosen: tuple[str, ...], everything: bool, groups: Sequence[str] | None) -> Manifest:
        """Return the packages with the chosen extras and groups; `groups` replaces the default groups."""
        if "project" not in self.content and not (self.poetry or self.groups or self.pixi):
            raise fault(self.path, None, "it has no `[project]`", "name the lock file or the requirements instead")
        optional = dict(self._optional())
        unknown = [name for name in chosen if name not in optional]
        if unknown:
            known = ", ".join(sorted(optional)) or "none"
            raise fault(self.path, None, f"it has no extra and no group `{unknown[0]}`", f"it has: {known}")
        default = [name for name in (self._default_groups() if groups is None else groups) if name in optional]
        entries = list(self._always())
        taken = dict.fromkeys([*default, *chosen, *(optional if everything else ())])
        for name in taken:
            entries += optional[name]()
        left = [name for name in optional if name not in taken and name not in self.included]
        if left and not chosen and not everything and not self._has_watched(entries):
            more = [entry for name in left for entry in optional[name]()]
            if self._has_watched(more):
                entries += without_conflicts(more, "the extras and groups of")
                self.notes.append(all_read(self.path, "extra and group"))
                taken, left = dict.fromkeys(optional), []
        if left:
            self.notes.append(left_out(self.path, left, "extras and groups"))
            for name in left:
                self.facts += builds_of_extra(optional[name](), name, f"{self.path}, {name}")
        entries, facts = uv_project.applied(self.path, self.uv, entries, tuple(taken), self.places, self.notes)
        python = self.project.get("requires-python")
        wanted = python if isinstance(python, str) else poetry_project.python_of(self.poetry)
        return Manifest(tuple(entries), (*self.facts, *facts), False, wanted, tuple(dict.fromkeys(self.notes)))

    def _always(self) -> Iterator[DeclaredRequirement]:
        """Yield the dependencies of every install."""
        alone: list[DeclaredRequirement] = []
        for entry in self._requirements(self.project.get("dependencies"), "project", "dependencies"):
            yield entry
            if entry.name == PACKAGE and "@" not in (entry.raw or "") and self._builds_alone(entry.name):
                self.facts.append(Fact("declared.flash_attn_isolated", True, entry.place))
            if self._builds_alone(entry.name):
                alone.append(entry)
        self.facts += builds(alone, f"{self.path}, dependencies")
        dynamic = self.project.get("dynamic")
        if isinstance(dynamic, list) and "dependencies" in dynamic and not self.poetry:
            yield from self._from_files()
        yield from poetry_project.dependencies(
            self.path, self.poetry.get("dependencies"), "tool.poetry.dependencies", self.places, self.notes
        )
        self.facts += poetry_project.facts(self.path, self.poetry, self.places)
        pixi = pixi_project.tables(self.path, self.pixi, "tool.pixi", self.places)
        self.notes += pixi.notes
        self.facts += pixi.facts
        yield from pixi.entries

    def _optional(self) -> Iterator[tuple[str, Callable[[], Iterator[DeclaredRequirement]]]]:
        """Yield (name, reader) of every extra and group."""
        for extra in self.extras:
            yield extra, partial(self._extra, extra, (extra,))
        for group in self.groups:
            yield group, partial(self._group, group, ())
        for name, table in self._table(self.poetry, "group", "tool.poetry.group").items():
            header = f"tool.poetry.group.{name}.dependencies"
            listed = table.get("dependencies") if isinstance(table, dict) else None
            reader = partial(poetry_project.dependencies, self.path, listed, header, self.places, self.notes)
            yield canonicalize_name(name), reader
        pdm = self._table(self.tool, "pdm", "tool.pdm")
        for name, items in self._table(pdm, "dev-dependencies", "tool.pdm.dev-dependencies").items():
            yield canonicalize_name(name), partial(self._requirements, items, "tool.pdm.dev-dependencies", name)

    def _builds_alone(self, name: str) -> bool:
        """Return whether the installer builds a package apart from the environment; others' settings may count too."""
        elsewhere = (folder / file for folder in self.folder.parents for file in ("pyproject.toml", "uv.toml"))
        return (
            not (self.poetry or self.pixi or (self.folder / "uv.toml").exists())
            and uv_project.builds_in_isolation(name, self.uv)
            and not any(file.exists() for file in elsewhere)
        )

    def _default_groups(self) -> list[str]:
        """Return the groups that uv and poetry install by default."""
        names: list[str] = []
        given = self.uv.get("default-groups")
        if given == "all":
            names = list(self.groups)
        elif isinstance(given, list):
            names = [canonicalize_name(name) for name in given if isinstance(name, str)]
        elif "dev" in self.groups:
            names = ["dev"]
        groups = self._table(self.poetry, "group", "tool.poetry.group")
        names += [
            canonicalize_name(name)
            for name, table in groups.items()
            if isinstance(table, dict) and table.get("optional") is not True
        ]
        return names

    def _extra(self, name: str, behind: tuple[str, ...]) -> Iterator[DeclaredRequirement]:
        """Yield an extra with those it names of its own project; `behind` are the extras that led here."""
        written, items = self.extras[name]
        yield from self._requirements(items, "project.optional-dependencies", written, behind)

    def _own_extras(self, entry: DeclaredRequirement, behind: tuple[str, ...]) -> Iterator[DeclaredRequirement]:
        """Yield the extras of a requirement that names its own project: `foo[gpu]` in foo."""
        for name in map(canonicalize_name, entry.extras):
            if name not in self.extras:
                self.notes.append(f"{entry.place}: the project has no extra `{shortened(name, 40)}`")
            elif name not in behind:
                self.included.add(name)
                for other in self._extra(name, (*behind, name)):
                    markers = [f"({marker})" for marker in (entry.marker, other.marker) if marker]
                    yield replace(other, marker=" and ".join(markers) or None)

    def _group(self, name: str, behind: tuple[str, ...]) -> Iterator[DeclaredRequirement]:
        """Yield a dependency group with those it includes."""
        written, items = self.groups[name]
        line = self.places.key("dependency-groups", written)
        if not isinstance(items, list):
            raise fault(self.path, line, f"the group `{written}` needs a list")
        for item in items:
            included = item.get("include-group") if isinstance(item, dict) else None
            if isinstance(item, str):
                line = self.places.text(item, line)
                yield from self._requirement(item, line)
            elif isinstance(included, str):
                line = self.places.text(included, line)
                other = canonicalize_name(included)
                if other in (*behind, name):
                    ring = " -> ".join((*behind, name, other))
                    raise fault(self.path, line, f"the groups include each other: {ring}")
                if other not in self.groups:
                    raise fault(self.path, line, f"unknown group `{shortened(included, 40)}`")
                self.included.add(other)
                yield from self._group(other, (*behind, name))
            else:
                raise fault(
                    self.path,
                    line,
                    f"`{shortened(str(item), 60)}` is not a requirement",
                    "allowed are requirements and `{include-group = …}`",
                )

    def _requirements(
        self, items: Any, table: str, key: str, behind: tuple[str, ...] = ()
    ) -> Iterator[DeclaredRequirement]:
        line = self.places.key(table, key)
        if items is not None and not (isinstance(items, list) and all(isinstance(item, str) for item in items)):
            raise fault(self.path, line, f"`{key}` needs a list of strings")
        for item in items or ():
            line = self.places.text(item, line)
            yield from self._requirement(item, line, behind)

    def _requirement(self, text: str, line: int, behind: tuple[str, ...] = ()) -> Iterator[DeclaredRequirement]:
        if not text.strip() or text.lstrip().startswith("-"):
            raise fault(self.path, line, f"`{shortened(text, 60)}` is not a requirement")
        reader = Reader(self.folder)
        reader.line(text.strip(), self.path, line, self.places.raw(line))
        self.notes += reader.notes
        if not reader.entries:
            raise fault(self.path, line, f"`{shortened(text, 60)}` is not a requirement")
        entry = reader.entries[0]
        if entry.name == self.name:
            yield from self._own_extras(entry, behind)
        else:
            yield entry

    def _has_watched(self, entries: Sequence[DeclaredRequirement]) -> bool:
        """Return whether a package that rules know is among them."""
        watched = set(self.watch.distributions)
        return any(entry.name in watched for entry in entries)

    def _from_files(self) -> Iterator[DeclaredRequirement]:
        """Yield the dependencies that setuptools reads from files; other `dynamic` ones only the build knows."""
        setuptools = self._table(self.tool, "setuptools", "tool.setuptools")
        dynamic = self._table(setuptools, "dynamic", "tool.setuptools.dynamic")
        given = dynamic.get("dependencies")
        names = given.get("file") if isinstance(given, dict) else None
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            line = self.places.key("project", "dynamic")
            raise fault(self.path, line, "only the build knows the dependencies", "name a requirements file")
        reader = Reader(project_top(self.path))
        line = self.places.key("tool.setuptools.dynamic", "dependencies")
        for name in names:
            target = self.path.parent / name
            if not contained(target, project_top(self.path)):
                raise fault(self.path, line, f"`{shortened(name, 60)}` is outside the project")
            try:
                text = read_text(target, "included file", MAX_BYTES)
            except DoctorError as problem:
                raise fault(self.path, line, problem.message, problem.hint) from None
            reader.file(target, text, (self.path.resolve(),), constraint=False)
        self.notes += reader.notes
        self.facts += reader.facts
        yield from reader.entries

    def _table(self, parent: Table, key: str, name: str = "") -> Table:
        found = parent.get(key)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise fault(self.path, self.places.key(name or key), f"`{name or key}` needs to be a table")
        return found
