"""Which symbols the public torch releases export: `rules/index/torch_symbols.gz`.

The file holds a 40-bit hash per symbol and the set of releases that export it, sorted by hash. A symbol that no release
exports is mistaken for one that some do about once in three million look-ups.
`scripts/release/refresh_symbols.py` produces it from the wheels.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.facts.vocabulary import parse_version
from doctor.util.resources import rules_dir

WIDTH = 5  # bytes of a hash
_RECORD = WIDTH + 2  # and the number of its set of releases


@dataclass(frozen=True)
class TorchBuild:
    """One torch release as the registry publishes it."""

    version: str  # 2.8.0, or 2.13.0+cpu
    cuda: str | None
    cxx11_abi: bool


class TorchSymbols:
    """Symbol -> releases that export it."""

    def __init__(self, head: Mapping[str, Any], records: bytes) -> None:
        self.builds = tuple(TorchBuild(*build) for build in head["builds"])
        self._sets: list[int] = head["sets"]
        self._records = records
        self._bits = {build.version: 1 << number for number, build in enumerate(self.builds)}

    def build(self, version: str, cuda: str | None) -> TorchBuild | None:
        """Return the build on record for an installed torch, None where it is another build or release."""
        public, _, label = version.partition("+")
        for build in self.builds:
            release, _, own = build.version.partition("+")
            if release != public or (label and label != (own or _label(build.cuda))):
                continue
            if cuda is None or cuda == build.cuda:
                return build
        return None

    def missing(self, names: Iterable[str], build: TorchBuild) -> tuple[str, ...]:
        """Return those of the names that the build does not export."""
        bit = self._bits[build.version]
        return tuple(name for name in names if not self._exporters(name) & bit)

    def exporters(self, names: Iterable[str]) -> tuple[TorchBuild, ...]:
        """Return the builds that export every one of the names, oldest first."""
        common = (1 << len(self.builds)) - 1
        for name in names:
            common &= self._exporters(name)
        return tuple(build for number, build in enumerate(self.builds) if common >> number & 1)

    def _exporters(self, name: str) -> int:
        wanted = symbol_hash(name)
        low, high = 0, len(self._records) // _RECORD
        while low < high:
            middle = (low + high) // 2
            if self._records[middle * _RECORD : middle * _RECORD + WIDTH] < wanted:
                low = middle + 1
            else:
                high = middle
        record = self._records[low * _RECORD : (low + 1) * _RECORD]
        return self._sets[int.from_bytes(record[WIDTH:], "little")] if record[:WIDTH] == wanted else 0


def _label(cuda: str | None) -> str:
    return "cpu" if cuda is None else "cu" + cuda.replace(".", "")


def symbol_hash(name: str) -> bytes:
    """Return the hash under which a symbol is on record."""
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=WIDTH).digest()


def packed(exports: Mapping[TorchBuild, Iterable[str]]) -> bytes:
    """Return the content of the file for these builds, each with the symbols that it exports."""
    builds = sorted(exports, key=lambda build: parse_version(build.version))
    masks: dict[bytes, int] = {}
    for number, build in enumerate(builds):
        for name in exports[build]:
            key = symbol_hash(name)
            masks[key] = masks.get(key, 0) | 1 << number
    sets = sorted(set(masks.values()))
    if len(sets) > 1 << 16:
        raise ValueError(f"{len(sets)} sets of releases do not fit into two bytes")
    numbers = {mask: number for number, mask in enumerate(sets)}
    records = b"".join(key + numbers[mask].to_bytes(2, "little") for key, mask in sorted(masks.items()))
    head = {"builds": [[build.version, build.cuda, build.cxx11_abi] for build in builds], "sets": sets}
    return gzip.compress(json.dumps(head, separators=(",", ":")).encode() + b"\n" + records, mtime=0)


@functools.cache
def load_torch_symbols(path: Path | None = None) -> TorchSymbols:
    """Return the index that ships with attn-doctor."""
    path = path or rules_dir() / "index" / "torch_symbols.gz"
    try:
        head, _, records = gzip.decompress(path.read_bytes()).partition(b"\n")
        return TorchSymbols(json.loads(head), records)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as problem:
        raise DoctorError(
            f"the index of symbols `{path.name}` cannot be read: {problem}", "reinstall attn-doctor"
        ) from None
