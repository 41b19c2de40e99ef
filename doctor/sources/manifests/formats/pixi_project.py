"""pixi.toml, and `[tool.pixi]` of a pyproject.toml: packages of conda and of PyPI, without features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doctor.errors import fault
from doctor.model import Fact
from doctor.sources.manifests.base import DeclaredRequirement, Manifest, cuda_of_index, without_conflicts
from doctor.sources.watch import Watch
from doctor.util.redact import shortened
from doctor.util.toml_text import Places, load_toml

from .conda import packages, specification
from .poetry_project import dependencies

Table = dict[str, Any]
_LINUX = ("linux-64", "linux", "unix")


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the packages of the default environment."""
    content = load_toml(path, text)
    if not ({"workspace", "project", "dependencies", "pypi-dependencies", "feature"} & content.keys()):
        hint = "name the pixi.lock or the pyproject.toml instead"
        raise fault(path, None, "it has no `[workspace]` and no `[dependencies]`", hint)
    return tables(path, content, "", Places(text))


def tables(path: Path, content: Table, prefix: str, places: Places) -> Manifest:
    """Return the packages of the tables below `prefix`; where the default feature has none, those of all features."""
    if not content:
        return Manifest(())
    notes: list[str] = []
    entries, facts = _feature(path, content, prefix, places, notes)
    features = content.get("feature")
    features = features if isinstance(features, dict) else {}
    if features and not entries:
        more: list[DeclaredRequirement] = []
        for name, table in features.items():
            if isinstance(table, dict):
                found, further = _feature(path, table, _below(prefix, f"feature.{name}"), places, notes)
                more += found
                facts += further
        entries = list(without_conflicts(more, "the features of"))
    elif features:
        notes.append(f"{path}: skipped pixi features: {', '.join(features)}")
    for table in (content.get("pypi-options"),):
        for url in _urls(table):
            if cuda := cuda_of_index(url):
                facts.append(Fact("torch.cuda", cuda, f"{path}:{places.text(url)}"))
    return Manifest(tuple(entries), tuple(facts), False, "", tuple(notes))


def _below(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _feature(
    path: Path, content: Table, prefix: str, places: Places, notes: list[str]
) -> tuple[list[DeclaredRequirement], list[Fact]]:
    found: dict[str, tuple[str, int, str]] = {}
    entries: list[DeclaredRequirement] = []
    for table, where in _parts(content, prefix):
        listed = table.get("dependencies")
        if listed is not None and not isinstance(listed, dict):
            raise fault(path, places.key(_below(where, "dependencies")), "`dependencies` needs to be a table")
        for name, value in (listed or {}).items():
            line = places.key(_below(where, "dependencies"), name)
            given = {"version": value} if isinstance(value, str) else value
            if not isinstance(given, dict):
                raise fault(path, line, f"`{shortened(name, 40)}` needs a version range or a table")
            version, build = given.get("version", "*"), given.get("build", "")
            if not isinstance(version, str) or not isinstance(build, str):
                raise fault(path, line, f"the version of `{shortened(name, 40)}` needs to be text")
            found[name.lower()] = (specification(version, path, line), line, build)
        entries += dependencies(path, table.get("pypi-dependencies"), _below(where, "pypi-dependencies"), places, notes)
    manifest = packages(path, found, places.rows)
    return [*manifest.entries, *entries], list(manifest.facts)


def _parts(content: Table, prefix: str) -> Iterator[tuple[Table, str]]:
    """Yield the tables for every platform, then those for Linux."""
    yield content, prefix
    targets = content.get("target")
    for name in _LINUX:
        table = targets.get(name) if isinstance(targets, dict) else None
        if isinstance(table, dict):
            yield table, _below(prefix, f"target.{name}")


def _urls(options: Any) -> Iterator[str]:
    if isinstance(options, dict):
        extra = options.get("extra-index-urls")
        for url in (options.get("index-url"), *(extra if isinstance(extra, list) else [])):
            if isinstance(url, str):
                yield url
