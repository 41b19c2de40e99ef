"""Rule files in a compiled form, so that start-up parses no YAML; rebuilt when a file is newer or gone.

The cache is a checksum and, as in `.pyc` files, marshalled data: half the price of JSON. A header says of which files,
in which state, it was made; whatever does not fit is rebuilt. Tests inside rules stay in the YAML.
"""

from __future__ import annotations

import marshal
import os
import stat
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import __version__
from .assets import rules_dir
from .errors import DoctorError, reason_of

FORMAT = 3, marshal.version  # of the cache file
_CRC = 4  # bytes
_RACY = 50_000_000  # ns: a file written this shortly before may be written again within one tick of its clock

Body = tuple[str, str, str, dict[str, Any]]  # kind (library | rule), library name, path, content
Stamp = list[Any]  # path, mtime, ctime, size


def rule_files(folders: tuple[Path, ...]) -> list[Path]:
    """Every `.yaml` below the folders, sorted within each; a folder may also be one library's."""
    return [Path(stamp[0]) for stamp in stamps(folders)]


def stamps(folders: tuple[Path, ...]) -> list[Stamp]:
    """The state of every rule file: equal stamps mean an unchanged rulebook. One `stat` per file, no globbing."""
    found: dict[str, Stamp] = {}
    for folder in folders:
        below: list[Stamp] = []
        try:
            _scan(os.fspath(folder), below)
        except FileNotFoundError:
            raise DoctorError(f"rules folder `{folder}` does not exist") from None
        except NotADirectoryError:
            raise DoctorError(f"rules folder `{folder}` is no folder") from None
        except (OSError, ValueError) as problem:
            why = reason_of(problem)
            raise DoctorError(f"cannot read rules folder `{folder}`: {why}") from None
        if not below:
            raise DoctorError(f"rules folder `{folder}` holds no .yaml file")
        found.update((stamp[0], stamp) for stamp in sorted(below))
    return list(found.values())


def _scan(folder: str, found: list[Stamp]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.endswith(".yaml"):
                try:
                    status = entry.stat()
                except OSError as problem:  # a link to nowhere
                    why = reason_of(problem)
                    raise DoctorError(f"cannot read rule file `{entry.path}`: {why}") from None
                if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
                    raise DoctorError(f"rule file `{entry.path}` is no regular file")
                found.append([entry.path, status.st_mtime_ns, status.st_ctime_ns, status.st_size])
            elif entry.is_dir(follow_symlinks=False):
                _scan(entry.path, found)


def load_bodies(extra: tuple[str, ...] = ()) -> tuple[str, list[Body]]:
    """(version of the rulebook, contents of all files), from the cache where it is fresh."""
    folders = (rules_dir(), *(Path(folder).absolute() for folder in extra))
    started = time.time_ns()
    files = stamps(folders)
    header = {"format": FORMAT, "doctor": [__version__, *_code()], "files": files}
    cache = _cache_file(folders)
    stored = _read(cache, header) if cache is not None else None
    if stored is not None:
        return stored
    version, bodies = _compile([Path(stamp[0]) for stamp in files])
    if cache is not None and all(max(stamp[1], stamp[2]) < started - _RACY for stamp in files):
        _store(cache, marshal.dumps((header, version, [_lean(body) for body in bodies])))
    return version, bodies


def _compile(files: list[Path]) -> tuple[str, list[Body]]:
    import json
    from hashlib import sha256

    from .schema import read_file

    bodies = [read_file(path) for path in files]
    first: dict[tuple[str, str], str] = {}
    for kind, library, path, content in bodies:
        name = library if kind == "library" else content["id"]
        if (taken := first.setdefault((kind, name), path)) != path:
            raise DoctorError(f"{path}:1: {kind} `{name}` is taken by `{taken}`", "ids are unique over all folders")
    return sha256(json.dumps([body[3] for body in bodies], sort_keys=True).encode()).hexdigest()[:12], bodies


def _lean(body: Body) -> Body:
    kind, library, path, content = body
    return kind, library, path, {key: value for key, value in content.items() if key != "tests"}


def _code() -> list[int]:
    """When the code that checks rules last changed, so that nobody who works on it meets rules checked by the old."""
    here = os.path.dirname(__file__)  # noqa: PTH120 - start-up
    return [os.stat(os.path.join(here, name)).st_mtime_ns for name in ("schema.py", "shape.py", "vocabulary.py")]  # noqa: PTH116, PTH118


def _cache_file(folders: tuple[Path, ...]) -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may stay unexpanded
    if not os.path.isabs(base):  # noqa: PTH117
        return None
    # A clash of names costs a rebuild and no more: the header names every file.
    name = zlib.crc32("\0".join(map(str, folders)).encode(errors="surrogateescape"))
    return Path(base) / "attn-doctor" / f"rules-{name:08x}.bin"


def _read(cache: Path, header: dict[str, Any]) -> tuple[str, list[Body]] | None:
    """What the cache holds for exactly this header; None for a stale, damaged, unreadable or missing one."""
    try:
        data = cache.read_bytes()
        if data[:_CRC] != _crc(data[_CRC:]):  # nothing damaged is unmarshalled
            return None
        found, version, bodies = marshal.loads(data[_CRC:])
        return (version, bodies) if found == header else None
    except (OSError, ValueError, TypeError, EOFError):
        return None


def _crc(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CRC, "big")


def _store(cache: Path, content: bytes) -> None:
    """Write the cache so that a reader sees all of it or none, whoever else writes it just now."""
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(_crc(content) + content)
        temporary.replace(cache)
    except (OSError, ValueError):  # a read-only home or a full disk costs time, not the diagnosis
        with suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)
