"""conda-lock.yml (all platforms in one file) and conda's explicit lists of addresses (one platform)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from doctor.errors import fault
from doctor.sources.manifests.base import DeclaredRequirement, Manifest, checked_version
from doctor.sources.watch import Watch
from doctor.util.redact import shortened

from .conda import locked_packages
from .yaml_lock import machine_of, read_lock_yaml

_KEYS = ("name", "version", "manager", "platform", "url", "build", "category", "optional")
ADDRESS = re.compile(
    r"(?:\S*/)?(?P<name>[A-Za-z0-9_.-]+?)-(?P<version>[^-/]+)-(?P<build>[^-/]+)\.(?:conda|tar\.bz2)(?:#.*)?"
)


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the packages for Linux."""
    if re.search(r"^@EXPLICIT\s*$", text, re.MULTILINE):
        return _explicit(path, text)
    content, lines = read_lock_yaml(path, text, "package", _KEYS)
    listed = content.get("package") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise fault(path, 1, "it has no list `package`", "is this a conda-lock.yml?")
    rows = text.split("\n")
    items = [(index, item) for index, item in enumerate(listed) if isinstance(item, dict)]
    if len(items) < len(listed):
        raise fault(path, lines.get(("package",), 1), "a package needs a mapping")
    machine = machine_of(path, {str(item.get("platform")) for _, item in items})
    conda: list[tuple[str, str, str, int]] = []
    entries: list[DeclaredRequirement] = []
    left = 0
    for index, item in items:
        if item.get("platform") != machine:
            continue
        if item.get("optional") == "true" or item.get("category") not in (None, "main"):
            left += 1
            continue
        line = lines.get(("package", str(index), "version"), lines.get(("package", str(index)), 1))
        name, version = _text(path, line, item, "name"), _text(path, line, item, "version")
        if item.get("manager") == "pip":
            entries.append(_pip(path, name, version, line, rows))
        else:
            conda.append((name.lower(), version, _build(item), line))
    manifest = locked_packages(path, conda, rows)
    note = (f"{path}: {left} packages of other categories than `main` were left out",) if left else ()
    found = (*manifest.entries, *entries)
    if not found:
        raise fault(path, None, f"it locks no package for {machine}")
    return Manifest(found, manifest.facts, True, "", note)


def _pip(path: Path, name: str, version: str, line: int, rows: list[str]) -> DeclaredRequirement:
    checked_version(version, path, line)
    raw = rows[line - 1].strip()
    return DeclaredRequirement(canonicalize_name(name), str(path), line, f"=={version}", version, raw=raw, locked=True)


def _text(path: Path, line: int, item: dict[str, Any], key: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value:
        raise fault(path, line, f"a package needs `{key}` as a text")
    return value


def _build(item: dict[str, Any]) -> str:
    if isinstance(item.get("build"), str):
        return str(item["build"])
    match = ADDRESS.fullmatch(str(item.get("url") or ""))
    return match["build"] if match else ""


def _explicit(path: Path, text: str) -> Manifest:
    """Return the packages of an explicit list: one address per line."""
    found = []
    rows = text.split("\n")
    for number, row in enumerate(rows, 1):
        line = row.strip()
        if not line or line.startswith(("#", "@")):
            continue
        match = ADDRESS.fullmatch(line)
        if match is None:
            raise fault(path, number, f"`{shortened(line, 60)}` is not the address of a conda package")
        found.append((match["name"].lower(), match["version"], match["build"], number))
    if not found:
        raise fault(path, None, "it locks no package")
    manifest = locked_packages(path, found, rows)
    return Manifest(manifest.entries, manifest.facts, True)
