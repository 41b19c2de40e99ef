"""One requirement, changed where it has to change: name, extras, spacing and marker stay as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from doctor.errors import DoctorError
from doctor.packages.specifiers import admits, normalized
from doctor.sources.manifests.formats.requirements import version_of_address

from .changes import ChangeSet, PackageChange

_NAMED = re.compile(r"\s*(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?P<extras>\[[^\]]*\])?")
_ADDRESS = re.compile(r"\s*@\s*(?P<url>\S+)(?:\s+;\s*(?P<marker>.*?))?\s*", re.DOTALL)
_RANGE = re.compile(r"\s*\(?\s*(?P<spec>[^;()@]*?)\s*\)?\s*(?:;\s*(?P<marker>.*?))?\s*", re.DOTALL)
_CLAUSES = re.compile(r"(?:(?:~=|===?|!=|<=|>=|<|>)\s*[^\s,$]+\s*(?:,\s*|$))*", re.DOTALL)
_EXACT = re.compile(r"===?\s*(?P<version>[^\s,*]+)")
_BUILT_WITH = re.compile(r"[+.-]?torch(\d+\.\d+)")


@dataclass(frozen=True)
class Edit:
    """A stretch of a text and what takes its place."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Parts:
    """The positions of the parts of a requirement in its text."""

    name: str  # in PEP 503 form
    version: str | None  # of its address
    extras: tuple[int, int] | None
    spec: tuple[int, int] | None  # empty where it has no range; None where it is an address
    url: tuple[int, int] | None
    marker: str | None
    head: int  # where name and extras end
    tail: int  # where the whole ends, marker aside


def apply(text: str, edits: Iterable[Edit]) -> str:
    """The text with all of them made; they must not overlap, and those at one place keep their order."""
    ordered = sorted(edits, key=lambda item: (item.start, item.end))
    for edit in reversed(ordered):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def take_apart(text: str) -> Parts | None:
    """The parts of `name[extras] range ; marker` or `name @ address ; marker`; None for anything else."""
    named = _NAMED.match(text)
    if named is None:
        return None
    head = named.end("extras") if named["extras"] is not None else named.end("name")
    extras = None if named["extras"] is None else named.span("extras")
    address = _ADDRESS.fullmatch(text, head)
    if address:
        version = _version_of(named["name"], address["url"])
        span = address.span("url")
        return Parts(normalized(named["name"]), version, extras, None, span, address["marker"], head, span[1])
    found = _RANGE.fullmatch(text, head)
    if found is None or not _CLAUSES.fullmatch(found["spec"]):
        return None
    span = found.span("spec") if found["spec"] else (head, head)
    return Parts(normalized(named["name"]), None, extras, span, None, found["marker"], head, span[1])


def _version_of(name: str, url: str) -> str | None:
    return version_of_address(url, name)


def changes(text: str, parts: Parts, goals: ChangeSet, loose: bool = False) -> list[Edit] | None:
    """What has to change so that the requirement says what the fix wants; None where it has to go altogether.

    A `loose` one need not say the version, since another does; it must only admit it.
    """
    goal = goals.items.get(parts.name)
    if goal is None and parts.spec is not None:
        goal = goals.companion(parts.name, _joined(text[slice(*parts.spec)]))
    if goal is None:
        return _rebuilt(text, parts, goals)
    if goal.range is not None:
        return _narrowed(text, parts, goal.range)
    if goal.version is None:
        return None
    if parts.spec is None:
        return _address(text, parts, goal, goals)
    spec = text[slice(*parts.spec)]
    exact = _EXACT.fullmatch(spec)
    if exact and goals.same(exact["version"], goal.version):
        return _extra(text, parts, goal)
    if (loose or not goal.named) and _leaves_room(spec, goal.version):
        return []
    start = parts.spec[0]
    if exact:
        made = Edit(start + exact.start("version"), start + exact.end("version"), goal.version)
    else:
        made = Edit(*parts.spec, f"=={goal.version}")
    return [made, *_extra(text, parts, goal)]


def _narrowed(text: str, parts: Parts, wanted: str) -> list[Edit]:
    """A range in place of a wider one, the lower bound first, spaced as the old one is."""
    if parts.spec is None or is_exact(text, parts):
        return []
    spec = text[slice(*parts.spec)]
    clauses = sorted(wanted.split(","), key=lambda clause: ">~=<!".find(clause[0]))
    if set(clauses) == set(_joined(spec).split(",")):
        return []
    return [Edit(*parts.spec, (", " if ", " in spec else ",").join(clauses))]


def is_exact(text: str, parts: Parts) -> bool:
    """Whether the requirement admits one version only."""
    return parts.spec is not None and _EXACT.fullmatch(text[slice(*parts.spec)]) is not None


def _leaves_room(spec: str, version: str) -> bool:
    return admits(_joined(spec), version)


def _joined(spec: str) -> str:
    """A range without the spaces, and without the comma that may end it."""
    return re.sub(r"\s+", "", spec).strip(",")


def _extra(text: str, parts: Parts, goal: PackageChange) -> list[Edit]:
    """The extra that brings the binary part, where the release needs one and none of its kind is requested."""
    stem = goal.extra.strip("[]").partition("-")[0]
    if not stem:
        return []
    if parts.extras is None:
        return [Edit(parts.head, parts.head, goal.extra)]
    start, end = parts.extras
    present = [item.strip() for item in text[start + 1 : end - 1].split(",") if item.strip()]
    if any(normalized(item).partition("-")[0] == stem for item in present):
        return []
    return [Edit(end - 1, end - 1, ("," if present else "") + goal.extra.strip("[]"))]


def _address(text: str, parts: Parts, goal: PackageChange, goals: ChangeSet) -> list[Edit]:
    assert parts.url is not None and goal.version is not None
    url = text[slice(*parts.url)]
    if parts.version is not None and goals.same(parts.version, goal.version) and not _for_other_torch(url, goals):
        return []
    return [_replaced(parts, goal.version, goals)]


def _rebuilt(text: str, parts: Parts, goals: ChangeSet) -> list[Edit]:
    """A wheel for the old torch, of a package that stays: the same release for the new one."""
    if parts.url is None or not _for_other_torch(text[slice(*parts.url)], goals):
        return []
    if parts.version is None:
        raise DoctorError(
            f"`{parts.name}` comes from an address for the old torch that does not name its version",
            "put the wheel for the new torch there, or a version",
        )
    return [_replaced(parts, parts.version.partition("+")[0], goals)]


def _replaced(parts: Parts, version: str, goals: ChangeSet) -> Edit:
    """The wheel that fits, if there is one; else the version, which is then built from source."""
    assert parts.url is not None
    wheel = goals.wheel(parts.name, version)
    return Edit(*parts.url, wheel) if wheel else Edit(parts.head, parts.tail, f"=={version}")


def _for_other_torch(url: str, goals: ChangeSet) -> bool:
    """Whether a file's name says that it was built with another torch than the one that is coming."""
    built = _BUILT_WITH.search(url.rpartition("/")[2].replace("%2B", "+"))
    return goals.torch is not None and built is not None and built[1] != ".".join(goals.torch.split(".")[:2])
