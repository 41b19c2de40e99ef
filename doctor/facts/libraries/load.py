"""The records of all libraries, from a compiled form: a start parses no YAML.

Of each `library.yaml` only the parts that records are made from are read here; the rulebook checks the whole file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doctor._version import __version__
from doctor.errors import DoctorError
from doctor.util.cache_file import cache_folder, open_cache, read_cache, write_cache, write_data
from doctor.util.resources import rules_dir
from doctor.util.yaml_text import parse_yaml

from .record import KEYS, Libraries, libraries_of

FILE = "library.yaml"
SHIPPED = "libraries.json"  # in the rules of a wheel: what the files compile to
FORMAT = 1


@functools.cache
def libraries() -> Libraries:
    """Return what the built-in libraries say."""
    return libraries_of(_bodies(rules_dir()))


def write_shipped() -> None:
    """Write what the built-in library files compile to next to them, for a wheel; run by its build."""
    files = _files(rules_dir())
    write_data(rules_dir() / SHIPPED, _contents_key(files), json.dumps(_parsed(files)).encode())


def _bodies(folder: Path) -> list[dict[str, Any]]:
    files = _files(folder)
    base = cache_folder()
    if base is None:
        return _shipped(folder, files) or _parsed(files)
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    cache, key = base / f"libraries-{name}.json", _key(files)
    stored = read_cache(cache, key)
    if stored is not None:
        return list(json.loads(stored[1]))
    bodies = _shipped(folder, files) or _parsed(files)
    write_cache(cache, key, json.dumps(bodies).encode())
    return bodies


def _files(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        paths = sorted(f"{entry.path}{os.sep}{FILE}" for entry in entries if not entry.name.startswith("."))
    return [path for path in paths if os.path.isfile(path)]  # noqa: PTH113 - at every start: no Path


def _key(files: list[str]) -> str:
    states = [(path, status.st_mtime_ns, status.st_ctime_ns, status.st_size) for path in files
              for status in (os.stat(path),)]  # fmt: skip  # noqa: PTH116
    return hashlib.sha256(repr((FORMAT, __version__, states)).encode(errors="surrogateescape")).hexdigest()


def _contents_key(files: list[str]) -> str:
    digest = hashlib.sha256(f"{FORMAT} {__version__}".encode())
    for path in files:
        content = Path(path).read_bytes()
        digest.update(f"{Path(path).parent.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _shipped(folder: Path, files: list[str]) -> list[dict[str, Any]] | None:
    path = folder / SHIPPED
    if not path.is_file():
        return None
    found = open_cache(path, _contents_key(files), like=Path(__file__))
    return None if found is None else list(json.loads(found[1]))


def _parsed(files: list[str]) -> list[dict[str, Any]]:
    """Return the parts of each file that records are made from; a part that is not YAML is left to the rulebook."""
    bodies = []
    for path in files:
        text = "".join(_parts(Path(path).read_text(encoding="utf-8")))
        if not text:
            continue
        try:
            body = parse_yaml(text, path)[0]
            libraries_of([body])
        except (DoctorError, TypeError, ValueError, KeyError, AttributeError):
            continue
        bodies.append(body)
    return bodies


def _parts(text: str) -> Iterator[str]:
    """Yield the lines of the keys that count."""
    counts = False
    for line in text.splitlines(keepends=True):
        if line[0] not in " -#\r\n":
            counts = line.partition(":")[0] in KEYS
        if counts:
            yield line
