"""The file of the release index: its first line says of when it is, and which release of each package is the newest."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.util.resources import rules_dir


@contextlib.contextmanager
def open_index(path: Path | None = None, what: str = "the release index") -> Iterator[gzip.GzipFile]:
    """Open a compressed record, by default the release index; DoctorError where it cannot be read to the end."""
    path = path or rules_dir() / "index" / "releases.json.gz"
    try:
        with gzip.open(path) as file:
            yield file
    except (OSError, EOFError, ValueError) as problem:
        raise DoctorError(f"{what} `{path.name}` cannot be read: {problem}", "reinstall attn-doctor") from None


@functools.cache
def index_head() -> dict[str, Any]:
    """Return the first line of the embedded index, without reading its releases."""
    with open_index() as file:
        return dict(json.loads(file.readline()))
