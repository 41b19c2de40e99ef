"""pyproject.toml edited in place: PEP 621, dependency groups, `[tool.uv]`, and poetry's tables where they are plain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..declared.interface import Entry, fault, normalized
from ..declared.markers import judge, pythons_of
from ..declared.tomltext import load_toml
from ..errors import DoctorError
from ..release_index import Platform, admits, load_index
from .files import SourceFile
from .goals import Goal, Goals
from .lines import newline_of
from .spec import Edit, apply, changes, take_apart
from .toml import Key, Places, Token, more_items, token_at, tokens, without_item

_POETRY_EXACT = re.compile(r"\s*(?:==?)?\s*(?P<version>\d[\w.+!-]*)\s*")
_CUDA = re.compile(r"cu\d{3}")
_UV_LISTS = ("dev-dependencies", "constraint-dependencies", "override-dependencies")


class Pyproject:
    """One pyproject.toml under edit."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.content = load_toml(source.path, source.text)
        self.places = Places(source.path, source.text)
        self.edits: list[Edit] = []
        self.platforms: tuple[Platform, ...] = ()
        self.named: dict[str, tuple[Key, Token] | None] = {}  # package → the last item that counts here
        self.elsewhere: set[str] = set()

    @property
    def text(self) -> str:
        """What it is to become."""
        return apply(self.source.text, self.edits)

    def edit(self, goals: Goals) -> None:
        """Every requirement and index that the fix changes."""
        wanted = _at(self.content, ("project", "requires-python"))
        served = pythons_of(wanted) if isinstance(wanted, str) else ()
        likely = tuple(machine for machine in goals.platforms if machine.python in served)
        self.platforms = likely or goals.platforms
        for key, items in _lists(self.content):
            if any(isinstance(item, str) for item in items):
                self._list(key, goals)
        for key, name, value in _poetry(self.content):
            if name in goals.items:
                self._poetry(key, goals.items[name], value, goals)
        self._indexes(goals)
        self._check_python(goals)

    def _list(self, key: Key, goals: Goals) -> None:
        span = self.places.span(key)
        for token in tokens(self.source.text, *span):
            raw = self.source.text[slice(*token.inner)]
            number = self.source.text.count("\n", 0, token.start) + 1
            parts = take_apart(raw)
            if parts is None:
                continue
            marker = parts.marker.replace('\\"', '"') if parts.marker else None
            if judge(Entry(parts.name, str(self.source.path), number, marker=marker), self.platforms) is False:
                self.elsewhere.add(parts.name)
                continue
            try:
                made = changes(raw, parts, goals)
            except DoctorError as problem:
                raise fault(self.source.path, number, problem.message, problem.hint) from None
            if made is None:
                self.edits.append(Edit(*without_item(self.source.text, span, token), ""))
                goals.say(f"{self.source.path}:{number}: `{parts.name}` is taken out: {goals.items[parts.name].why}")
                continue
            if key[-1] not in _UV_LISTS[1:]:
                self.named[parts.name] = (key, token)
            start = token.inner[0]
            self.edits += [Edit(start + edit.start, start + edit.end, edit.text) for edit in made]

    def _poetry(self, key: Key, goal: Goal, value: Any, goals: Goals) -> None:
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

    def _indexes(self, goals: Goals) -> None:
        renamed: dict[str, str] = {}
        for key, url in _addresses(self.content):
            other = goals.index(url)
            if other == url:
                continue
            self._replace(key, other)
            goals.say(f"{self.source.path}: the index is that of the build which was judged, {goals.tag}")
            name = _at(self.content, (*key[:-1], "name"))
            if isinstance(name, str) and goals.tag and _CUDA.search(name):
                renamed[name] = _CUDA.sub(goals.tag, name)
                self._replace((*key[:-1], "name"), renamed[name])
        for key, value in _references(self.content):
            if value in renamed:
                self._replace(key, renamed[value])

    def _replace(self, key: Key, text: str) -> None:
        token = token_at(self.source.text, self.places.span(key)[0])
        self.edits.append(Edit(*token.inner, text))

    @property
    def has_index(self) -> bool:
        """Whether it names an index of PyTorch's for some CUDA."""
        return any(re.search(r"/cu\d{3}", url) for _, url in _addresses(self.content))

    def add_index(self, url: str, packages: list[str], goals: Goals) -> None:
        """The index of another torch build as one of uv's, for these packages alone."""
        name = f"pytorch-{goals.tag or 'build'}"
        newline = newline_of(self.source.text)
        present = _at(self.content, ("tool", "uv", "sources"))
        lines = [f'{package} = {{ index = "{name}" }}' for package in packages if package not in (present or {})]
        entry = ["[[tool.uv.index]]", f'name = "{name}"', f'url = "{url}"', "explicit = true"]
        if isinstance(present, dict) and present and not isinstance(_at(self.content, ("tool", "uv")), list):
            first = self.places.row(self.places.span(("tool", "uv", "sources", next(iter(present))))[0])[0]
            self.edits.append(Edit(first, first, "".join(line + newline for line in lines)))
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
        return isinstance(project, dict) and "dependencies" not in (project.get("dynamic") or ())

    def add(self, wanted: Sequence[Goal], related: str | None) -> None:
        """More dependencies: behind a related one, else behind all."""
        items = []
        for goal in wanted:
            marker = "; sys_platform == 'linux'" if goal.package in self.elsewhere else ""
            items.append((f'"{goal.package}{goal.extra}=={goal.version}{marker}"', f"attn-doctor: {goal.why}"))
        newline = newline_of(self.source.text)
        place = self.named.get(related) if related else None
        key, after = place if place else (("project", "dependencies"), None)
        if _at(self.content, key) is None:
            row = self._after_head()
            self.edits.append(Edit(row, row, f"dependencies = [{', '.join(item for item, _ in items)}]{newline}"))
            return
        span = self.places.span(key)
        if after is None:
            after = next(iter(reversed(tokens(self.source.text, *span))), None)
        if after is not None and any(edit.start <= after.start and after.end <= edit.end for edit in self.edits):
            after = None  # it goes itself
        self.edits += more_items(self.source.text, span, after, items, newline)

    def _after_head(self) -> int:
        """Behind the line of the project's name, or of what it says first."""
        project: Mapping[str, Any] = self.content["project"]
        plain = [name for name in ("requires-python", "version", "name") if isinstance(project.get(name), str)]
        if not plain:
            raise DoctorError(f"`{self.source.path}` has no `dependencies`, nor a name to put them behind")
        return self.places.row(self.places.span(("project", plain[0]))[1])[1]

    def _check_python(self, goals: Goals) -> None:
        """Say so where the project admits a Python that a new release does not run on: no resolver would lock that."""
        wanted = _at(self.content, ("project", "requires-python"))
        for goal in goals.items.values() if isinstance(wanted, str) else ():
            release = load_index().release(goal.package, goal.version) if goal.version else None
            lost = [python for python in pythons_of(wanted) if release and not admits(release.requires_python, python)]
            if goal.named and release and lost:
                minor = ".".join(lost[0].split(".")[:2])
                goals.say(
                    f"{self.source.path}: `requires-python = \"{wanted}\"` admits Python {minor}, and "
                    f"`{goal.package}` {goal.version} wants {release.requires_python}"
                )  # fmt: skip


