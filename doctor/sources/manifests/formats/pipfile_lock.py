"""Pipfile.lock: the packages of `default`; `develop` is installed only on request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from doctor.errors import fault
from doctor.model import TORCH, Fact
from doctor.sources.manifests.base import DeclaredRequirement, Manifest, cuda_of_index, pin_of
from doctor.sources.watch import Watch
from doctor.util.redact import shortened

from .requirements import Reader


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the locked packages."""
    content = _load(path, text)
    listed = content.get("default")
    if not isinstance(listed, dict):
        raise fault(path, 1, "it has no `default`, so nothing is locked", "is this a Pipfile.lock?")
    meta = content.get("_meta")
    meta = meta if isinstance(meta, dict) else {}
    lines = _Lines(text)
    notes: list[str] = []
    entries: list[DeclaredRequirement] = []
    facts: list[Fact] = []
    indexes = _indexes(meta)
    for name, table in listed.items():
        line = lines.of(name)
        if not isinstance(table, dict):
            raise fault(path, line, f"`{shortened(name, 40)}` needs a mapping")
        entry = _entry(path, name, table, line, lines.raw(line), notes)
        if entry is None:
            continue
        entries.append(entry)
        cuda = cuda_of_index(indexes.get(str(table.get("index")), ""))
        if entry.name == TORCH and cuda and "+" not in (entry.version or ""):
            facts.append(Fact("torch.cuda", cuda, f"{path}:{line}"))
    if content.get("develop"):
        notes.append(f"{path}: skipped the packages of `develop`")
    return Manifest(tuple(entries), tuple(facts), bool(entries), _python(meta), tuple(notes))


def _load(path: Path, text: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) < len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise fault(path, None, f"`{shortened(twice, 60)}` is given twice")
        return built

    try:
        content = json.loads(text, object_pairs_hook=once, parse_int=str, parse_float=str, parse_constant=str)
    except json.JSONDecodeError as problem:
        raise fault(path, problem.lineno, f"not JSON: {problem.msg.lower()}") from None
    except RecursionError:
        raise fault(path, None, "nested too deeply") from None
    if not isinstance(content, dict):
        raise fault(path, 1, "it needs a mapping", "is this a Pipfile.lock?")
    return content


def _entry(
    path: Path, name: str, table: dict[str, Any], line: int, raw: str, notes: list[str]
) -> DeclaredRequirement | None:
    version, marker = table.get("version"), table.get("markers")
    marker = marker if isinstance(marker, str) and marker else None
    if version is None:
        address = table.get("file") or table.get("path")
        if isinstance(table.get("git"), str):
            address = f"git+{table['git']}@{table.get('ref') or ''}".rstrip("@")
        if isinstance(address, str) and "://" in address:
            reader = Reader(path.resolve().parent)
            reader.line(f"{name} @ {address}", path, line, raw)
            notes += reader.notes
            return reader.entries[0] if reader.entries else None
        problem = f"`{shortened(name, 40)}` has no version and no source that gives one"
        return DeclaredRequirement(
            canonicalize_name(name), str(path), line, marker=marker, raw=raw, locked=True, problem=problem
        )
    if not isinstance(version, str):
        raise fault(path, line, f"the version of `{shortened(name, 40)}` needs to be text")
    if version.strip() == "*":
        problem = f"`{shortened(name, 40)}` is locked without a version"
        return DeclaredRequirement(
            canonicalize_name(name), str(path), line, marker=marker, raw=raw, locked=True, problem=problem
        )
    pin = pin_of(version if version.startswith("=") else f"=={version}", path, line)
    return DeclaredRequirement(canonicalize_name(name), str(path), line, f"=={pin}", pin, (), marker, raw, locked=True)


def _indexes(meta: dict[str, Any]) -> dict[str, str]:
    sources = meta.get("sources")
    return {
        str(table.get("name")): str(table.get("url"))
        for table in (sources if isinstance(sources, list) else [])
        if isinstance(table, dict)
    }


def _python(meta: dict[str, Any]) -> str:
    requires = meta.get("requires")
    found = requires.get("python_full_version") or requires.get("python_version") if isinstance(requires, dict) else ""
    return f"=={found}.*" if isinstance(found, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)*", found) else ""


class _Lines:
    """The line of each package's version, which `json` does not give."""

    def __init__(self, text: str) -> None:
        self.rows = text.split("\n")
        self._found: dict[str, int] = dict(_versions(self.rows))
        self._raw: dict[int, str] = {}

    def of(self, name: str) -> int:
        return self._found.get(name, 1)

    def raw(self, line: int) -> str:
        if line not in self._raw:  # a file may be one line
            self._raw[line] = shortened(self.rows[line - 1].strip(), 200)
        return self._raw[line]


def _versions(rows: list[str]) -> Iterator[tuple[str, int]]:
    """Yield (package, line of its version or name) of `default`; the last one of a package counts."""
    name, section = "", ""
    for number, row in enumerate(rows, 1):
        stripped = row.strip()
        if stripped.endswith("{"):
            match = re.match(r'\{?\s*"([^"]*)"\s*:', stripped)
            key = match[1] if match else ""
            if key in ("_meta", "default", "develop") and len(row) - len(row.lstrip()) <= 4:
                section, name = key, ""
            elif section == "default" and key:
                name = key
                yield name, number
        elif section == "default" and name and stripped.startswith('"version"'):
            yield name, number
