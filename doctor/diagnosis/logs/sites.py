"""Where the code of a package raises a message, and under which condition: from a record that ships with the doctor.

The record has the messages of several releases as templates; the expressions of formatted parts name their values. The
checks of torch's compiled code are a record of their own, as pieces of text whose order the compiler may have changed;
those of C++ and CUDA sources are another one. Each is read only where a report needs it.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from doctor.util.resources import rules_dir

_HOLE = "\0"
_HOLES = re.compile(f"{_HOLE}([^{_HOLE}]*){_HOLE}")
_SHORTEST = 12  # fixed characters of a message that say where it comes from
_CLEAR = 24  # fixed characters from which on a message is hardly that of another place
_LONGEST = 2_000  # characters of a line that are compared
_MOST = 6  # places of one message that are kept
_PIECE = 12  # characters of a piece of a compiled message that count
_PIECES_FOUND = 0.7  # of the characters of a compiled message that a line has
_NATIVE = ".native"
_SOURCE = ".csrc"


@dataclass(frozen=True)
class Site:
    """One place that raises: the package, file and function, the condition, and the releases that have it."""

    package: str
    file: str
    function: str
    guard: str  # the condition, as source; empty where the function always raises
    releases: tuple[str, ...]  # on record, in order
    runs: tuple[tuple[int, int], ...]  # first and last release of each span that has it
    values: tuple[tuple[str, str], ...]  # expression -> what the line says
    fixed: int  # characters of the template that the line has
    native: bool = False  # of compiled code

    @property
    def is_clear(self) -> bool:
        """Whether the message is long enough to be that of one place only."""
        return self.fixed >= _CLEAR

    @property
    def without(self) -> str:
        """Return the releases on record without this check, in words; empty where all have it."""
        if not self.runs:
            return ""
        first, last = self.runs[0][0], self.runs[-1][1]
        parts = [f"before {self.releases[first]}"] if first else []
        if last + 1 < len(self.releases):
            parts.append(f"from {self.releases[last + 1]} on")
        return " and ".join(parts)


def sites_of(text: str, packages: Sequence[str] = ()) -> tuple[Site, ...]:
    """Return the places whose message a line has, the best first; of these packages, else of all on record."""
    return _best(text, [record for name in (packages or _packages()) for record in _records_of(name)])


def source_sites_of(text: str) -> tuple[Site, ...]:
    """Return the checks in C++ and CUDA sources of any package whose message a line has, the best first."""
    return _best(text, [name for name in _records() if name.endswith(_SOURCE)])


def _best(text: str, records: Sequence[str]) -> tuple[Site, ...]:
    line = text[:_LONGEST]
    found = [site for name in records for site in _matching(name, line)]
    most = max((site.fixed for site in found), default=0)
    best = [replace(site, runs=_joined(site, found)) for site in found if site.fixed * 5 >= most * 4]
    return tuple(sorted(best, key=lambda site: (-site.fixed, site.package, site.file))[:_MOST])


def native_sites_of(package: str, text: str) -> tuple[Site, ...]:
    """Return the checks of the compiled code of a package whose message a line has, the best first."""
    name = f"{package}{_NATIVE}"
    if name not in _records():
        return ()
    line = text[:_LONGEST]
    known = _record(name)
    found = []
    for (_, file, function, guard, runs), pieces in zip(known["sites"], _pieces(name), strict=True):
        if not pieces[0] or pieces[0] not in line:
            continue
        fixed = sum(len(piece) for piece in pieces if piece in line)
        if fixed >= _PIECES_FOUND * sum(map(len, pieces)):
            place = known["files"][file], function, guard, tuple(known["releases"]), _spans(runs)
            found.append(Site(package, *place, (), fixed, native=True))
    most = max((site.fixed for site in found), default=0)
    best = [replace(site, runs=_joined(site, found)) for site in found if site.fixed * 5 >= most * 4]
    return tuple(sorted(best, key=lambda site: (-site.fixed, site.file, site.function)))


def _spans(runs: str) -> tuple[tuple[int, int], ...]:
    return tuple((int(a), int(b)) for a, b in (span.split("-") for span in runs.split(",")))


def _joined(site: Site, found: Sequence[Site]) -> tuple[tuple[int, int], ...]:
    """Return the spans of releases in which a package has a message, wherever and under whichever condition."""
    same = [other.runs for other in found if other.package == site.package and other.fixed == site.fixed]
    held = {number for runs in same for first, last in runs for number in range(first, last + 1)}
    firsts = sorted(number for number in held if number - 1 not in held)
    return tuple(zip(firsts, sorted(number for number in held if number + 1 not in held), strict=True))


def has(package: str) -> bool:
    """Return whether the messages of a package are on record."""
    return package in _packages()


def _records_of(package: str) -> Iterator[str]:
    """Yield the records of a package: of its Python code, and of its C++ and CUDA sources."""
    yield from (name for name in (package, f"{package}{_SOURCE}") if name in _records())


def _matching(name: str, line: str) -> Iterator[Site]:
    known = _record(name)
    native = name.endswith(_SOURCE)
    package = name.removesuffix(_SOURCE)
    for (template, file, function, guard, runs), (longest, fixed) in zip(known["sites"], _longest(name), strict=True):
        if fixed >= _SHORTEST and longest in line and (values := values_of(template, line)) is not None:
            place = known["files"][file], function, guard, tuple(known["releases"]), _spans(runs)
            yield Site(package, *place, tuple(values.items()), fixed, native)


def values_of(template: str, line: str) -> dict[str, str] | None:
    """Return what a line has in place of the formatted parts; None where it is another message."""
    parts = _HOLES.split(template)
    texts, names = parts[::2], parts[1::2]
    at = line.find(texts[0].split("\n")[0]) if texts[0] else 0
    if at < 0:
        return None
    if "\n" in texts[0]:
        return {}
    at += len(texts[0])
    found: dict[str, str] = {}
    for name, text in zip(names, texts[1:], strict=True):
        fixed = text.split("\n")[0]
        end = line.find(fixed, at) if fixed else len(line)
        if end < 0:
            return None
        if name:
            found.setdefault(name, line[at:end][:80])
        if "\n" in text:
            break
        at = end + len(fixed)
    return found


@cache
def _longest(package: str) -> list[tuple[str, int]]:
    """Return the longest fixed part of each template, and how many characters are fixed."""
    found = []
    for template, *_ in _record(package)["sites"]:
        texts = _HOLES.split(template.partition("\n")[0])[::2]
        found.append((max(texts, key=len), sum(map(len, texts))))
    return found


@cache
def _pieces(name: str) -> list[tuple[str, ...]]:
    """Return the pieces of each compiled message that count, the longest first."""
    found = []
    for template, *_ in _record(name)["sites"]:
        texts = sorted((text.partition("\n")[0] for text in _HOLES.split(template)[::2]), key=len, reverse=True)
        found.append((texts[0], *(text for text in texts[1:] if len(text) >= _PIECE)))
    return found


@cache
def _record(package: str) -> Mapping[str, Any]:
    file = _folder() / f"{package}.json.xz"
    return dict(json.loads(lzma.decompress(file.read_bytes())))


def _packages() -> tuple[str, ...]:
    """Return the packages whose Python code, or C++ and CUDA sources, are on record."""
    return tuple(dict.fromkeys(name.removesuffix(_SOURCE) for name in _records() if not name.endswith(_NATIVE)))


@cache
def _records() -> tuple[str, ...]:
    """Return the names of the records."""
    return tuple(sorted(path.name.removesuffix(".json.xz") for path in _folder().glob("*.json.xz")))


def _folder() -> Path:
    return rules_dir() / "index" / "messages"