def _at(content: Any, key: Key) -> Any:
    for name in key:
        if isinstance(content, dict):
            content = content.get(name)
        elif isinstance(content, list) and isinstance(name, int) and name < len(content):
            content = content[name]
        else:
            return None
    return content


def _lists(content: Mapping[str, Any]) -> Iterator[tuple[Key, list[Any]]]:
    """Every list of requirements, and where it is."""
    keys: list[Key] = [("project", "dependencies")]
    for parent in (("project", "optional-dependencies"), ("dependency-groups",)):
        table = _at(content, parent)
        keys += [(*parent, name) for name in table] if isinstance(table, dict) else []
    keys += [("tool", "uv", name) for name in _UV_LISTS]
    for key in keys:
        found = _at(content, key)
        if isinstance(found, list):
            yield key, found


def _poetry(content: Mapping[str, Any]) -> Iterator[tuple[Key, str, Any]]:
    poetry: Key = ("tool", "poetry")
    groups = _at(content, (*poetry, "group"))
    tables: list[Key] = [(*poetry, "dependencies"), (*poetry, "dev-dependencies")]
    tables += [(*poetry, "group", name, "dependencies") for name in groups] if isinstance(groups, dict) else []
    for key in tables:
        table = _at(content, key)
        for name, value in table.items() if isinstance(table, dict) else ():
            if name != "python":
                yield (*key, name), normalized(name), value


def _holds(item: Mapping[str, Any], platforms: Sequence[Platform]) -> bool | None:
    """Whether poetry takes this of several entries on the machines in question."""
    marker = item.get("markers")
    if isinstance(item.get("platform"), str):
        marker = f"sys_platform == '{item['platform']}'" + (f" and ({marker})" if marker else "")
    return judge(Entry("", "pyproject.toml", 0, marker=marker), platforms) if isinstance(marker, str) else None


def _addresses(content: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Every address of an index."""
    for key in (("tool", "uv", "index"), ("tool", "poetry", "source")):
        for number, table in enumerate(_at(content, key) or ()):
            if isinstance(table, dict) and isinstance(table.get("url"), str):
                yield (*key, number, "url"), table["url"]
    for above in (("tool", "uv"), ("tool", "uv", "pip")):
        url, more = _at(content, (*above, "index-url")), _at(content, (*above, "extra-index-url"))
        if isinstance(url, str):
            yield (*above, "index-url"), url
        for number, item in enumerate(more if isinstance(more, list) else ()):
            yield (*above, "extra-index-url", number), str(item)


def _references(content: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Every place that names an index."""
    sources = _at(content, ("tool", "uv", "sources"))
    for name, value in sources.items() if isinstance(sources, dict) else ():
        yield from _named(("tool", "uv", "sources", name), value, "index")
    for key, _, value in _poetry(content):
        yield from _named(key, value, "source")


def _named(key: Key, value: Any, word: str) -> Iterator[tuple[Key, str]]:
    if isinstance(value, dict) and isinstance(value.get(word), str):
        yield (*key, word), value[word]
    for number, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict) and isinstance(item.get(word), str):
            yield (*key, number, word), item[word]
