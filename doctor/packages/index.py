"""The embedded release index: which releases of the attention stack exist, what they require, where they run.

One JSON line per package in a gzip file, so that a look-up parses the lines it needs and no others.
`scripts/release/refresh_index.py` brings it up to date.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion

from doctor.facts.vocabulary import is_python_version, parse_version
from doctor.model import TORCH
from doctor.packages.needs import needs_of
from doctor.packages.platform import Platform
from doctor.packages.specifiers import admits

from .index_file import open_index


class Release(NamedTuple):
    """One release of one package."""

    package: str
    version: str
    date: str
    requires: tuple[str, ...]  # Requires-Dist as published
    requires_python: str
    yanked: bool
    tags: tuple[str, ...]  # Pythons with a Linux wheel: py3, cp311, cp39+ (abi3)
    machines: tuple[str, ...]  # any, x86_64, aarch64
    sdist: bool

    @property
    def is_prerelease(self) -> bool:
        """An alpha, beta, rc or dev release."""
        return parse_version(self.version).is_prerelease

    def has_wheel(self, platform: Platform) -> bool:
        """Whether a wheel for this Python and machine was published (other systems than Linux are not on record)."""
        if platform.system != "Linux":
            return bool(self.tags)
        if not set(self.machines) & {"any", platform.machine}:
            return False
        return platform.python is None or any(_tag_fits(tag, platform.python) for tag in self.tags)

    def installs_on(self, platform: Platform) -> bool:
        """Whether an installer would take it at all: Requires-Python, and a wheel or a source to build."""
        if platform.python is not None and not admits(self.requires_python, platform.python):
            return False
        return self.sdist or self.has_wheel(platform)


class TorchBuild(NamedTuple):
    """One build of a series of torch, for one CUDA release, in an index of its own."""

    cuda: str
    cudnn: str
    abi: int  # 1: the C++11 ABI
    archs: tuple[str, ...]  # the GPUs that it has code for


def loses_cuda(release: Release, platform: Platform) -> bool:
    """On aarch64 the registry's older torch wheels are CPU builds: no fix for a GPU job."""
    if release.package != TORCH or platform.machine == "x86_64" or platform.system != "Linux":
        return False
    elsewhere = Platform(platform.python, "Linux", "x86_64")
    here, there = (needs_of(release.requires, place) for place in (platform, elsewhere))
    with_cuda = [any("nvidia" in need.package for need in needs) for needs in (here, there)]
    return with_cuda == [False, True]


def _tag_fits(tag: str, python: str) -> bool:
    if tag.startswith("py"):
        return tag == "py3" or tag == "py2.py3"
    if not is_python_version(python):
        return True  # what is no Python release excludes nothing
    major, minor = (int(number) for number in re.findall(r"[0-9]+", python)[:2])
    match = re.match(r"cp([0-9])([0-9]+)(\+?)$", tag)
    if match is None or int(match[1]) != major:
        return False
    return minor >= int(match[2]) if match[3] else minor == int(match[2])


class ReleaseIndex:
    """Package → releases, each package's line parsed at its first use."""

    def __init__(self, lines: Mapping[str, str], refreshed: str = "", newest: Mapping[str, str] | None = None) -> None:
        self._lines = lines
        self._packages: dict[str, dict[str, Release]] = {}
        self.refreshed = refreshed  # date of the newest release in it
        self.newest = newest or {}  # package → its newest release, pre-releases aside

    @classmethod
    def from_text(cls, text: str) -> ReleaseIndex:
        """The index in its line form: `{"name": …` per package after a head line."""
        head, _, rest = text.partition("\n")
        lines = {}
        for line in rest.splitlines():
            name = line[len('{"name":"') : line.index('"', len('{"name":"'))]
            lines[name] = line
        about = json.loads(head)
        return cls(lines, str(about.get("refreshed", "")), about.get("newest"))

    def __contains__(self, package: object) -> bool:
        return package in self._lines

    @property
    def packages(self) -> tuple[str, ...]:
        """Every package on record."""
        return tuple(self._lines)

    def mentions(self, package: str, other: str) -> bool:
        """Whether any release of the package may name the other; the text is searched, nothing is parsed."""
        return other in self._lines.get(package, "")

    def releases(self, package: str) -> Mapping[str, Release]:
        """Version → release, oldest first; empty for a package that is not on record."""
        found = self._packages.get(package)
        if found is None:
            line = self._lines.get(package)
            body: dict[str, dict[str, Any]] = json.loads(line)["releases"] if line else {}
            found = self._packages[package] = {
                version: _release(package, version, body[version]) for version in sorted(body, key=parse_version)
            }
        return found

    def release(self, package: str, version: str) -> Release | None:
        """One release by version; a local label or another spelling of the same version finds it too."""
        releases = self.releases(package)
        public = version.partition("+")[0]
        found = releases.get(version) or releases.get(public)
        if found is None and releases and public[:1].isdigit():
            try:
                wanted = parse_version(public)
            except InvalidVersion:
                return None
            found = next((item for text, item in releases.items() if parse_version(text) == wanted), None)
        return found

    @functools.cached_property
    def torch_builds(self) -> Mapping[str, TorchBuild]:
        """`2.6+cu126` → the torch build that another index carries."""
        line = self._lines.get(TORCH)
        rows = json.loads(line).get("builds", {}) if line else {}
        return {name: TorchBuild(**{**row, "archs": tuple(row["archs"])}) for name, row in rows.items()}


def _release(package: str, version: str, body: Mapping[str, Any]) -> Release:
    return Release(
        package=package,
        version=version,
        date=body.get("d") or "",
        requires=tuple(body.get("rd") or ()),
        requires_python=body.get("rp") or "",
        yanked=bool(body.get("y")),
        tags=tuple(body.get("t") or ()),
        machines=tuple(body.get("m") or ()),
        sdist=bool(body.get("s")),
    )


@functools.cache
def load_index(path: Path | None = None) -> ReleaseIndex:
    """The embedded index, read once per process."""
    with open_index(path) as file:
        return ReleaseIndex.from_text(file.read().decode("utf-8"))
