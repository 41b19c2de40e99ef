"""What a pyproject.toml holds that an edit looks at, each with the keys that lead to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.utils import canonicalize_name

from .toml import Key

#: Lists of requirements in `[tool.uv]`; the last two bind only what something else requires.
UV_LISTS = ("dev-dependencies", "constraint-dependencies", "override-dependencies")


def keys_of(content: Mapping[str, Any]) -> Iterator[Key]:
    """Every place that an edit may have to find."""
    project = content.get("project")
    for name in ("requires-python", "version", "name"):
        if isinstance(project, dict) and isinstance(project.get(name), str):
            yield "project", name
    yield from (key for key, _ in lists_of(content))
    python = ("tool", "poetry", "dependencies", "python")
    if isinstance(value_at(content, python), str):
        yield python
    for key, _, value in poetry_of(content):
        for number, item in enumerate(value) if isinstance(value, list) else ((None, value),):
            own: Key = key if number is None else (*key, number)
            if isinstance(item, str):
                yield own
            elif isinstance(item, dict) and isinstance(item.get("version"), str):
                yield (*own, "version")
    for key, _ in addresses_of(content):
        yield key
        if isinstance(value_at(content, (*key[:-1], "name")), str):
            yield (*key[:-1], "name")
    yield from (key for key, _ in references_of(content))


def value_at(content: Any, key: Key) -> Any:
    """Return the value of a key; None where it has none."""
    for name in key:
        if isinstance(content, dict):
            content = content.get(name)
        elif isinstance(content, list) and isinstance(name, int) and name < len(content):
            content = content[name]
        else:
            return None
    return content


def rank_of(key: Key) -> int:
    """How near a list is to what the project always needs."""
    return 0 if key == ("project", "dependencies") else 1 if key[0] == "project" else 2


def lists_of(content: Mapping[str, Any]) -> Iterator[tuple[Key, list[Any]]]:
    """Every list of requirements, and where it is."""
    keys: list[Key] = [("project", "dependencies")]
    for parent in (("project", "optional-dependencies"), ("dependency-groups",)):
        table = value_at(content, parent)
        keys += [(*parent, name) for name in table] if isinstance(table, dict) else []
    keys += [("tool", "uv", name) for name in UV_LISTS]
    for key in keys:
        found = value_at(content, key)
        if isinstance(found, list):
            yield key, found


def poetry_of(content: Mapping[str, Any]) -> Iterator[tuple[Key, str, Any]]:
    """Every dependency in poetry's own tables: where it is, its name, and what it says."""
    poetry: Key = ("tool", "poetry")
    groups = value_at(content, (*poetry, "group"))
    tables: list[Key] = [(*poetry, "dependencies"), (*poetry, "dev-dependencies")]
    tables += [(*poetry, "group", name, "dependencies") for name in groups] if isinstance(groups, dict) else []
    for key in tables:
        table = value_at(content, key)
        for name, value in table.items() if isinstance(table, dict) else ():
            if name != "python":
                yield (*key, name), canonicalize_name(name), value


def addresses_of(content: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Every address of an index."""
    for key in (("tool", "uv", "index"), ("tool", "poetry", "source")):
        for number, table in enumerate(value_at(content, key) or ()):
            if isinstance(table, dict) and isinstance(table.get("url"), str):
                yield (*key, number, "url"), table["url"]
    for above in (("tool", "uv"), ("tool", "uv", "pip")):
        url, more = value_at(content, (*above, "index-url")), value_at(content, (*above, "extra-index-url"))
        if isinstance(url, str):
            yield (*above, "index-url"), url
        for number, item in enumerate(more if isinstance(more, list) else ()):
            yield (*above, "extra-index-url", number), str(item)


def references_of(content: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Every place that names an index."""
    sources = value_at(content, ("tool", "uv", "sources"))
    for name, value in sources.items() if isinstance(sources, dict) else ():
        yield from _named(("tool", "uv", "sources", name), value, "index")
    for key, _, value in poetry_of(content):
        yield from _named(key, value, "source")


def _named(key: Key, value: Any, word: str) -> Iterator[tuple[Key, str]]:
    if isinstance(value, dict) and isinstance(value.get(word), str):
        yield (*key, word), value[word]
    for number, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict) and isinstance(item.get(word), str):
            yield (*key, number, word), item[word]
