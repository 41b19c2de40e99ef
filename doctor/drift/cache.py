"""Keep the results of an analysis as JSON, valid while the files that they rest on have the same content."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from .analysis import CallerResult, is_readable
from .findings import Certainty, Finding, History, Kind, Location, Notice, Pair, PairVerdict, Reach, Release, Severity
from .sources import Environment, Package

SCHEMA = 1


class ResultCache:
    """The results of earlier analyses, one file for each caller."""

    def __init__(self, folder: Path, environment: Environment) -> None:
        """Read and write below `folder`."""
        self.folder = folder
        self.environment = environment
        self.hashes: dict[str, str] = {}
        readable = sorted(
            str(item.release) + str(item.root) for item in environment.packages.values() if is_readable(item)
        )
        others = sorted(f"{item.name} {item.version}" for item in environment.releases.values())
        tops = sorted(environment.packages)
        self.stack = _digest(json.dumps([SCHEMA, _own_code(), readable, others, tops]).encode())

    def read(self, caller: Package, callees: Sequence[Package]) -> CallerResult | None:
        """Return the result of a caller; None where there is none, or a file has changed."""
        try:
            stored = json.loads(self._file(caller).read_bytes())
            if stored["stack"] != self._stack(callees) or stored["listing"] != self._listing(caller, callees):
                return None
            if any(self._hash(path) != content for path, content in stored["files"].items()):
                return None
            return _result(stored["result"], tuple(stored["files"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, caller: Package, callees: Sequence[Package], result: CallerResult) -> None:
        """Keep a result; a folder that cannot be written costs the cache and nothing else."""
        document = {
            "stack": self._stack(callees),
            "listing": self._listing(caller, callees),
            "files": {path: self._hash(path) for path in result.files},
            "result": _plain(result),
        }
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=".new")
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(document, stream)
            Path(name).replace(self._file(caller))

    def _file(self, caller: Package) -> Path:
        return self.folder / f"{caller.name}-{_digest(str(caller.root).encode())[:16]}.json"

    def _stack(self, callees: Sequence[Package]) -> str:
        return _digest(json.dumps([self.stack, sorted(item.name for item in callees)]).encode())

    def _listing(self, caller: Package, callees: Sequence[Package]) -> str:
        """Return a digest of which files a caller and its callees have; of a caller also when they changed."""
        parts: list[object] = []
        for package in [caller, *(item for item in callees if item is not caller)]:
            parts.append(self._listed(package))
        return _digest(json.dumps(parts).encode())

    def _listed(self, package: Package) -> str:
        key = f"listing {package.root}"
        if key not in self.hashes:
            digest = hashlib.sha256()
            for path in self.environment.files(package):
                try:
                    state = path.stat()
                except OSError:
                    continue
                digest.update(f"{path} {state.st_size} {state.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
            self.hashes[key] = digest.hexdigest()
        return self.hashes[key]

    def _hash(self, path: str) -> str:
        if path not in self.hashes:
            try:
                self.hashes[path] = _digest(Path(path).read_bytes())
            except OSError:
                self.hashes[path] = "unreadable"
        return self.hashes[path]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@cache
def _own_code() -> str:
    """Return a digest of the analyzer itself: another analyzer may come to other results."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """Return JSON data of nested dataclasses, enums and tuples."""
    if isinstance(value, Enum):
        return value.name
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__ if name != "files"}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _location(data: Any) -> Location | None:
    return None if data is None else Location(data["path"], data["line"])


def finding_from(data: dict[str, Any]) -> Finding:
    """Return the finding that `_plain` wrote."""
    site = _location(data["site"])
    assert site is not None
    return Finding(
        Kind[data["kind"]], Severity[data["severity"]], Certainty[data["certainty"]], Reach[data["reach"]],
        Release(**data["caller"]), Release(**data["callee"]), data["symbol"], data["name"], site, data["scope"],
        _location(data["definition"]), data["signature"], data["message"], tuple(data["conditions"]), data["unknown"],
        History(**data["history"]),
    )  # fmt: skip


def _result(data: dict[str, Any], files: tuple[str, ...]) -> CallerResult:
    pairs = [
        Pair(Release(**item["caller"]), Release(**item["callee"]), PairVerdict[item["verdict"]], item["uses"],
             item["unknown_uses"])
        for item in data["pairs"]
    ]  # fmt: skip
    notices = tuple(Notice(item["subject"], item["reason"]) for item in data["notices"])
    return CallerResult(tuple(map(finding_from, data["findings"])), tuple(pairs), notices, files)
