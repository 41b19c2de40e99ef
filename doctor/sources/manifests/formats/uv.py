"""uv.lock: one resolution for all platforms; of several versions of a package their markers decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from doctor.sources.manifests.base import Manifest
from doctor.util.toml_lines import load_toml

from .toml_locks import read_lock


def read(path: Path, text: str) -> Manifest:
    """The locked packages; the project itself is none."""
    content = load_toml(path, text)
    python = content.get("requires-python")
    return read_lock(
        path, text, content, "package", marker=_marker, index=_index, skip=_is_project,
        requires_python=python if isinstance(python, str) else "",
    )  # fmt: skip


def _source(table: dict[str, Any]) -> dict[str, Any]:
    source = table.get("source")
    return source if isinstance(source, dict) else {}


def _is_project(table: dict[str, Any]) -> bool:
    return bool({"virtual", "editable", "directory"} & set(_source(table)))


def _index(table: dict[str, Any]) -> str | None:
    registry = _source(table).get("registry")
    return registry if isinstance(registry, str) else None


def _marker(table: dict[str, Any]) -> str | None:
    """It is installed where any of its markers holds."""
    markers = table.get("resolution-markers")
    if not isinstance(markers, list) or not markers:
        return None
    return " or ".join(f"({marker})" for marker in markers)
