"""Rule files in a compiled form, so that start-up parses no YAML; rebuilt when a file is newer or gone."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from . import __version__
from .assets import rules_dir
from .errors import DoctorError

FORMAT = 1  # of the cache file

Body = tuple[str, str, str, dict[str, Any]]  # kind (library | rule), library name, path, content


def rule_files(folders: tuple[Path, ...]) -> list[Path]:
    """Every `<library>/*.yaml` below the folders, sorted; a folder may also be one library's."""
    files: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise DoctorError(f"rules folder `{folder}` does not exist")
        found = sorted(path for path in folder.rglob("*.yaml") if not path.name.startswith("."))
        if not found:
            raise DoctorError(f"rules folder `{folder}` holds no .yaml file")
        files.extend(found)
    return files


def load_bodies(extra: tuple[str, ...] = ()) -> tuple[str, list[Body]]:
    """(version of the rulebook, contents of all files), from the cache where it is fresh."""
    folders = (rules_dir(), *(Path(folder) for folder in extra))
    files = rule_files(folders)
    stamp = _stamp(files)
    cache = _cache_file(folders)
    if cache is not None:
        try:
            with cache.open(encoding="utf-8") as stream:
                stored = json.load(stream)
            if stored["stamp"] == stamp:
                return stored["version"], [tuple(body) for body in stored["bodies"]]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no cache, or a damaged one: it is only a cache
    from .schema import read_file

    bodies = [read_file(path) for path in files]
    version = hashlib.sha256(json.dumps([body[3] for body in bodies], sort_keys=True).encode()).hexdigest()[:12]
    if cache is not None:
        _store(cache, {"stamp": stamp, "version": version, "bodies": [_lean(body) for body in bodies]})
    return version, bodies


def _lean(body: Body) -> Body:
    kind, library, path, content = body
    return kind, library, path, {key: value for key, value in content.items() if key != "tests"}


def _stamp(files: list[Path]) -> str:
    digest = hashlib.sha256(f"{FORMAT} {__version__}".encode())
    for path in files:
        status = os.stat(path)  # noqa: PTH116 - one call per file counts at start-up
        digest.update(f"{path}\0{status.st_mtime_ns}\0{status.st_size}\n".encode())
    return digest.hexdigest()


def _cache_file(folders: tuple[Path, ...]) -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may stay unexpanded
    if not os.path.isabs(base):  # noqa: PTH117
        return None
    name = hashlib.sha256("\0".join(str(folder.absolute()) for folder in folders).encode()).hexdigest()[:16]
    return Path(base) / "attn-doctor" / f"rules-{name}.json"


def _store(cache: Path, content: dict[str, Any]) -> None:
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(cache)
    except OSError:
        temporary.unlink(missing_ok=True)  # a read-only home costs time, not the diagnosis
