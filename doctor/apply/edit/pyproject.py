"""pyproject.toml edited in place: PEP 621, dependency groups, `[tool.uv]`, and poetry's tables where they are plain."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from doctor.errors import DoctorError, fault
from doctor.packages.index import load_index
from doctor.packages.platform import Platform
from doctor.packages.specifiers import admits
from doctor.sources.manifests.base import DeclaredRequirement
from doctor.sources.manifests.markers import applies, pythons_of
from doctor.util.toml_text import load_toml

from .changes import ChangeSet, PackageChange
from .files import SourceFile
from .lines import newline_of
from .specifier import Edit, apply, changes, take_apart
from .toml import Key, Places, Token, more_items, token_at, tokens, without_item
from .toml_tables import UV_LISTS, addresses_of, keys_of, lists_of, poetry_of, rank_of, references_of, value_at

_POETRY_EXACT = re.compile(r"\s*(?:==?)?\s*(?P<version>\d[\w.+!-]*)\s*")
_POETRY = ("tool", "poetry", "dependencies")
_SOURCES = re.compile(r"^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*uv[ \t]*\.[ \t]*sources[ \t]*\][^\n]*\n", re.MULTILINE)
_CUDA = re.compile(r"cu\d{3}")


class Pyproject:
    """One pyproject.toml under edit."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.content = load_toml(source.path, source.text)
        self.places = Places(source.path, source.text, keys_of(self.content))
        self.edits: list[Edit] = []
        self.platforms: tuple[Platform, ...] = ()
        self.named: dict[str, tuple[Key, Token] | None] = {}  # package → the first item that counts here
        self.elsewhere: set[str] = set()
        self.anchors: dict[str, Token] = {}

    @property
    def text(self) -> str:
        """What it is to become."""
        return apply(self.source.text, self.edits)

    def edit(self, goals: ChangeSet) -> None:
        """Every requirement and index that the fix changes."""
        wanted = value_at(self.content, ("project", "requires-python"))
        served = pythons_of(wanted) if isinstance(wanted, str) else ()
        likely = tuple(machine for machine in goals.platforms if machine.python in served)
        self.platforms = likely or goals.platforms
        self.anchors = self._anchors()
        for key, items in lists_of(self.content):
            if any(isinstance(item, str) for item in items):
                self._list(key, goals)
        for key, name, value in poetry_of(self.content):
            if name in goals.items and goals.items[name].range is None:
                self._poetry(key, goals.items[name], value, goals)
        self._indexes(goals)
        self._check_python(goals)

    def _list(self, key: Key, goals: ChangeSet) -> None:
        span = self.places.span(key)
        for token in tokens(self.source.text, *span):
            raw = self.source.text[slice(*token.inner)]
            number = self.source.text.count("\n", 0, token.start) + 1
            parts = take_apart(raw)
            if parts is None:
                continue
            marker = parts.marker.replace('\\"', '"') if parts.marker else None
            if (
                applies(DeclaredRequirement(parts.name, str(self.source.path), number, marker=marker), self.platforms)
                is False
            ):
                self.elsewhere.add(parts.name)
                continue
            loose = parts.name in self.anchors and self.anchors[parts.name] != token
            try:
                made = changes(raw, parts, goals, loose)
            except DoctorError as problem:
                raise fault(self.source.path, number, problem.message, problem.hint) from None
            if made is None:
                self.edits.append(Edit(*without_item(self.source.text, span, token), ""))
                goals.say(f"{self.source.path}:{number}: `{parts.name}` is taken out: {goals.items[parts.name].why}")
                continue
            if key[-1] not in UV_LISTS[1:]:
                self.named.setdefault(parts.name, (key, token))
            start = token.inner[0]
            self.edits += [Edit(start + edit.start, start + edit.end, edit.text) for edit in made]

    def _anchors(self) -> dict[str, Token]:
        """Package → the dependency that says its version for every extra and group too."""
        key = ("project", "dependencies")
        if not isinstance(value_at(self.content, key), list):
            return {}
        found: dict[str, Token] = {}
        for token in tokens(self.source.text, *self.places.span(key)):
            parts = take_apart(self.source.text[slice(*token.inner)])
            if parts is not None and parts.marker is None:
                found.setdefault(parts.name, token)
        return found

    def _poetry(self, key: Key, goal: PackageChange, value: Any, goals: ChangeSet) -> None:
        tables = value if isinstance(value, list) else [value]
        for number, item in enumerate(tables):
            own: Key = (*key, number) if isinstance(value, list) else key
            if isinstance(item, dict):
                if _holds(item, self.platforms) is False:
                    self.elsewhere.add(goal.package)
                    continue
                own = (*own, "version")
            self.named[goal.package] = None
            version = item.get("version") if isinstance(item, dict) else item
            if goal.version is None or not isinstance(version, str):
                raise DoctorError(
                    f"`{self.source.path}`: `{'.'.join(map(str, key))}` cannot be edited here",
                    f"the fix wants {f'{goal.package} {goal.version}' if goal.version else f'`{goal.package}` gone'}",
                )
            exact = _POETRY_EXACT.fullmatch(version)
            if (exact and goals.same(exact["version"], goal.version)) or not (goal.named or exact):
                continue
            start = token_at(self.source.text, self.places.span(own)[0]).inner[0]
            where = exact.span("version") if exact else (0, len(version))
            self.edits.append(Edit(start + where[0], start + where[1], goal.version))

    # --- indexes ----------------------------------------------------------------------------------------------------

    def _indexes(self, goals: ChangeSet) -> None:
        renamed: dict[str, str] = {}
        serving = {key: url for key, url in addresses_of(self.content) if self._serves_torch(key)}
        for key, other in goals.indexes(serving, str(self.source.path)).items():
            self._replace(key, other)
            name = value_at(self.content, (*key[:-1], "name"))
            if isinstance(name, str) and goals.tag and _CUDA.search(name):
                renamed[name] = _CUDA.sub(goals.tag, name)
                self._replace((*key[:-1], "name"), renamed[name])
        for key, value in references_of(self.content):
            if value in renamed:
                self._replace(key, renamed[value])

    def _serves_torch(self, key: Key) -> bool:
        """Whether torch may come from this index: where sources say so, only from those they name."""
        named = {value for at, value in references_of(self.content) if "torch" in at}
        name = value_at(self.content, (*key[:-1], "name"))
        return not named or name in named

    def _replace(self, key: Key, text: str) -> None:
        token = token_at(self.source.text, self.places.span(key)[0])
        self.edits.append(Edit(*token.inner, text))

    @property
    def has_index(self) -> bool:
        """Whether it names an index of PyTorch's for some CUDA."""
        return any(re.search(r"/cu\d{3}", url) for _, url in addresses_of(self.content))

    def add_index(self, url: str, packages: list[str], goals: ChangeSet) -> None:
        """The index of another torch build as one of uv's, for these packages alone."""
        name = f"pytorch-{goals.tag or 'build'}"
        newline = newline_of(self.source.text)
        present = value_at(self.content, ("tool", "uv", "sources"))
        lines = [f'{package} = {{ index = "{name}" }}' for package in packages if package not in (present or {})]
        entry = ["[[tool.uv.index]]", f'name = "{name}"', f'url = "{url}"', "explicit = true"]
        header = _SOURCES.search(self.source.text)
        if header:
            self.edits.append(Edit(header.end(), header.end(), "".join(line + newline for line in lines)))
        elif present:
            goals.say(f"{self.source.path}: say in `tool.uv.sources`: {', '.join(lines)}")
        else:
            entry += ["", "[tool.uv.sources]", *lines]
        end = len(self.source.text)
        lead = newline if self.source.text.endswith("\n") or not self.source.text else newline * 2
        tail = newline if self.source.text.endswith("\n") else ""
        self.edits.append(Edit(end, end, lead + newline.join(entry) + tail))

    # --- what the file does not name --------------------------------------------------------------------------------

    def can_take(self) -> bool:
        """Whether there is a list of dependencies that one can be added to."""
        project = self.content.get("project")
        if project is None:
            return bool(value_at(self.content, _POETRY))
        return isinstance(project, dict) and "dependencies" not in (project.get("dynamic") or ())

    def sibling_of(self, kin: Collection[str]) -> str | None:
        """One of these packages to put another one behind: a dependency of the project rather than an extra's."""
        ranked = {name: rank_of(place[0]) for name, place in self.named.items() if place and name in kin}
        return min(ranked, key=lambda name: ranked[name]) if ranked else None

    def add(self, wanted: Sequence[PackageChange], related: str | None) -> None:
        """More dependencies: behind a related one, else behind all."""
        if "project" not in self.content:
            self._add_to_poetry(wanted)
            return
        items = []
        for goal in wanted:
            marker = "; sys_platform == 'linux'" if goal.package in self.elsewhere else ""
            items.append((f'"{goal.package}{goal.extra}=={goal.version}{marker}"', f"attn-doctor: {goal.why}"))
        newline = newline_of(self.source.text)
        place = self.named.get(related) if related else None
        key, after = place if place else (("project", "dependencies"), None)
        if value_at(self.content, key) is None:
            row = self._after_head()
            self.edits.append(Edit(row, row, f"dependencies = [{', '.join(item for item, _ in items)}]{newline}"))
            return
        span = self.places.span(key)
        if after is None:
            after = next(iter(reversed(tokens(self.source.text, *span))), None)
        if after is not None and any(edit.start <= after.start and after.end <= edit.end for edit in self.edits):
            after = None  # it goes itself
        self.edits += more_items(self.source.text, span, after, items, newline)

    def _add_to_poetry(self, wanted: Sequence[PackageChange]) -> None:
        table, newline = value_at(self.content, _POETRY), newline_of(self.source.text)
        plain = [name for name, value in table.items() if isinstance(value, str)]
        if not plain:
            raise DoctorError(
                f"`{self.source.path}`: `tool.poetry.dependencies` has no plain line to put another behind"
            )
        row = self.places.row(self.places.span((*_POETRY, plain[-1]))[1])[1]
        end = self.source.text[:row].endswith("\n")
        lines = [f'# attn-doctor: {goal.why}{newline}{goal.package} = "{goal.version}"' for goal in wanted]
        block = newline.join(lines)
        self.edits.append(Edit(row, row, block + newline if end else newline + block))

    def _after_head(self) -> int:
        """Behind the line of the project's name, or of what it says first."""
        project: Mapping[str, Any] = self.content["project"]
        plain = [name for name in ("requires-python", "version", "name") if isinstance(project.get(name), str)]
        if not plain:
            raise DoctorError(f"`{self.source.path}` has no `dependencies`, nor a name to put them behind")
        return self.places.row(self.places.span(("project", plain[0]))[1])[1]

    def _check_python(self, goals: ChangeSet) -> None:
        """Say so where the project admits a Python that a new release does not run on: no resolver would lock that."""
        wanted = value_at(self.content, ("project", "requires-python"))
        for goal in goals.items.values() if isinstance(wanted, str) else ():
            release = load_index().release(goal.package, goal.version) if goal.version else None
            lost = [python for python in pythons_of(wanted) if release and not admits(release.requires_python, python)]
            if goal.named and release and lost:
                minor = ".".join(lost[0].split(".")[:2])
                goals.say(
                    f"{self.source.path}: `requires-python = \"{wanted}\"` admits Python {minor}, and "
                    f"`{goal.package}` {goal.version} wants {release.requires_python}"
                )  # fmt: skip


def _holds(item: Mapping[str, Any], platforms: Sequence[Platform]) -> bool | None:
    """Whether poetry takes this of several entries on the machines in question."""
    marker = item.get("markers")
    if isinstance(item.get("platform"), str):
        marker = f"sys_platform == '{item['platform']}'" + (f" and ({marker})" if marker else "")
    return (
        applies(DeclaredRequirement("", "pyproject.toml", 0, marker=marker), platforms)
        if isinstance(marker, str)
        else None
    )
