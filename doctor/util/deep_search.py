"""Search a folder and all folders below it for files by the beginning of their names."""

from __future__ import annotations

import os

MAX_FOLDERS = 20_000


class SearchTooLarge(Exception):
    """A folder holds more than a search can go through."""


def deep_search(folder: str, prefix: str) -> list[str]:
    """Return every file below a folder whose name begins with a text, as `glob` with `**` finds it, without stubs."""
    found: list[str] = []
    waiting = [folder]
    seen = 0
    while waiting:  # not `os.walk`, which queries each folder again for links
        root = waiting.pop()
        seen += 1
        if seen > MAX_FOLDERS:
            raise SearchTooLarge(f"`{folder}` holds more than {MAX_FOLDERS} folders, so the search stopped")
        folders: list[str] = []
        linked: list[str] = []
        for entry in _entries(root):
            # `**` follows links to folders, not hidden ones. Links are searched one level deep, as they may be cyclic.
            if _is_folder(entry):
                if not entry.name.startswith("."):
                    (linked if entry.is_symlink() else folders).append(entry.path)
            elif entry.name.startswith(prefix) and "stub" not in root:
                found.append(f"{root}/{entry.name}")
        for path in linked:
            found += [inner.path for inner in _entries(path) if inner.name.startswith(prefix) and "stub" not in path]
        waiting += reversed(folders)
    return found


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
