"""Pipfile: the packages of `[packages]`; `[dev-packages]` are installed only on request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from doctor.errors import fault
from doctor.model import TORCH, Fact
from doctor.sources.manifests.base import Manifest, cuda_of_index
from doctor.sources.watch import Watch
from doctor.util.toml_text import Places, load_toml

from .poetry_project import dependencies


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the packages of a plain `pipenv install`."""
    content = load_toml(path, text)
    places = Places(text)
    notes: list[str] = []
    if "packages" not in content and "dev-packages" not in content:
        raise fault(path, None, "it has no `[packages]`", "is this a Pipfile?")
    entries = list(dependencies(path, content.get("packages"), "packages", places, notes))
    if content.get("dev-packages"):
        notes.append(f"{path}: skipped `[dev-packages]`")
    requires = content.get("requires")
    python = (
        requires.get("python_full_version") or requires.get("python_version") if isinstance(requires, dict) else None
    )
    return Manifest(
        tuple(entries), tuple(_facts(path, content, places)), False,
        f"=={python}.*" if isinstance(python, str) and python.replace(".", "").isdigit() else "", tuple(notes),
    )  # fmt: skip


def _facts(path: Path, content: dict[str, Any], places: Places) -> list[Fact]:
    """Return torch's CUDA by the source that torch names, else by the first source that determines one."""
    listed = content.get("packages")
    torch = listed.get(TORCH) if isinstance(listed, dict) else None
    wanted = torch.get("index") if isinstance(torch, dict) else None
    sources = content.get("source")
    for table in sources if isinstance(sources, list) else []:
        url = table.get("url") if isinstance(table, dict) else None
        if isinstance(url, str) and (cuda := cuda_of_index(url)) and wanted in (None, table.get("name"), url):
            return [Fact("torch.cuda", cuda, f"{path}:{places.text(url)}")]
    return []
