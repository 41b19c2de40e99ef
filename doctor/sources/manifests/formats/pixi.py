"""pixi.lock: environments by platform, and the packages behind their addresses; the default environment counts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from doctor.errors import fault
from doctor.sources.manifests.base import DeclaredRequirement, Manifest, checked_version
from doctor.sources.watch import Watch
from doctor.util.redact import shortened
from doctor.util.yaml_text import Lines

from .conda import locked_packages
from .conda_lock import ADDRESS
from .yaml_lock import machine_of, read_lock_yaml

_KEYS = ("conda", "pypi", "kind", "name", "version", "build", "url", "path")
_WHEEL = re.compile(r"(?:.*/)?(?P<name>[A-Za-z0-9_.]+)-(?P<version>[0-9][^-/]*)-[^/]*\.whl")


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the packages of the default environment for Linux."""
    content, lines = read_lock_yaml(path, text, "packages", _KEYS)
    environments = content.get("environments") if isinstance(content, dict) else None
    if not isinstance(environments, dict) or not environments:
        raise fault(path, 1, "it has no `environments`", "is this a pixi.lock?")
    name = "default" if "default" in environments else next(iter(environments))
    environment = environments[name]
    listed = environment.get("packages") if isinstance(environment, dict) else None
    at = lines.get(("environments", name), 1)
    if not isinstance(listed, dict):
        raise fault(path, at, f"the environment `{name}` has no packages")
    machine = machine_of(path, set(listed))
    wanted = listed[machine]
    if not isinstance(wanted, list):
        raise fault(path, at, f"the packages for {machine} need to be a list")
    rows = text.split("\n")
    known = _known(path, content.get("packages"), lines)
    conda: list[tuple[str, str, str, int]] = []
    entries: list[DeclaredRequirement] = []
    for index, reference in enumerate(wanted):
        here = lines.get(("environments", name, "packages", machine, str(index)), at)
        if not isinstance(reference, dict):
            raise fault(path, here, "a package needs a mapping")
        address = reference.get("conda") or reference.get("pypi")
        if not isinstance(address, str):
            raise fault(path, here, "a package needs `conda` or `pypi` with an address")
        table, line = known.get(address, ({}, here))
        if "conda" in reference:
            found = _conda(address, table)
            if found is not None:
                conda.append((*found, line))
        else:
            entries.append(_pypi(path, address, table, line, rows))
    manifest = locked_packages(path, conda, rows)
    others = [other for other in environments if other != name]
    note = (f"{path}: only the environment `{name}` was read, not {', '.join(others)}",) if others else ()
    if not (manifest.entries or entries):
        raise fault(path, at, "it locks no package")
    return Manifest((*manifest.entries, *entries), manifest.facts, True, "", note)


def _known(path: Path, listed: Any, lines: Lines) -> dict[str, tuple[dict[str, Any], int]]:
    """Return for each address its table and the line of its version."""
    known: dict[str, tuple[dict[str, Any], int]] = {}
    for index, item in enumerate(listed if isinstance(listed, list) else []):
        if not isinstance(item, dict):
            raise fault(path, lines.get(("packages", str(index)), 1), "a package needs a mapping")
        address = item.get("conda") or item.get("pypi") or item.get("url") or item.get("path")
        line = lines.get(("packages", str(index), "version"), lines.get(("packages", str(index)), 1))
        if isinstance(address, str):
            known.setdefault(address, (item, line))
    return known


def _conda(address: str, table: dict[str, Any]) -> tuple[str, str, str] | None:
    match = ADDRESS.fullmatch(address)
    fields = [table.get(key) for key in ("name", "version", "build")]
    if match is not None:
        fields = [
            own or found for own, found in zip(fields, (match["name"], match["version"], match["build"]), strict=True)
        ]
    if not isinstance(fields[0], str) or not isinstance(fields[1], str):
        return None  # a package built from a folder
    return fields[0].lower(), fields[1], str(fields[2] or "")


def _pypi(path: Path, address: str, table: dict[str, Any], line: int, rows: list[str]) -> DeclaredRequirement:
    match = _WHEEL.fullmatch(unquote(address).partition("#")[0])
    name, version = table.get("name") or (match["name"] if match else None), table.get("version")
    if match and "+" in match["version"] and "+" not in str(version):
        version = match["version"]  # only the address has the label of the build
    version = version or (match["version"] if match else None)
    if not isinstance(name, str):
        raise fault(path, line, f"`{shortened(address, 60)}` does not name its package")
    raw = rows[line - 1].strip()
    problem = None if version else f"{path}:{line} gives no version"
    own = checked_version(str(version), path, line) if version else None
    return DeclaredRequirement(
        canonicalize_name(name), str(path), line, f"=={own}" if own else "", own, raw=raw, locked=True, problem=problem
    )
