"""Keep the results of an analysis as JSON, valid while the files that they rest on have the same content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from doctor.util.cache_file import read_cache, write_cache

from .findings import CallerResult
from .serialize import as_data, result_from
from .sources import Environment, Package, is_readable

SCHEMA = 3


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
        found = read_cache(self._file(caller), self._key(caller, callees))
        if found is None:
            return None
        try:
            stored = json.loads(found[1])
            if any(self._hash(path) != content for path, content in stored["files"].items()):
                return None
            return result_from(stored["result"])
        except (ValueError, KeyError, TypeError):
            return None

    def write(self, caller: Package, callees: Sequence[Package], result: CallerResult) -> None:
        """Keep a result; a folder that cannot be written costs the cache and nothing else."""
        document = {"files": {path: self._hash(path) for path in result.files}, "result": as_data(result)}
        write_cache(self._file(caller), self._key(caller, callees), json.dumps(document).encode())

    def note_limit(self, caller: Package, callees: Sequence[Package], seconds: float) -> None:
        """Keep that the analysis of a caller takes longer than `seconds`."""
        write_cache(self._file(caller, ".limit"), self._key(caller, callees), json.dumps(seconds).encode())

    def longer_than(self, caller: Package, callees: Sequence[Package]) -> float:
        """Return the seconds that are known not to suffice for a caller; 0 where none are known."""
        found = read_cache(self._file(caller, ".limit"), self._key(caller, callees))
        try:
            return float(json.loads(found[1])) if found is not None else 0.0
        except (ValueError, TypeError):
            return 0.0

    def _file(self, caller: Package, ending: str = "") -> Path:
        return self.folder / f"{caller.name}-{_digest(str(caller.root).encode())[:16]}{ending}.json"

    def _key(self, caller: Package, callees: Sequence[Package]) -> str:
        parts = [self.stack, sorted(item.name for item in callees), self._listing(caller, callees)]
        return _digest(json.dumps(parts).encode())

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
