"""pylock.toml (PEP 751): one environment, each package with a marker where it does not always belong to it."""

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
    version = content.get("lock-version")
    if not isinstance(version, str) or version.partition(".")[0] != "1":
        raise fault(path, None, f"`lock-version` needs 1.x, found `{str(version)[:20]}`")
    python = content.get("requires-python")
    return read_lock(
        path, text, content, "packages", marker=_marker, index=_index,
        requires_python=python if isinstance(python, str) else "",
    )  # fmt: skip


def _marker(table: dict[str, Any]) -> str | None:
    marker = table.get("marker")
    return marker if isinstance(marker, str) and marker else None


def _index(table: dict[str, Any]) -> str | None:
    index = table.get("index")
    return index if isinstance(index, str) else None
