"""Lock files in YAML: long, machine-written, of which a few keys of each package matter."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from doctor.errors import fault
from doctor.util.yaml_text import Lines, parse_yaml

_LONG = 200_000  # characters; a shorter file is read whole


def read_lock_yaml(path: Path, text: str, section: str, keys: Collection[str]) -> tuple[Any, Lines]:
    """The document and its lines; of a long one only these keys of the section's packages."""
    if len(text) > _LONG:
        text = _thinned(text, section, keys)
    return parse_yaml(text, str(path))


def _thinned(text: str, section: str, keys: Collection[str]) -> str:
    """The text with blank lines where keys of packages stand that nobody asks for: lines keep their numbers."""
    kept = re.compile(rf"(?:- )?(?:{'|'.join(map(re.escape, keys))}):")
    inside, indent = False, 0
    rows = text.split("\n")
    for number, row in enumerate(rows):
        if row and not row[0].isspace() and row[0] not in "-#":
            inside = row.startswith(f"{section}:")
            indent = 0
            continue
        if not inside or not row.strip():
            continue
        stripped = row.lstrip()
        if stripped.startswith("- ") and (indent == 0 or len(row) - len(stripped) < indent):
            indent = len(row) - len(stripped) + 2
        at = len(row) - len(stripped) + (2 if stripped.startswith("- ") else 0)
        if at == indent and kept.match(stripped):
            continue
        # The dash of an item must stay, whichever of its keys is first.
        rows[number] = f"{row[: indent - 2]}-" if stripped.startswith("- ") and at == indent else ""
    return "\n".join(rows)


def machine_of(path: Path, platforms: set[str]) -> str:
    """The platform to read: Linux on x86_64, or the Linux there is."""
    linux = sorted(name for name in platforms if name.startswith("linux"))
    if not linux:
        raise fault(
            path, None, f"nothing is locked for Linux, only for {', '.join(sorted(platforms)) or 'nothing'}"[:200]
        )
    return "linux-64" if "linux-64" in linux else linux[0]
