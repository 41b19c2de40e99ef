"""pyproject.toml: what a plain install of the project brings, and the extras and groups that are asked for.

`[project]` (PEP 621), dependency groups (PEP 735), `[tool.uv]` with its sources, overrides and constraints, and the
tables of poetry, pdm and pixi. A plain install brings the dependencies and the groups that uv and poetry install
unasked; where these say nothing of the attention stack, every extra and group is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError, fault
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.manifests.base import MAX_BYTES, DeclaredRequirement, Manifest, agreed, normalized
from doctor.util.toml_lines import Places, load_toml
from doctor.util.yaml_text import read_text

from . import pixi_project, poetry_project, uv_project
from .requirements import Reader, project_top

Table = dict[str, Any]
EVERYTHING = "*"


def read(path: Path, text: str) -> Manifest:
    """What a plain install brings."""
    return read_project(path, text)


def read_project(path: Path, text: str, chosen: Sequence[str] = (), groups: Sequence[str] | None = None) -> Manifest:
    """The same with these extras and groups; `groups` are those taken unasked, where it is not for the tools to say."""
    project = _Project(path, text, load_toml(path, text))
    return project.sheet(tuple(normalized(name) for name in chosen if name != EVERYTHING), EVERYTHING in chosen, groups)


class _Project:
    """The tables of one file."""

    def __init__(self, path: Path, text: str, content: Table) -> None:
        self.path, self.content, self.places = path, content, Places(text)
        self.folder = path.resolve().parent
        self.project = self._table(content, "project")
        self.tool = self._table(content, "tool")
        self.poetry = self._table(self.tool, "poetry", "tool.poetry")
        self.uv = self._table(self.tool, "uv", "tool.uv")
        self.pixi = self._table(self.tool, "pixi", "tool.pixi")
        self.groups = {
            normalized(name): (name, items) for name, items in self._table(content, "dependency-groups").items()
        }
        self.included: set[str] = set()  # groups that others took in
        self.notes: list[str] = []
        self.facts: list[Any] = []

    def sheet(self, chosen: tuple[str, ...], everything: bool, unasked: Sequence[str] | None) -> Manifest:
        if "project" not in self.content and not (self.poetry or self.groups or self.pixi):
            raise fault(self.path, None, "it has no `[project]`", "name the lock file or the requirements instead")
        optional = dict(self._optional())
        strangers = [name for name in chosen if name not in optional]
        if strangers:
            known = ", ".join(sorted(optional)) or "none"
            raise fault(self.path, None, f"it has no extra and no group `{strangers[0]}`", f"it has: {known}")
        default = [name for name in (self._default_groups() if unasked is None else unasked) if name in optional]
        entries = list(self._always())
        taken = dict.fromkeys([*default, *chosen, *(optional if everything else ())])
        for name in taken:
            entries += optional[name]()
        left = [name for name in optional if name not in taken and name not in self.included]
        if left and not chosen and not everything and not _speaks(entries):
            more = [entry for name in left for entry in optional[name]()]
            if _speaks(more):
                entries += agreed(more, "the extras and groups of")
                self.notes.append(
                    f"{self.path}: a plain install brings nothing of the stack: every extra and group was read"
                )
                taken, left = dict.fromkeys(optional), []
        if left:
            shown = ", ".join(left[:6]) + (" …" if len(left) > 6 else "")
            self.notes.append(
                f"{self.path}: extras and groups that no plain install brings were left out: {shown} "
                f"(`{self.path.name}[{left[0]}]` reads one)"
            )
        entries, facts = uv_project.applied(self.path, self.uv, entries, tuple(taken), self.places, self.notes)
        python = self.project.get("requires-python")
        wanted = python if isinstance(python, str) else poetry_project.python_of(self.poetry)
        return Manifest(tuple(entries), (*self.facts, *facts), False, wanted, tuple(dict.fromkeys(self.notes)))

    def _always(self) -> Iterator[DeclaredRequirement]:
        """The dependencies of every install."""
        yield from self._listed(self.project.get("dependencies"), "project", "dependencies")
        dynamic = self.project.get("dynamic")
        if isinstance(dynamic, list) and "dependencies" in dynamic and not self.poetry:
            yield from self._from_files()
        yield from poetry_project.dependencies(
            self.path, self.poetry.get("dependencies"), "tool.poetry.dependencies", self.places, self.notes
        )
        self.facts += poetry_project.facts(self.path, self.poetry, self.places)
        sheet = pixi_project.tables(self.path, self.pixi, "tool.pixi", self.places)
        self.notes += sheet.notes
        self.facts += sheet.facts
        yield from sheet.entries

    def _optional(self) -> Iterator[tuple[str, Any]]:
        """(name of an extra or a group, what reads it)."""
        for name, items in self._table(self.project, "optional-dependencies", "project.optional-dependencies").items():
            where = ("project.optional-dependencies", name)
            yield normalized(name), lambda items=items, where=where: list(self._listed(items, *where))
        for name in self.groups:
            yield name, lambda name=name: list(self._group(name, ()))
        for name, table in self._table(self.poetry, "group", "tool.poetry.group").items():
            header = f"tool.poetry.group.{name}.dependencies"
            listed = table.get("dependencies") if isinstance(table, dict) else None
            yield (
                normalized(name),
                lambda listed=listed, header=header: list(
                    poetry_project.dependencies(self.path, listed, header, self.places, self.notes)
                ),
            )
        pdm = self._table(self.tool, "pdm", "tool.pdm")
        for name, items in self._table(pdm, "dev-dependencies", "tool.pdm.dev-dependencies").items():
            where = ("tool.pdm.dev-dependencies", name)
            yield normalized(name), lambda items=items, where=where: list(self._listed(items, *where))

    def _default_groups(self) -> list[str]:
        """What uv and poetry install unasked."""
        given = self.uv.get("default-groups")
        if given == "all":
            names = list(self.groups)
        elif isinstance(given, list):
            names = [normalized(name) for name in given if isinstance(name, str)]
        else:
            names = ["dev"] if "dev" in self.groups else []
        groups = self._table(self.poetry, "group", "tool.poetry.group")
        names += [
            normalized(name)
            for name, table in groups.items()
            if isinstance(table, dict) and table.get("optional") is not True
        ]
        return names

    def _group(self, name: str, behind: tuple[str, ...]) -> Iterator[DeclaredRequirement]:
        """A dependency group with those it includes."""
        written, items = self.groups[name]
        line = self.places.key("dependency-groups", written)
        if not isinstance(items, list):
            raise fault(self.path, line, f"the group `{written}` needs a list")
        for item in items:
            included = item.get("include-group") if isinstance(item, dict) else None
            if isinstance(item, str):
                line = self.places.text(item, line)
                yield self._requirement(item, line)
            elif isinstance(included, str):
                line = self.places.text(included, line)
                other = normalized(included)
                if other in (*behind, name):
                    ring = " → ".join((*behind, name, other))
                    raise fault(self.path, line, f"the group leads back to where it came from: {ring}")
                if other not in self.groups:
                    raise fault(self.path, line, f"there is no group `{included[:40]}` to include")
                self.included.add(other)
                yield from self._group(other, (*behind, name))
            else:
                raise fault(self.path, line, f"`{str(item)[:60]}` is no requirement", "nor `{include-group = …}`")

    def _listed(self, items: Any, table: str, key: str) -> Iterator[DeclaredRequirement]:
        line = self.places.key(table, key)
        if items is not None and not (isinstance(items, list) and all(isinstance(item, str) for item in items)):
            raise fault(self.path, line, f"`{key}` needs a list of texts")
        for item in items or ():
            line = self.places.text(item, line)
            yield self._requirement(item, line)

    def _requirement(self, text: str, line: int) -> DeclaredRequirement:
        if not text.strip() or text.lstrip().startswith("-"):
            raise fault(self.path, line, f"`{text[:60]}` is no requirement")
        reader = Reader(self.folder)
        reader.line(text.strip(), self.path, line, self.places.raw(line))
        self.notes += reader.notes
        if not reader.entries:
            raise fault(self.path, line, f"`{text[:60]}` is no requirement")
        return reader.entries[0]

    def _from_files(self) -> Iterator[DeclaredRequirement]:
        """`dynamic`: setuptools may read the dependencies from files; anything else is made by the build."""
        setuptools = self._table(self.tool, "setuptools", "tool.setuptools")
        dynamic = self._table(setuptools, "dynamic", "tool.setuptools.dynamic")
        given = dynamic.get("dependencies")
        names = given.get("file") if isinstance(given, dict) else None
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            line = self.places.key("project", "dynamic")
            raise fault(self.path, line, "the dependencies are made by the build", "name its requirements file")
        reader = Reader(project_top(self.path))
        line = self.places.key("tool.setuptools.dynamic", "dependencies")
        for name in names:
            target = self.path.parent / name
            if not _within(target, project_top(self.path)):
                raise fault(self.path, line, f"`{name[:60]}` leads out of the project")
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


def _within(path: Path, top: Path) -> bool:
    try:
        return path.resolve().is_relative_to(top)
    except (OSError, ValueError, RuntimeError):
        return False


def _speaks(entries: Sequence[DeclaredRequirement]) -> bool:
    """Whether anything of the attention stack is among them."""

    watched = set(load_rulebook().watched_distributions)
    return any(entry.name in watched for entry in entries)
