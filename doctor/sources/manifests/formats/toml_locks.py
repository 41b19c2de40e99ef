"""Lock files in TOML: pdm.lock, poetry.lock, pylock.toml (PEP 751) and uv.lock."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from doctor.errors import fault
from doctor.model import TORCH, Fact
from doctor.sources.manifests.base import DeclaredRequirement, Manifest, checked_version, cuda_of_index, overridden
from doctor.sources.manifests.formats.uv_conflicts import ChosenExtras, chosen_extras
from doctor.sources.watch import Watch
from doctor.util.redact import shortened
from doctor.util.toml_text import Tables, load_toml, tables, text_at

Table = dict[str, Any]
#: Markers of which all must hold.
Way = frozenset[str]
_DEVELOPMENT = re.compile(r"dev|\+")  # what says itself that it is no release
_MOST_PATHS = 16  # different conditions under which one package is reached; with more, it counts as always installed


@dataclass(frozen=True)
class _Format:
    """How one format spells the fields of a package."""

    section: str
    index: Callable[[Table], object]  # where it comes from: an address
    marker: Callable[[Table, int], str | None] = lambda table, number: _text(table.get("marker"))
    skip: Callable[[Table], bool] = lambda table: False


def read_pdm(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the packages of every group."""
    content = load_toml(path, text)
    metadata = content.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise fault(path, None, "`metadata` needs to be a table")
    spelling = _Format("package", _pdm_index, skip=lambda table: "path" in table and "version" not in table)
    return _read_lock(path, text, content, spelling, _pdm_python(metadata or {}))


