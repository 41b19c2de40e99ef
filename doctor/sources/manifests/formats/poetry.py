"""poetry.lock: optional packages belong to extras and are installed only on request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from doctor.sources.manifests.base import Manifest
from doctor.util.toml_lines import load_toml

from .toml_locks import read_lock


def read(path: Path, text: str) -> Manifest:
    """The locked packages."""
    content = load_toml(path, text)
    metadata = content.get("metadata")
    python = metadata.get("python-versions") if isinstance(metadata, dict) else None
    return read_lock(
        path, text, content, "package", marker=_marker, index=_index, skip=lambda table: table.get("optional") is True,
        requires_python=python if isinstance(python, str) and not set(python) & set("^|*") else "",
    )  # fmt: skip


def _marker(table: dict[str, Any]) -> str | None:
    """One text, or one per group: installed where any holds."""
    markers = table.get("markers")
    if isinstance(markers, dict):
        markers = " or ".join(f"({marker})" for marker in markers.values())
    return markers if isinstance(markers, str) and markers else None


def _index(table: dict[str, Any]) -> str | None:
    source = table.get("source")
    url = source.get("url") if isinstance(source, dict) else None
    return url if isinstance(url, str) else None
