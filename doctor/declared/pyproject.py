"""pyproject.toml: the dependencies of `[project]` (PEP 621). Extras and groups are installed only on request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .interface import Sheet, fault
from .requirements import Reader
from .tomltext import load_toml


def read(path: Path, text: str) -> Sheet:
    """The project's dependencies, pins and ranges."""
    content = load_toml(path, text)
    project = content.get("project")
    if not isinstance(project, dict):
        raise fault(path, None, "it has no `[project]`", "name the lock file or the requirements instead")
    if "dependencies" in (project.get("dynamic") or ()):
        raise fault(
            path, _line(text, "dynamic"), "the dependencies are made by the build", "name its requirements file"
        )
    lines = project.get("dependencies") or []
    if not isinstance(lines, list) or not all(isinstance(item, str) for item in lines):
        raise fault(path, _line(text, "dependencies"), "`dependencies` needs a list of texts")
    reader = Reader(path.resolve().parent)
    rows = text.split("\n")
    after = 0
    for item in lines:
        after = _row(rows, str(item), after)
        if not item.strip() or item.lstrip().startswith("-"):
            raise fault(path, after + 1, f"`{item[:60]}` is no requirement")
        reader.line(item.strip(), path, after + 1, rows[after].rstrip("\r") if rows else item)
    python: Any = project.get("requires-python")
    sheet = reader.sheet()
    return Sheet(
        sheet.entries, sheet.facts, False, python if isinstance(python, str) else "",
        (*sheet.notes, f"{path}: extras and dependency groups were left out") if _has_more(content) else sheet.notes,
    )  # fmt: skip


def _has_more(content: dict[str, Any]) -> bool:
    return bool(content["project"].get("optional-dependencies") or content.get("dependency-groups"))


def _row(rows: list[str], item: str, after: int) -> int:
    """The index of the row that holds this requirement, looked for from the one before it on."""
    order: list[int] = [*range(after, len(rows)), *range(after)]
    for index in order:
        if f'"{item}"' in rows[index] or f"'{item}'" in rows[index]:
            return index
    return after


def _line(text: str, key: str) -> int:
    rows = text.split("\n")
    return next((number for number, row in enumerate(rows, 1) if row.strip().startswith(key)), 1)
