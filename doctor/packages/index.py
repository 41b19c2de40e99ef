"""The embedded release index: which releases of the attention stack exist, what they require, where they run.

One JSON line per package in a gzip file, so that a look-up parses the lines it needs and no others.
`scripts/release/refresh_index.py` brings it up to date.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from doctor.errors import DoctorError
from doctor.facts.versions import pep440_holds, split_clauses
from doctor.facts.vocabulary import parse_version
from doctor.util.resources import rules_dir

from .requirement_lines import marker_holds, read_line


def normalized(name: str) -> str:
    """A distribution name in its one PEP 503 form."""
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.lru_cache(maxsize=65536)
def requirement(text: str) -> Requirement:
    """A Requires-Dist line, parsed once per text."""

    return Requirement(text)


@functools.lru_cache(maxsize=65536)
def specifier(text: str) -> SpecifierSet:
    """A version range, parsed once per text."""

    return SpecifierSet(text)


@functools.lru_cache(maxsize=262144)
def admits(range_text: str, version: str) -> bool:
    """Whether the version lies in the range; a pre-release counts where it is asked about by name."""
    if not range_text:
        return True
    clauses = [] if "===" in range_text else clauses_of(range_text)
    if not clauses or any(bound.is_prerelease for _, bound, _ in clauses):
        return specifier(range_text).contains(parse_version(version), prereleases=True)
    found = parse_version(version)  # the same verdict without importing `packaging.specifiers`
    return all(pep440_holds(operator, found, bound, prefix) for operator, bound, prefix in clauses)


@functools.lru_cache(maxsize=65536)
def clauses_of(range_text: str) -> tuple[tuple[str, Version, bool], ...]:
    """(operator, bound, whether the bound ends in `.*`) of each clause; empty for what is no range."""
    return tuple(
        (operator, parse_version(bound.removesuffix(".*")), bound.endswith(".*"))
        for operator, bound in split_clauses(range_text)
    )


@dataclass(frozen=True)
class Need:
    """One requirement, taken apart once."""

    package: str
    range: str
    pin: str | None  # the version that `==` leaves as the only one


@dataclass(frozen=True)
class Platform:
    """Where the packages shall run; None means unknown and excludes nothing."""

    python: str | None = None
    system: str = "Linux"
    machine: str = "x86_64"

    @property
    def markers(self) -> dict[str, str]:
        """The variables of PEP 508 markers; an unknown Python counts as the newest that most of the stack serves."""
        full = self.python or "3.11.0"
        return {
            "python_version": ".".join(full.split(".")[:2]),
            "python_full_version": full if full.count(".") > 1 else full + ".0",
            "platform_system": self.system,
            "sys_platform": {"Linux": "linux", "Darwin": "darwin", "Windows": "win32"}.get(self.system, "linux"),
            "os_name": "nt" if self.system == "Windows" else "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "implementation_name": "cpython",
            "implementation_version": full,
            "platform_release": "",
            "platform_version": "",
        }


@dataclass(frozen=True)
class Release:
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


def needs_of(lines: tuple[str, ...], platform: Platform, extras: frozenset[str] = frozenset()) -> tuple[Need, ...]:
    """The Requires-Dist lines whose markers hold on the platform, with no extra or one of these."""
    needs = (_need(line, platform.markers, ("", *sorted(extras))) for line in lines)
    return tuple(need for need in needs if need is not None)


def loses_cuda(release: Release, platform: Platform) -> bool:
    """On aarch64 the registry's older torch wheels are CPU builds: no way out for a GPU job."""
    if release.package != "torch" or platform.machine == "x86_64" or platform.system != "Linux":
        return False
    elsewhere = Platform(platform.python, "Linux", "x86_64")
    here, there = (needs_of(release.requires, place) for place in (platform, elsewhere))
    return not any("nvidia" in need.package for need in here) and any("nvidia" in need.package for need in there)


def _need(text: str, values: Mapping[str, str], extras: tuple[str, ...]) -> Need | None:
    """What a line asks for, None if its marker does not hold here."""
    line = read_line(text)
    if line is None:
        return _any_need(text, values, extras)
    if line.marker is not None:
        verdicts = [marker_holds(line.marker, {**values, "extra": extra}, admits) for extra in extras]
        if None in verdicts:
            return _any_need(text, values, extras)
        if True not in verdicts:
            return None
    return Need(normalized(line.name), ",".join(line.clauses), _exact(line.clauses))


def _any_need(text: str, values: Mapping[str, str], extras: tuple[str, ...]) -> Need | None:
    """The same for a line of any kind."""

    try:
        parsed = requirement(text)
    except InvalidRequirement:
        return None  # a line that no installer reads binds nobody
    marker = parsed.marker
    if marker is not None and not any(marker.evaluate({**values, "extra": extra}) for extra in extras):
        return None
    return Need(normalized(parsed.name), str(parsed.specifier), _exact(tuple(map(str, parsed.specifier))))


def _exact(clauses: tuple[str, ...]) -> str | None:
    """The version that `==` leaves as the only one."""
    if len(clauses) == 1 and clauses[0].startswith("==") and not clauses[0].endswith(".*"):
        return clauses[0].lstrip("=").strip()
    return None


def _tag_fits(tag: str, python: str) -> bool:
    if tag.startswith("py"):
        return tag == "py3" or tag == "py2.py3"
    major, minor = (int(part) for part in python.split(".")[:2])
    match = re.match(r"cp(\d)(\d+)(\+?)$", tag)
    if match is None or int(match[1]) != major:
        return False
    return minor >= int(match[2]) if match[3] else minor == int(match[2])


class ReleaseIndex:
    """Package → releases, each package's line parsed when it is first asked for."""

    def __init__(self, lines: Mapping[str, str], refreshed: str = "") -> None:
        self._lines = lines
        self._packages: dict[str, dict[str, Release]] = {}
        self.refreshed = refreshed  # date of the newest release in it

    @classmethod
    def from_text(cls, text: str) -> ReleaseIndex:
        """The index in its line form: `{"name": …` per package after a head line."""
        head, _, rest = text.partition("\n")
        lines = {}
        for line in rest.splitlines():
            name = line[len('{"name":"') : line.index('"', len('{"name":"'))]
            lines[name] = line
        return cls(lines, str(json.loads(head).get("refreshed", "")))

    def __contains__(self, package: object) -> bool:
        return package in self._lines

    @property
    def packages(self) -> tuple[str, ...]:
        """Every package on record."""
        return tuple(self._lines)

    def mentions(self, package: str, other: str) -> bool:
        """Whether any release of the package may speak of the other; the text is searched, nothing is parsed."""
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
    def torch_builds(self) -> Mapping[str, Mapping[str, Any]]:
        """`2.6+cu126` → facts of the torch builds that other indexes carry."""
        line = self._lines.get("torch")
        return json.loads(line).get("builds", {}) if line else {}


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
    if path is None:
        path = rules_dir() / "index" / "releases.json.gz"
    try:
        return ReleaseIndex.from_text(gzip.decompress(path.read_bytes()).decode("utf-8"))
    except (OSError, EOFError, ValueError) as problem:
        raise DoctorError(
            f"the release index `{path.name}` cannot be read: {problem}", "reinstall attn-doctor"
        ) from None
