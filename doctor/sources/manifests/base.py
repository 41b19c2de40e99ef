"""The types that manifest readers return: requirements with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import InvalidVersion

from doctor.errors import fault
from doctor.facts.vocabulary import parse_version
from doctor.model import Fact, TextEnum
from doctor.packages.compiled_records import load_compiled_records
from doctor.packages.relations import BUILT_PER_INDEX, OWN_INDEXES
from doctor.util.redact import shortened

#: A single bound of plain numbers: needs no parser to be recognised as a range of versions.
PLAIN_RANGE = re.compile(r"(?:==|!=|>=|<=|>|<)[0-9]{1,9}(?:\.[0-9]{1,9}){0,6}")
_PLAIN_PIN = re.compile(r"==([0-9]{1,9}(?:\.[0-9]{1,9}){0,6})")
MAX_BYTES = 8 * 1024 * 1024
MAX_LOCK_BYTES = 64 * 1024 * 1024  # a lock in TOML lists each wheel of each release with its hash
_LARGE_LOCKS = re.compile(r"(?:uv|poetry|pdm)\.lock|pylock(?:\.[^.]+)?\.toml", re.IGNORECASE)
#: Facts of what an installer compiles: in an environment of its own; at all; before torch is there; without nvcc; in an
#: image, where no GPU is visible.
ISOLATED, BUILT = "declared.isolated", "declared.built"
BEFORE_TORCH, WITHOUT_NVCC = "declared.built_before_torch", "declared.built_without_nvcc"
IN_IMAGE = "declared.built_in_image"
BY_EXTRAS = "declared.built_by_extras"
LOCAL_STOPS = "declared.local_stops"  # why the builds of the project's own folders stop
MOST_ENTRIES = 100_000  # requirements of one file with its includes


def most_bytes(path: Path) -> int:
    """Return up to which size a manifest of this name is read."""
    return MAX_LOCK_BYTES if _LARGE_LOCKS.fullmatch(path.name) else MAX_BYTES


class ManifestKind(TextEnum):
    """The formats of manifests."""

    CONDA = "conda"
    CONDA_LOCK = "conda_lock"
    CONTAINERS = "containers"
    DOCKERFILE = "dockerfile"
    JOBSCRIPT = "jobscript"
    PDM = "pdm"
    PIPFILE = "pipfile"
    PIPFILE_LOCK = "pipfile_lock"
    PIXI = "pixi"
    PIXI_PROJECT = "pixi_project"
    POETRY = "poetry"
    PYLOCK = "pylock"
    PYPROJECT = "pyproject"
    REQUIREMENTS = "requirements"
    SETUPTOOLS = "setuptools"
    UV = "uv"
    WORKFLOW = "workflow"


class FileRole(TextEnum):
    """What a file of a project folder contributes."""

    ENVIRONMENT = "environment"  # packages and variables
    VARIABLES = "variables"  # variables only
    LEFT_OUT = "left out"


@dataclass(frozen=True)
class DeclaredRequirement:
    """One package in one line."""

    name: str  # normalized by PEP 503
    file: str
    line: int
    range: str = ""  # PEP 440 clauses; empty allows every release
    version: str | None = None  # the one that will be installed
    extras: tuple[str, ...] = ()
    marker: str | None = None
    raw: str | None = None  # the line as written
    constraint: bool = False  # counts only where something else requires the package
    locked: bool = False  # chosen by a resolver; of several, markers or extras decide
    problem: str | None = None  # why its version is unknown
    source: bool = False  # compiled from a repository at installation
    alone: bool = False  # installed with --no-deps: what it requires stays as it is

    @property
    def place(self) -> str:
        """Return file and line, as sources and messages name them; the file alone where there is no line."""
        return self.file if not self.line else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Manifest:
    """What one file declares, with the files it includes."""

    entries: tuple[DeclaredRequirement, ...]
    facts: tuple[Fact, ...] = ()  # everything except packages
    complete: bool = False  # it lists every package that will be installed
    requires_python: str = ""
    notes: tuple[str, ...] = ()
    included: tuple[str, ...] = ()  # resolved paths of the project's files that it installs


@dataclass(frozen=True)
class DiscoveredFile:
    """One file of a project folder that declares something, and its role."""

    path: Path
    kind: ManifestKind
    role: FileRole
    why: str  # the end of a sentence: "`uv.lock` is preferred"

    @property
    def used(self) -> bool:
        """Return whether it counts."""
        return self.role != FileRole.LEFT_OUT


def without_conflicts(entries: Iterable[DeclaredRequirement], which: str) -> Iterator[DeclaredRequirement]:
    """Yield the entries; a package with different requirements becomes one entry of unknown version.

    `which` says what the entries belong to, for the message: "the extras and groups of".
    """
    groups: dict[str, list[DeclaredRequirement]] = {}
    for entry in entries:
        groups.setdefault(entry.name, []).append(entry)
    for group in groups.values():
        if len({(entry.version, entry.range) for entry in group if entry.marker is None}) > 1:
            versions = ", ".join(f"{entry.version or entry.range or 'any'} (line {entry.line})" for entry in group[:4])
            problem = f"{which} {group[0].file} require different versions: {versions}"
            yield replace(group[0], marker=None, problem=problem)
        else:
            yield from group


def pin_of(ranges: str, file: object, line: int) -> str | None:
    """Return the version that `==` fixes, None without one; DoctorError for an invalid version after `===`."""
    if (plain := _PLAIN_PIN.fullmatch(ranges)) is not None:
        return plain[1]
    clauses = [clause.strip() for clause in ranges.split(",") if clause.strip()]
    exact = [clause for clause in clauses if clause.startswith("==") and not clause.endswith(".*")]
    return checked_version(exact[0].lstrip("=").strip(), file, line) if exact else None


def checked_version(text: str, file: object, line: int) -> str:
    """Return a version as written; DoctorError with file and line where it is none."""
    try:
        parse_version(text)
    except InvalidVersion:
        raise fault(file, line, f"`{shortened(text, 60)}` is not a version") from None
    return text


def index_builds(names: Iterable[str], place: str) -> list[Fact]:
    """Return what is not known of packages from an index of torch builds: the builds on record are the registry's."""
    problem = f"{place} names another index, whose builds are not on record"
    keys = [f"{name}.fitting_torch" for name in sorted(BUILT_PER_INDEX) if name in set(names)]
    return [Fact(key, None, place, problem=problem) for key in keys]


