"""From the entries of declared files to facts: markers judged, pins joined, ranges narrowed, what pins bring added."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from doctor.errors import DoctorError, fault
from doctor.facts.vocabulary import fact as make_fact
from doctor.model import ABSENT, Fact, Facts
from doctor.packages.index import ReleaseIndex, load_index
from doctor.packages.platform import Platform
from doctor.packages.requirements import admits, needs_of

from .base import DeclaredRequirement, Manifest
from .markers import judge, platforms
from .source_builds import LOOSE_FROM_SOURCE
from .version_ranges import OpenRange, binding, fits, go_together

_MOST_ROUNDS = 8


@dataclass(frozen=True)
class Declaration:
    """The declared environment: what it fixes, what it leaves open, and which files could not be read."""

    facts: Facts
    open: tuple[OpenRange, ...] = ()
    platform: Platform = field(default_factory=Platform)
    other_index: bool = False  # torch does not come from PyPI
    notes: tuple[str, ...] = ()
    faults: tuple[DoctorError, ...] = ()
    asked: Mapping[str, DeclaredRequirement] = field(
        default_factory=dict
    )  # package → the line that asks for it, no lock's


def resolve(sheets: Sequence[Manifest], said: Facts, faults: Sequence[DoctorError] = ()) -> Declaration:
    """What these sheets mean together. Lines that contradict one another are faults and leave their package unknown."""
    facts = _plain_facts(sheets)
    likely = platforms([sheet.requires_python for sheet in sheets], Facts(facts.values()).with_(*said.values()))
    index = load_index()
    groups = _groups(sheets)
    pinned: dict[str, Fact] = {}
    ranges: dict[str, tuple[str, DeclaredRequirement]] = {}
    extras: dict[str, frozenset[str]] = {}
    broken: list[DoctorError] = []
    asked: dict[str, DeclaredRequirement] = {}
    for name, entries in groups.items():
        if name not in index and (plain := _plain_pin(entries)) is not None:
            pinned[name] = plain  # most lines of a long file
            if not entries[0].locked:
                asked[name] = replace(entries[0], range="")
            continue
        try:
            holding, unsure = _holding(entries, likely)
            wanted = [entry for entry in holding if not entry.constraint]
            asked |= _asked(name, [] if unsure else holding)
            extras[name] = frozenset(extra for entry in wanted for extra in entry.extras)
            if unsure and not _all_alike([*wanted, *unsure]):
                pinned[name] = _unsure(name, [*wanted, *unsure])
            elif wanted or unsure:
                _join(name, [*holding, *unsure], pinned, ranges)
            elif any(entry.locked for entry in entries):
                first = entries[0]
                pinned[name] = Fact(f"{name}.version", ABSENT, f"{first.place}, whose marker does not hold")
        except DoctorError as problem:
            broken.append(problem)
            pinned[name] = Fact(f"{name}.version", None, entries[0].place, entries[0].raw, problem.message)
    platform = likely[0] if len(likely) == 1 else Platform(None, likely[0].system, likely[0].machine)
    other_index = "torch.cuda" in facts
    sources = frozenset(name for name in LOOSE_FROM_SOURCE if any(entry.source for entry in groups.get(name, ())))
    opened = _follow(pinned, ranges, extras, index, platform, likely, other_index, sources)
    for item in opened:
        trouble = f"`{item.name}{item.range}` leaves its version open"
        if item.versions:
            trouble = f"`{item.name}{item.range}` admits {item.versions[0]} to {item.versions[-1]}"
        pinned[item.name] = Fact(f"{item.name}.version", None, item.place, item.range or None, trouble)
    facts.update({fact.key: fact for fact in pinned.values()})
    for name in sources - {"transformer-engine"}:  # whose wheels bind no torch
        place = f"{groups[name][0].place}, compiled against the torch that is there"
        facts[f"{name}.torch_pin"] = Fact(f"{name}.torch_pin", ABSENT, place)
    if all(sheet.complete for sheet in sheets) and _value(pinned, "torch") not in (None, ABSENT):
        where = ", ".join(dict.fromkeys(entry.file for sheet in sheets for entry in sheet.entries))
        facts["distributions.complete"] = Fact("distributions.complete", True, where)
    notes = tuple(note for sheet in sheets for note in sheet.notes)
    told = (f"{problem.message}; the other files were judged" for problem in faults)
    rest = (f"{problem.message}; the other packages were judged" for problem in broken)
    notes += tuple(_at_odds(pinned, extras, index, platform, other_index, sources))
    several = tuple(item for item in opened if item.versions)
    return Declaration(
        Facts(facts.values()), several, platform, other_index, (*notes, *told, *rest), (*faults, *broken), asked
    )


def _plain_facts(sheets: Iterable[Manifest]) -> dict[str, Fact]:
    """What the files say besides packages; two that differ leave it open."""
    facts: dict[str, Fact] = {}
    for fact in (fact for sheet in sheets for fact in sheet.facts):
        before = facts.get(fact.key)
        if before is not None and before.value != fact.value:
            problem = f"{before.source} says {before.value}, {fact.source} says {fact.value}"
            facts[fact.key] = Fact(fact.key, None, fact.source, problem=problem)
        else:
            facts[fact.key] = fact
    return facts


def _groups(sheets: Iterable[Manifest]) -> dict[str, list[DeclaredRequirement]]:
    groups: dict[str, list[DeclaredRequirement]] = {}
    for entry in (entry for sheet in sheets for entry in sheet.entries):
        groups.setdefault(entry.name, []).append(entry)
    return groups


def _plain_pin(entries: Sequence[DeclaredRequirement]) -> Fact | None:
    """The fact of a package that one line pins without any condition."""
    entry = entries[0]
    if len(entries) > 1 or entry.version is None or entry.marker or entry.problem or entry.constraint:
        return None
    return Fact(f"{entry.name}.version", entry.version, entry.place, entry.raw)


def _holding(
    entries: Sequence[DeclaredRequirement], likely: Sequence[Platform]
) -> tuple[list[DeclaredRequirement], list[DeclaredRequirement]]:
    """(entries that count here, entries of which it depends on what is not known)."""
    holding, unsure = [], []
    for entry in entries:
        verdict = judge(entry, likely)
        if verdict is None:
            unsure.append(entry)
        elif verdict:
            holding.append(entry)
    locked = [entry for entry in holding if entry.locked]
    if len({entry.version for entry in locked}) > 1:  # extras or groups decide, and the file does not say which
        return [entry for entry in holding if not entry.locked], unsure + locked
    return holding, unsure


def _asked(name: str, entries: Sequence[DeclaredRequirement]) -> dict[str, DeclaredRequirement]:
    """The line to edit where another release is wanted: the one that pins, else one that narrows; with all ranges."""
    own = [entry for entry in entries if not entry.locked and not entry.problem]
    lines = sorted(own, key=lambda entry: (entry.version is None, not entry.range, entry.constraint))
    ranges = (clause for entry in own if entry.version is None for clause in entry.range.split(",") if clause)
    return {name: replace(lines[0], range=",".join(dict.fromkeys(ranges)))} if lines else {}


def _all_alike(entries: Sequence[DeclaredRequirement]) -> bool:
    return len({(entry.version, entry.range) for entry in entries}) == 1


def _unsure(name: str, entries: Sequence[DeclaredRequirement]) -> Fact:
    told = ", ".join(dict.fromkeys(f"{entry.version or entry.range or 'any'} ({entry.place})" for entry in entries))
    problem = f"it depends on the Python, on extras or on groups which of these is installed: {told}"
    return Fact(f"{name}.version", None, entries[0].place, problem=problem)


def _join(
    name: str,
    entries: Sequence[DeclaredRequirement],
    pinned: dict[str, Fact],
    ranges: dict[str, tuple[str, DeclaredRequirement]],
) -> None:
    """All lines about one package: one pin, or one range; DoctorError where they exclude one another."""
    unknown = next((entry for entry in entries if entry.problem), None)
    if unknown is not None:
        pinned[name] = Fact(f"{name}.version", None, unknown.place, unknown.raw, unknown.problem)
        return
    exact = sorted((entry for entry in entries if entry.version), key=lambda entry: "+" not in str(entry.version))
    first = next((entry for entry in exact if not entry.constraint), exact[0] if exact else None)
    if first is None:
        joined = ",".join(dict.fromkeys(clause for entry in entries for clause in entry.range.split(",") if clause))
        ranges[name] = (joined, next(entry for entry in entries if entry.range or entry is entries[-1]))
        return
    labelled = exact[0]
    for entry in entries:
        plain = entry.range == f"=={labelled.version}"  # most lines of a long file
        if entry.range and not plain and not admits(entry.range, str(labelled.version)):
            raise fault(
                entry.file, entry.line,
                f"`{name}{entry.range}` contradicts `{name}=={labelled.version}` of {labelled.place}",
                "no installer can satisfy both",
            )  # fmt: skip
    pinned[name] = make_fact(f"{name}.version", _on_record(name, labelled), labelled.place, raw=labelled.raw)


def _on_record(name: str, entry: DeclaredRequirement) -> str:
    """The version as its release is called: `torch==2.2` installs 2.2.0."""
    version = str(entry.version)
    release = load_index().release(name, version)
    public, plus, label = version.partition("+")
    return (release.version if release is not None else public) + plus + label


def _follow(
    pinned: dict[str, Fact], ranges: dict[str, tuple[str, DeclaredRequirement]], extras: Mapping[str, frozenset[str]],
    index: ReleaseIndex, platform: Platform, likely: Sequence[Platform], other_index: bool, sources: frozenset[str],
) -> list[OpenRange]:  # fmt: skip
    """Add what pinned releases pin in turn, narrow ranges by what they need; what then stays open."""
    open_: dict[str, OpenRange] = {}
    for _ in range(_MOST_ROUNDS):
        needs = _needs(pinned, ranges, extras, index, platform, other_index, sources)
        before = len(pinned)
        for name, (pin, place) in needs[0].items():
            if name not in pinned and (name not in ranges or admits(ranges[name][0], pin)):
                pinned[name] = make_fact(f"{name}.version", pin, place)
        open_ = {}
        for name, (declared, entry) in ranges.items():
            if name in pinned:
                continue
            whole = ",".join(filter(None, (declared, *needs[1].get(name, ()))))
            versions = tuple(
                version
                for version, release in index.releases(name).items()
                if not release.yanked
                and not release.is_prerelease
                and any(release.installs_on(machine) for machine in likely)
                and admits(whole, version)
                and fits(name, release, pinned, platform, other_index)
            )
            open_[name] = OpenRange(name, declared, entry.place, versions)
        for item in go_together(open_, platform, other_index):
            open_[item.name] = item
            if len(item.versions) == 1:
                entry = ranges[item.name][1]
                pinned[item.name] = make_fact(f"{item.name}.version", item.versions[0], entry.place, raw=entry.raw)
                del open_[item.name]
        if len(pinned) == before:
            break
    return list(open_.values())


def _at_odds(
    pinned: Mapping[str, Fact], extras: Mapping[str, frozenset[str]], index: ReleaseIndex, platform: Platform,
    other_index: bool, sources: frozenset[str],
) -> Iterator[str]:  # fmt: skip
    """A sentence for each pinned release that does not admit another pin, by its own metadata."""
    for name, fact in pinned.items():
        if name not in index:
            continue  # most lines of a long file
        release = None if fact.value in (None, ABSENT) or name in sources else index.release(name, str(fact.value))
        needs = () if release is None else needs_of(release.requires, platform, extras.get(name, frozenset()))
        for need in binding(name, str(fact.value), needs, other_index):
            other = pinned.get(need.package)
            known = other is not None and other.value not in (None, ABSENT)
            asked = re.sub(r"\+[\w.]+", "", need.range)  # which build it is, its index decides
            if other is not None and known and not admits(asked, str(other.value)):
                yield (
                    f"{other.source}: {name} {fact.value} asks for `{need.package}{need.range}`, and {other.value} is "
                    "pinned: an installer that is asked for both at once refuses, unless told to override"
                )


def _needs(
    pinned: Mapping[str, Fact], ranges: Mapping[str, object], extras: Mapping[str, frozenset[str]],
    index: ReleaseIndex, platform: Platform, other_index: bool, sources: frozenset[str],
) -> tuple[dict[str, tuple[str, str]], dict[str, list[str]]]:  # fmt: skip
    """(package → the version that a pinned release requires and the source, package → ranges they require)."""
    pins: dict[str, tuple[str, str]] = {}
    wanted: dict[str, list[str]] = {}
    for name, fact in pinned.items():
        if fact.value in (None, ABSENT) or name not in index or name in sources:
            continue
        version = str(fact.value)
        release = index.release(name, version)
        if release is None:
            continue
        needs = needs_of(release.requires, platform, extras.get(name, frozenset()))
        for need in binding(name, version, needs, other_index):
            if need.package not in index:
                continue
            if name == "torch" and need.package not in ranges:
                continue  # what nobody names, the rulebook tells of each build
            if need.pin:
                at = fact.source.partition(", through ")[0]
                pins.setdefault(need.package, (need.pin, f"{at}, through {name} {fact.value}"))
            elif need.range:
                wanted.setdefault(need.package, []).append(need.range)
    return pins, wanted


def _value(pinned: Mapping[str, Fact], name: str) -> object:
    found = pinned.get(name)
    return None if found is None else found.value
