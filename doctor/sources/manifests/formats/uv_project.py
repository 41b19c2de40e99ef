"""`[tool.uv]` of a pyproject.toml: overrides, constraints, and the sources of single packages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker
from packaging.utils import canonicalize_name

from doctor.errors import fault
from doctor.model import TORCH, Fact
from doctor.packages.platform import Platform
from doctor.packages.requirements import marker_holds, parse_marker
from doctor.sources.manifests.base import DeclaredRequirement, cuda_of_index, overridden, own_builds
from doctor.util.redact import shortened
from doctor.util.toml_text import Places

from .requirements import Reader

Table = dict[str, Any]
#: Settings that let a build see torch, bring a wheel, or leave a package out.
_EXEMPTING = (
    "no-build-isolation", "no-build-isolation-package", "extra-build-dependencies", "find-links", "no-build",
    "no-build-package", "override-dependencies", "exclude-dependencies",
)  # fmt: skip
_PLAIN_INDEXES = ("https://download.pytorch.org/", "https://pypi.org/", "https://pypi.python.org/")


def applied(
    path: Path,
    uv: Table,
    entries: Sequence[DeclaredRequirement],
    taken: tuple[str, ...],
    places: Places,
    notes: list[str],
) -> tuple[list[DeclaredRequirement], list[Fact]]:
    """Return the entries as uv changes them, and torch's CUDA where its index determines it.

    `taken` are the extras and groups in use.
    """
    if not uv:
        return list(entries), []
    overrides = list(_requirements(path, uv, "override-dependencies", places))
    replaced = {entry.name for entry in overrides}
    required = {entry.name for entry in entries}
    whole = [entry for entry in entries if entry.name not in replaced]
    whole += [entry for entry in overrides if entry.name in required]
    whole += [
        replace(entry, constraint=True)
        for entry in (*_requirements(path, uv, "constraint-dependencies", places), *overrides)
        if entry.name not in replaced or entry.name not in required
    ]
    facts = [overridden(replaced, str(path))] if replaced else []
    indexes = _indexes(uv)
    sources = uv.get("sources")
    for name, given in sources.items() if isinstance(sources, dict) else ():
        line = places.key("tool.uv.sources", name)
        tables = [table for table in (given if isinstance(given, list) else [given]) if isinstance(table, dict)]
        chosen = [table for table in tables if _counts(table, taken)]
        if not tables:
            raise fault(path, line, f"the source of `{shortened(name, 40)}` needs a table")
        urls = {
            str(table["index"]): indexes.get(str(table["index"]), str(table["index"]))
            for table in chosen
            if "index" in table
        }
        found = sorted({cuda for url in urls.values() if (cuda := cuda_of_index(url))})
        if canonicalize_name(name) == TORCH and found:
            problem = f"its sources disagree: CUDA {', '.join(found)}" if len(found) > 1 else None
            facts.append(Fact("torch.cuda", None if problem else found[0], f"{path}:{line}", problem=problem))
        facts += own_builds({canonicalize_name(name)}, ((f"{path}:{line}", url) for url in urls.values()))
        whole = [
            _from(path, line, entry, chosen, places, notes) if entry.name == canonicalize_name(name) else entry
            for entry in whole
        ]
    general = _default_indexes(path, uv, places)
    facts += own_builds({entry.name for entry in whole}, general)
    if not any(fact.key == "torch.cuda" for fact in facts):
        found_in = ((place, cuda) for place, url in general if (cuda := cuda_of_index(url)))
        facts += [Fact("torch.cuda", cuda, place) for place, cuda in islice(found_in, 1)]
    return whole, facts


def builds_in_isolation(name: str, uv: Table) -> bool:
    """Return whether uv, like pip, takes the sources of a package and builds them apart from the environment."""
    sources, indexes = uv.get("sources"), uv.get("index")
    tables = indexes if isinstance(indexes, list) else []
    extra = uv.get("extra-index-url")
    urls = [table.get("url") for table in tables if isinstance(table, dict)]
    urls += [uv.get("index-url"), *(extra if isinstance(extra, list) else [extra])]
    return (
        not any(uv.get(key) for key in _EXEMPTING)
        and all(str(url).startswith(_PLAIN_INDEXES) for url in urls if url is not None)
        and name not in {canonicalize_name(key) for key in (sources if isinstance(sources, dict) else ())}
    )


def _from(
    path: Path, line: int, entry: DeclaredRequirement, tables: Sequence[Table], places: Places, notes: list[str]
) -> DeclaredRequirement:
    """Return the entry of a package that comes from an address, a repository or a folder instead of an index."""
    if len(tables) != 1:
        return entry
    table = tables[0]
    address = None
    if isinstance(table.get("url"), str):
        address = table["url"]
    elif isinstance(table.get("git"), str):
        reference = table.get("tag") or table.get("rev") or table.get("branch") or ""
        address = f"git+{table['git']}" + (f"@{reference}" if reference else "")
    elif isinstance(table.get("path"), str) or table.get("workspace") is True:
        problem = f"`{entry.name}` comes from a folder of the project"
        if str(table.get("path", "")).endswith(".whl"):
            address = f"./{str(table['path']).lstrip('./')}"
        elif entry.version is None:
            return replace(entry, problem=problem)
    if address is None:
        return entry
    reader = Reader(path.resolve().parent)
    reader.line(f"{entry.name} @ {address}" if "://" in address else address, path, line, places.raw(line))
    notes += reader.notes
    if not reader.entries:
        return entry
    found = reader.entries[0]
    return replace(found, name=entry.name, extras=entry.extras, marker=entry.marker)


def _counts(table: Table, taken: tuple[str, ...]) -> bool:
    """Return whether a source counts on Linux with the chosen extras and groups."""
    for key in ("extra", "group"):
        if isinstance(table.get(key), str) and canonicalize_name(table[key]) not in taken:
            return False
    marker = table.get("marker")
    if not isinstance(marker, str):
        return True

    try:
        return marker_holds(parse_marker(marker), {**Platform().markers, "extra": ""}) is not False
    except InvalidMarker:
        return True


def _indexes(uv: Table) -> dict[str, str]:
    given = uv.get("index")
    tables = given if isinstance(given, list) else []
    return {
        str(table["name"]): str(table["url"])
        for table in tables
        if isinstance(table, dict) and isinstance(table.get("url"), str) and "name" in table
    }


def _default_indexes(path: Path, uv: Table, places: Places) -> list[tuple[str, str]]:
    """Return the places and addresses of the indexes that serve all packages, not only those that name them."""
    tables = uv.get("index")
    urls = [
        table.get("url")
        for table in (tables if isinstance(tables, list) else [])
        if isinstance(table, dict) and table.get("explicit") is not True
    ]
    extra = uv.get("extra-index-url")
    urls += [uv.get("index-url"), *(extra if isinstance(extra, list) else [extra])]
    return [(f"{path}:{places.text(url, places.key('tool.uv', 'index'))}", url) for url in urls if isinstance(url, str)]


def _requirements(path: Path, uv: Table, key: str, places: Places) -> Iterator[DeclaredRequirement]:
    items = uv.get(key)
    line = places.key("tool.uv", key)
    if items is not None and not (isinstance(items, list) and all(isinstance(item, str) for item in items)):
        raise fault(path, line, f"`{key}` needs a list of strings")
    reader = Reader(path.resolve().parent)
    for item in items or ():
        line = places.text(item, line)
        if not item.strip() or item.lstrip().startswith("-"):
            raise fault(path, line, f"`{shortened(item, 60)}` is not a requirement")
        reader.line(item.strip(), path, line, places.raw(line))
    yield from reader.entries