def own_builds(names: Iterable[str], indexes: Iterable[tuple[str, str]]) -> list[Fact]:
    """Return what is not known of packages from an index of their own, which has builds for several CUDA releases.

    `indexes`: pairs of the place that names an index, and its address.
    """
    wanted, given = set(names), tuple(indexes)
    found: list[Fact] = []
    for package, address in OWN_INDEXES.items():
        place, url = next(((place, url) for place, url in given if address in url), (None, ""))
        if place is not None and package in wanted:
            problem = f"{place} names another index, whose builds are not on record"
            found.append(Fact(f"{package}.wheel_cuda_major", None, place, problem=problem))
            if "nightly" in url:
                found.append(Fact("declared.elsewhere", (package,), place))
    return found


def cuda_of_index(url: str) -> str | None:
    """Return the CUDA of the torch builds in a package index of PyTorch: `…/whl/cu124` -> 12.4."""
    match = re.search(r"pytorch.*(?:whl|wheels)/(?:test/|nightly/)?cu([0-9]+)([0-9])(?:[/?#]|$)", url)
    return f"{match[1]}.{match[2]}" if match else None


def all_read(path: Path, what: str) -> str:
    """Return the note on a project whose extras were all read; `what`: "extra and group"."""
    return f"{path}: a plain install brings no attention library, so every {what} was read"


def left_out(path: Path, names: Sequence[str], what: str) -> str:
    """Return the note on what a plain install leaves out; `what`: "extras and groups"."""
    shown = ", ".join(names[:6]) + (" …" if len(names) > 6 else "")
    return f"{path}: skipped optional {what}: {shown} (`{path.name}[{names[0]}]` reads one)"


def builds_of_extra(entries: Iterable[DeclaredRequirement], extra: str, place: str) -> list[Fact]:
    """Return the fact of what an installer compiles for an extra that was not chosen; of a range it is unknown."""
    built = load_compiled_records().built
    found = tuple(
        f"{extra}:{entry.name}{f'=={entry.version}' if entry.version else ''}"
        for entry in entries
        if entry.name in built and not entry.constraint and ".whl" not in (entry.raw or "") and not entry.source
        and (entry.version or not entry.range)
    )  # fmt: skip
    return [Fact(BY_EXTRAS, found, place)] if found else []


def builds(entries: Iterable[DeclaredRequirement], place: str, *, isolated: bool = True) -> list[Fact]:
    """Return the facts of what an installer compiles for these lines; in isolation, unless an option says otherwise."""
    requested = {entry.name for entry in entries if not entry.constraint and ".whl" not in (entry.raw or "")}
    names = tuple(sorted(requested & load_compiled_records().built))
    if not names:
        return []
    compiled = Fact(BUILT, names, place)
    return [Fact(ISOLATED, names, place), compiled] if isolated else [compiled]


def overridden(names: Iterable[str], source: str) -> Fact:
    """Return the fact of the packages whose release a project sets against what others require."""
    return Fact("declared.overridden", tuple(sorted(names)), source)