def read_poetry(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the packages, except optional ones: these belong to extras."""
    content = load_toml(path, text)
    python = _text(_table(content, "metadata").get("python-versions")) or ""
    spelling = _Format(
        "package", lambda table: _table(table, "source").get("url"), _poetry_marker,
        lambda table: table.get("optional") is True,
    )  # fmt: skip
    return _read_lock(path, text, content, spelling, "" if set(python) & set("^|*") else python)


def read_pylock(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the packages; each has a marker where it is not always installed."""
    content = load_toml(path, text)
    version = content.get("lock-version")
    if not isinstance(version, str) or version.partition(".")[0] != "1":
        raise fault(path, None, f"`lock-version` needs 1.x, found `{shortened(str(version), 20)}`")
    spelling = _Format("packages", lambda table: table.get("index"))
    return _read_lock(path, text, content, spelling, _text(content.get("requires-python")) or "")


def read_uv(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the packages, except the project itself, each with the markers under which it is installed."""
    content = load_toml(path, text)
    chosen = chosen_extras(content)
    conditions = _uv_conditions([table for _, table in tables(path, content, "package")], chosen)
    spelling = _Format(
        "package", lambda table: _table(table, "source").get("registry"),
        lambda table, number: _both(_uv_fork(table, chosen), conditions[number]), _is_uv_project,
    )  # fmt: skip
    manifest = _read_lock(path, text, content, spelling, _text(content.get("requires-python")) or "")
    if names := _uv_overrides(content):
        manifest = replace(manifest, facts=(*manifest.facts, overridden(names, str(path))))
    return manifest if chosen.note is None else replace(manifest, notes=(*manifest.notes, f"{path}: {chosen.note}"))


def _uv_overrides(content: Table) -> list[str]:
    """Return the packages that the project overrides, as the lock repeats them."""
    listed = _table(content, "manifest").get("overrides")
    names = [_text(item.get("name")) for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return [canonicalize_name(name) for name in names if name]


def _read_lock(path: Path, text: str, content: Table, spelling: _Format, requires_python: str) -> Manifest:
    lines = Tables(text, spelling.section)
    entries: list[DeclaredRequirement] = []
    facts: list[Fact] = []
    for number, table in tables(path, content, spelling.section):
        line = lines.line_of(number, "version")
        given, version = text_at(path, line, table, "name"), text_at(path, line, table, "version")
        if not given:
            raise fault(path, line, "a package has no `name`")
        if spelling.skip(table):
            continue
        name = canonicalize_name(given)
        repository = _repository(table)
        commit = _commit_of(repository, version) if repository and version else None
        problem = None
        if not version:
            problem = f"{path}:{line} gives no version"
        elif commit:
            problem = f"{path}:{line} is {commit}, which calls itself {version}"
        entries.append(
            DeclaredRequirement(
                name,
                str(path),
                line,
                range=f"=={version}" if version and not commit else "",
                version=None if version is None or commit else checked_version(version, path, line),
                marker=spelling.marker(table, number),
                raw=lines.text_of(line),
                locked=True,
                problem=problem,
                source=repository is not None,
            )
        )
        cuda = cuda_of_index(_text(spelling.index(table)) or "")
        if name == TORCH and cuda and version and "+" not in version:
            facts.append(Fact("torch.cuda", cuda, f"{path}:{line}"))
    if not entries:
        raise fault(path, None, f"it has no `[[{spelling.section}]]`, so nothing is locked")
    return Manifest(tuple(entries), tuple(facts), True, requires_python)


def _commit_of(repository: tuple[str, str], version: str) -> str | None:
    """Return the commit that a package is taken from; None for a development version, or a tag that names the version.

    A commit after a release has the version of that release and other code.
    """
    url, wanted = repository
    if version in wanted or _DEVELOPMENT.search(version):
        return None
    return f"a commit of `{shortened(url.partition('?')[0], 80)}`"


def _repository(table: Table) -> tuple[str, str] | None:
    """Return (address, tag or branch or commit that was requested) of a package from a repository."""
    source = _table(table, "source")
    if isinstance(source.get("git"), str):  # uv: https://h/r?tag=v1#commit
        return source["git"], source["git"].partition("#")[0].partition("?")[2]
    if source.get("type") == "git":  # poetry
        return str(source.get("url")), str(source.get("reference"))
    if isinstance(table.get("git"), str):  # pdm
        return table["git"], str(table.get("ref"))
    if (vcs := _table(table, "vcs")).get("url"):  # pylock
        return str(vcs["url"]), str(vcs.get("requested-revision"))
    return None


def _pdm_python(metadata: Table) -> str:
    targets = metadata.get("targets")
    for table in targets if isinstance(targets, list) else []:
        python = _text(table.get("requires_python")) if isinstance(table, dict) else None
        if python and str(table.get("platform", "linux")).startswith(("linux", "manylinux")):
            return python
    return ""


def _pdm_index(table: Table) -> object:
    """Return the address of the first file, in a lock that keeps addresses."""
    if isinstance(table.get("url"), str):
        return table["url"]
    files = table.get("files")
    first = files[0] if isinstance(files, list) and files else None
    return first.get("url") if isinstance(first, dict) else None


def _poetry_marker(table: Table, number: int) -> str | None:
    """Return one marker, or one for each group joined by `or`."""
    markers = table.get("markers")
    if isinstance(markers, dict):
        markers = " or ".join(f"({marker})" for marker in markers.values())
    return _text(markers)


def _is_uv_project(table: Table) -> bool:
    return bool({"virtual", "editable", "directory"} & set(_table(table, "source")))


def _uv_fork(table: Table, chosen: ChosenExtras) -> str | None:
    """Return the markers of the forks of the resolution that chose this release; any of them is enough."""
    markers = table.get("resolution-markers")
    if not isinstance(markers, list) or not markers:
        return None
    return " or ".join(f"({chosen.marker(str(marker)) or marker})" for marker in markers)


def _both(first: str | None, second: str | None) -> str | None:
    return f"({first}) and ({second})" if first and second else first or second


# --- under which markers the projects of a uv.lock reach a package ----------------------------------------------------


def _uv_conditions(packages: list[Table], chosen: ChosenExtras) -> list[str | None]:
    """Return for each package the marker under which a project of the lock requires it, None where it always does.

    uv resolves for all platforms at once. The wheels for another platform are in the lock, reached only over
    dependencies whose markers do not hold here, or over an extra that conflicts with a chosen one.
    """
    numbers: dict[str, list[int]] = {}
    for number, table in enumerate(packages):
        numbers.setdefault(str(table.get("name")), []).append(number)
    always: Way = frozenset()
    reached: dict[tuple[int, str], set[Way]] = {}  # (package, extra or "") -> ways to it
    queue: deque[tuple[int, str, Way]] = deque()

    def reach(number: int, extra: str, markers: Way) -> None:
        ways = reached.setdefault((number, extra), set())
        if any(way <= markers for way in ways):
            return
        ways -= {way for way in ways if markers < way}
        if len(ways) >= _MOST_PATHS:
            ways.clear()
            markers = always
        ways.add(markers)
        queue.append((number, extra, markers))

    for number, table in enumerate(packages):
        if _is_uv_project(table):
            for extra in ("", *_table(table, "optional-dependencies"), *_table(table, "dev-dependencies")):
                if (str(table.get("name")), extra) not in chosen.left_out:
                    reach(number, extra, always)
    while queue:
        number, extra, markers = queue.popleft()
        for edge in _uv_edges(packages[number], extra):
            marker = chosen.marker(_text(edge.get("marker")) or "")
            way = markers | {marker} if marker else markers
            for target in numbers.get(str(edge.get("name")), ()):
                if edge.get("version") in (None, packages[target].get("version")):
                    for wanted in ("", *_texts(edge.get("extra"))):
                        reach(target, wanted, way)
    unreached = chosen.never() if chosen.left_out else None
    return [_any_of(reached[number, ""]) if (number, "") in reached else unreached for number in range(len(packages))]


def _uv_edges(table: Table, extra: str) -> Iterator[Table]:
    listed: list[Any] = []
    if not extra:
        listed = [table.get("dependencies")]
    else:
        listed = [_table(table, section).get(extra) for section in ("optional-dependencies", "dev-dependencies")]
    for edges in listed:
        yield from (edge for edge in (edges if isinstance(edges, list) else []) if isinstance(edge, dict))


def _any_of(ways: set[Way]) -> str | None:
    if not all(ways):
        return None
    return " or ".join(sorted(" and ".join(f"({marker})" for marker in sorted(way)) for way in ways))


def _table(parent: Mapping[str, Any], key: str) -> Table:
    found = parent.get(key)
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
