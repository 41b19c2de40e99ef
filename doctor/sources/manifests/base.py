"""What a reader of one format hands over: entries with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import InvalidVersion

from doctor.errors import fault
from doctor.facts.vocabulary import parse_version
from doctor.model import Fact

#: A single bound of plain numbers, which needs no parser to be known for a range of versions.
PLAIN_RANGE = re.compile(r"(?:==|!=|>=|<=|>|<)\d{1,9}(?:\.\d{1,9}){0,6}")
_PLAIN_PIN = re.compile(r"==(\d{1,9}(?:\.\d{1,9}){0,6})")  # needs no parser
ENVIRONMENT, VARIABLES, LEFT_OUT = "environment", "variables", "left out"  # roles of a discovered file
MAX_BYTES = 32 * 1024 * 1024  # lock files with hashes are long


@dataclass(frozen=True)
class DeclaredRequirement:
    """One package in one line."""

    name: str  # in PEP 503 form
    file: str
    line: int
    range: str = ""  # PEP 440 clauses; empty admits every release
    version: str | None = None  # the one that is installed
    extras: tuple[str, ...] = ()
    marker: str | None = None
    raw: str | None = None  # the line as it stands
    constraint: bool = False  # binds only what something else asks for
    locked: bool = False  # a resolver chose it; of several the markers or the extras decide
    problem: str | None = None  # why its version cannot be told
    source: bool = False  # compiled from a repository where it is installed

    @property
    def place(self) -> str:
        """File and line, as sources and complaints name them."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Manifest:
    """What one file, with those it includes, declares."""

    entries: tuple[DeclaredRequirement, ...]
    facts: tuple[Fact, ...] = ()  # what it says besides packages
    complete: bool = False  # it lists everything that will be installed
    requires_python: str = ""
    notes: tuple[str, ...] = ()
    included: tuple[str, ...] = ()  # files of the project that it was found to install, by their whole path


def normalized(name: str) -> str:
    """A distribution's name in its one PEP 503 form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def agreed(entries: Iterable[DeclaredRequirement], who: str) -> Iterator[DeclaredRequirement]:
    """The entries; of a package for which several say something else, one that tells so: which counts is not known."""
    groups: dict[str, list[DeclaredRequirement]] = {}
    for entry in entries:
        groups.setdefault(entry.name, []).append(entry)
    for found in groups.values():
        if len({(entry.version, entry.range) for entry in found if entry.marker is None}) > 1:
            told = ", ".join(f"{entry.version or entry.range or 'any'} (line {entry.line})" for entry in found[:4])
            yield replace(found[0], marker=None, problem=f"{who} {found[0].file} ask for different ones: {told}")
        else:
            yield from found


def pin_of(ranges: str, file: object, line: int) -> str | None:
    """The version that `==` leaves as the only one; DoctorError for what is none, which `===` lets pass."""
    if (plain := _PLAIN_PIN.fullmatch(ranges)) is not None:
        return plain[1]

    clauses = [clause.strip() for clause in ranges.split(",") if clause.strip()]
    exact = [clause for clause in clauses if clause.startswith("==") and not clause.endswith(".*")]
    if not exact:
        return None
    pin = exact[0].lstrip("=").strip()
    try:
        parse_version(pin)
    except InvalidVersion:
        raise fault(file, line, f"`{pin[:60]}` is no version") from None
    return pin


def cuda_of_index(url: str) -> str | None:
    """The CUDA of torch builds that a package index of PyTorch carries: `…/whl/cu124` → 12.4."""
    match = re.search(r"pytorch.*(?:whl|wheels)/(?:test/|nightly/)?cu(\d+)(\d)(?:[/?#]|$)", url)
    return f"{match[1]}.{match[2]}" if match else None


@dataclass(frozen=True)
class Discovered:
    """One file of a project that declares something, and what becomes of it."""

    path: Path
    kind: str  # the format: a module of this package
    role: str  # environment | variables | left out
    why: str  # a sentence's end: "`uv.lock` says what it resolves to"

    @property
    def used(self) -> bool:
        """Whether it counts."""
        return self.role != LEFT_OUT
