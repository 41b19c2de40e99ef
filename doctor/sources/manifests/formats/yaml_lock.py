"""Read lock files in YAML: long and machine-written, with few keys per package that matter."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from doctor.errors import fault
from doctor.util.redact import shortened
from doctor.util.yaml_text import Lines, parse_yaml

_LONG = 200_000  # characters; a shorter file is read whole


def read_lock_yaml(path: Path, text: str, section: str, keys: Collection[str]) -> tuple[Any, Lines]:
    """Return the document and its lines; of a long one, only these keys of the section's packages."""
    if len(text) > _LONG:
        text = _with_keys_only(text, section, keys)
    return parse_yaml(text, str(path))


def _with_keys_only(text: str, section: str, keys: Collection[str]) -> str:
    """Return the text with all other keys of packages blank, so that lines keep their numbers."""
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
        # The dash of an item must stay, whichever key comes first.
        rows[number] = f"{row[: indent - 2]}-" if stripped.startswith("- ") and at == indent else ""
    return "\n".join(rows)


def machine_of(path: Path, platforms: set[str]) -> str:
    """Return the platform to read: Linux on x86_64, else the first Linux."""
    linux = sorted(name for name in platforms if name.startswith("linux"))
    if not linux:
        raise fault(
            path,
            None,
            shortened(f"it locks no package for Linux (only for {', '.join(sorted(platforms)) or 'nothing'})", 200),
        )
    return "linux-64" if "linux-64" in linux else linux[0]
