"""What published releases with compiled files were made for: `rules/index/compiled.json.gz`.

`wheels`: for each file of a release its GPU code, the CUDA runtime that it links, the torch builds on record that
export its symbols, and the C library that it needs. `sources`: what the build of a release needs that the registry
has no wheel of. `scripts/release/record_wheels.py` reads both from the registry's files.
"""

# No postponed annotations: a named tuple would compile each of them again, at every start.

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from doctor.facts.vocabulary import parse_version
from doctor.util.resources import rules_dir

from .index_file import open_index
from .source_build import SourceBuild


class WheelRecord(NamedTuple):
    """One published wheel, by its files."""

    file: str
    size: int
    gpu_code: tuple[str, ...]  # 8.0, 9.0a, 9.0+PTX
    cuda: tuple[int, ...]  # major releases of the CUDA runtimes that it links; empty: none
    torch: tuple[str, ...] | None  # builds on record that fit, as 2.8.0+cu128; None where no file needs torch
    glibc: str = ""

    @property
    def machine(self) -> str:
        """x86_64 or aarch64."""
        return "aarch64" if self.file.removesuffix(".whl").endswith("aarch64") else "x86_64"

    def serves(self, python: str | None) -> bool:
        """Return whether the tags of its name admit a Python; an unknown one is admitted."""
        if python is None:
            return True
        parts = self.file.removesuffix(".whl").split("-")  # name-version(-build)-interpreters-abis-platforms
        if len(parts) not in (5, 6):
            return True
        own = parse_version(python).release[:2]
        return any(
            _admits(interpreter, abi, own) for interpreter in parts[-3].split(".") for abi in parts[-2].split(".")
        )


def _admits(interpreter: str, abi: str, python: tuple[int, ...]) -> bool:
    if not interpreter.startswith("cp") or not interpreter[3:].isdigit():
        return interpreter in ("py3", "py2.py3") or not interpreter.startswith("py2")
    named = int(interpreter[2]), int(interpreter[3:])
    return python >= named if abi in ("abi3", "none") else python == named


class CompiledRecords:
    """Package and version -> its wheels, or what its build needs."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._wheels: Mapping[str, Mapping[str, Any]] = body.get("wheels", {})
        self._sources: Mapping[str, Mapping[str, Any]] = body.get("sources", {})
        #: (major, minor) of the newest torch whose exports were compared: of a later one nothing is known.
        self.newest_torch = parse_version(body.get("newest_torch", "0")).release[:2]

    @functools.cached_property
    def packages(self) -> frozenset[str]:
        """Every package of which some release is on record."""
        return frozenset((*self._wheels, *self._sources))

    @property
    def built(self) -> frozenset[str]:
        """The packages of which some release has to be built, or downloads a wheel when it is built."""
        return frozenset(self._sources)

    def releases(self, package: str) -> tuple[str, ...]:
        """Return the releases with a wheel on record, oldest first."""
        return tuple(self._wheels.get(package, ()))

    def wheels(self, package: str, version: str) -> tuple[WheelRecord, ...]:
        """Return the wheels of a release; empty where it is not on record."""
        rows = self._wheels.get(package, {}).get(version.partition("+")[0], ())
        return tuple(_wheel(row) for row in rows)

    def wheel(self, package: str, version: str, machine: str | None, python: str | None = None) -> WheelRecord | None:
        """Return the wheel that an installer takes here, as far as machine and Python show; None without a record."""
        found = [one for one in self.wheels(package, version) if one.machine == (machine or "x86_64")]
        return next((one for one in found if one.serves(python)), found[0] if found else None)

    def source(self, package: str, version: str) -> SourceBuild | None:
        """Return what the build of a release needs; None where it is not on record."""
        releases = self._sources.get(package, {})
        public = version.partition("+")[0]
        body = releases.get(public)
        if body is None and releases:  # 2.3.2 next to 2.3.2.post1
            base = parse_version(public).base_version
            body = next((found for other, found in releases.items() if parse_version(other).base_version == base), None)
        return None if body is None else SourceBuild.from_json(body)

    def source_releases(self, package: str) -> tuple[str, ...]:
        """Return the releases whose build is on record, oldest first."""
        return tuple(self._sources.get(package, ()))


def _wheel(row: Mapping[str, Any]) -> WheelRecord:
    torch = row.get("torch")
    return WheelRecord(
        row["file"], row["size"], tuple(row["sm"]), tuple(row["cuda"]), None if torch is None else tuple(torch),
        row.get("glibc", ""),
    )  # fmt: skip


@functools.cache
def load_compiled_records(path: Path | None = None) -> CompiledRecords:
    """Return the records that ship with attn-doctor, read once per process."""
    with open_index(path or rules_dir() / "index" / "compiled.json.gz", "the records of wheels") as file:
        return CompiledRecords(json.loads(file.read()))
