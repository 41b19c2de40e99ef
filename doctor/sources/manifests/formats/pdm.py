"""pdm.lock: one resolution, each package with the marker and the groups it belongs to; every group counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from doctor.errors import fault
from doctor.sources.manifests.base import Manifest
from doctor.util.toml_lines import load_toml

from .toml_locks import read_lock


def read(path: Path, text: str) -> Manifest:
    """The locked packages."""
    content = load_toml(path, text)
    metadata = content.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise fault(path, None, "`metadata` needs to be a table")
    return read_lock(
        path, text, content, "package", marker=_marker, index=_index, skip=_is_project,
        requires_python=_python(metadata or {}),
    )  # fmt: skip


def _python(metadata: dict[str, Any]) -> str:
    targets = metadata.get("targets")
    for table in targets if isinstance(targets, list) else []:
        python = table.get("requires_python") if isinstance(table, dict) else None
        if isinstance(python, str) and str(table.get("platform", "linux")).startswith(("linux", "manylinux")):
            return python
    return ""


def _is_project(table: dict[str, Any]) -> bool:
    """Another project of the same folder."""
    return isinstance(table.get("path"), str) and "version" not in table


def _marker(table: dict[str, Any]) -> str | None:
    marker = table.get("marker")
    return marker if isinstance(marker, str) and marker else None


def _index(table: dict[str, Any]) -> str | None:
    """Where the first file lies, for a lock that keeps addresses."""
    if isinstance(table.get("url"), str):
        return str(table["url"])
    files = table.get("files")
    first = files[0] if isinstance(files, list) and files else None
    url = first.get("url") if isinstance(first, dict) else None
    return url if isinstance(url, str) else None
