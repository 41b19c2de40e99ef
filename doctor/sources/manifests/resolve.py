"""Resolve declared requirements to facts: evaluate markers, join pins, narrow ranges, add what pins require."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from doctor.errors import DoctorError, fault
from doctor.facts.vocabulary import TERMS, parse, parse_version
from doctor.facts.vocabulary import fact as make_fact
from doctor.model import ABSENT, TORCH, Fact, Facts
from doctor.packages.index import ReleaseIndex, load_index
from doctor.packages.needs import needs_of
from doctor.packages.platform import Platform
from doctor.packages.relations import LOOSE_FROM_SOURCE
from doctor.packages.specifiers import admits, specifier
from doctor.util.redact import shortened

from .base import (
    BEFORE_TORCH,
    BUILT,
    BY_EXTRAS,
    IN_IMAGE,
    ISOLATED,
    LOCAL_STOPS,
    PLAIN_RANGE,
    WITHOUT_NVCC,
    DeclaredRequirement,
    Manifest,
)
from .local_wheels import wheel_names
from .markers import applies, platforms
from .version_ranges import OpenRange, binding, fits, go_together

_MOST_ROUNDS = 8


@dataclass(frozen=True)
class Declaration:
    """The declared environment: what it fixes, which ranges stay open, and which files could not be read."""

    facts: Facts
    open: tuple[OpenRange, ...] = ()
    platform: Platform = field(default_factory=Platform)
    other_index: bool = False  # torch does not come from PyPI
    notes: tuple[str, ...] = ()
    faults: tuple[DoctorError, ...] = ()
    requested: Mapping[str, DeclaredRequirement] = field(default_factory=dict)  # package -> its line, not of a lock
    today: bool = False  # nothing declares it: what an installer takes today is judged, and no other release

    def unmet(self, facts: Facts, named: Collection[str]) -> Iterator[str]:
        """Yield each line that the release in these facts does not fulfil, except of the keys `named`."""
        complete = facts.value("distributions.complete") is True
        for name, line in self.requested.items():
            key = f"{name}.version"
            fact = facts.get(key)
            if key in named or (fact is None and not complete):
                continue
            if fact is None or fact.value == ABSENT:
                yield f"{line.place} requires {name}, which is not installed"
            elif line.range and fact.known and not admits(line.range, str(fact.value)):
                yield f"{line.place} requires `{name}{line.range}`, found {fact.value} ({fact.source})"


def resolve(manifests: Sequence[Manifest], stated: Facts, faults: Sequence[DoctorError] = ()) -> Declaration:
    """Return what these manifests declare together.

    stated: facts given by the user; they decide markers.
    faults: files that could not be read, for the notes. Lines that contradict each other are added to them, and their
        package becomes unknown.
    """
    facts = _plain_facts(manifests)
    known = Facts(facts.values()).with_(*stated.values())
    likely = platforms([manifest.requires_python for manifest in manifests], known)
    index = load_index()
    groups = _groups(manifests)
    pinned: dict[str, Fact] = {}
    ranges: dict[str, tuple[str, DeclaredRequirement]] = {}
    extras: dict[str, frozenset[str]] = {}
    broken: list[DoctorError] = []
    requested: dict[str, DeclaredRequirement] = {}
    wheels: list[str] = []
    for name, entries in groups.items():
        if name not in index and (plain := _plain_pin(entries)) is not None:
            pinned[name] = plain  # most lines of a long file
            wheels += wheel_names(entries)
            if not entries[0].locked:
                requested[name] = replace(entries[0], range="")
            continue
        try:
            holding, unsure = _holding(entries, likely)
            wanted = [entry for entry in holding if not entry.constraint]
            wheels += wheel_names(wanted)
            requested |= _requested(name, [] if unsure else holding)
            extras[name] = frozenset(extra for entry in wanted for extra in entry.extras)
            if unsure and not _all_equal([*wanted, *unsure]):
                pinned[name] = _undecided(name, [*wanted, *unsure])
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
    sources = frozenset(
        name for name in sorted(LOOSE_FROM_SOURCE) if any(entry.source for entry in groups.get(name, ()))
    )
    alone = (name for name, entries in groups.items() if all(entry.alone or entry.constraint for entry in entries))
    loose = sources.union(alone)
    opened = _follow(pinned, ranges, extras, index, platform, likely, other_index, loose)
    for item in opened:
        open_because = f"`{item.name}{item.range}` does not fix a version"
        if item.versions:
            open_because = f"`{item.name}{item.range}` allows {item.versions[0]} to {item.versions[-1]}"
        pinned[item.name] = Fact(f"{item.name}.version", None, item.place, item.range or None, open_because)
    facts.update({fact.key: fact for fact in pinned.values()})
    if wheels:
        facts["declared.wheels"] = Fact("declared.wheels", tuple(wheels), "the addresses of the files")
    for name in sorted(one for one in sources if f"{one}.torch_pin" in TERMS):  # other wheels bind no torch
        place = f"{groups[name][0].place}, compiled against the installed torch"
        facts[f"{name}.torch_pin"] = Fact(f"{name}.torch_pin", ABSENT, place)
    if all(manifest.complete for manifest in manifests) and _value(pinned, TORCH) not in (None, ABSENT):
        where = ", ".join(dict.fromkeys(entry.file for manifest in manifests for entry in manifest.entries))
        facts["distributions.complete"] = Fact("distributions.complete", True, where)
    if manifests and known.value("platform.system") is None and not any(name.endswith("-windows") for name in groups):
        why = "assumed: pip's choices were made for Linux"
        facts["platform.system"] = Fact("platform.system", likely[0].system, why, assumed=True)
    if manifests and "target.manifest" not in facts:
        facts["target.manifest"] = Fact("target.manifest", "other", "the files that declare the environment")
    notes = tuple(note for manifest in manifests for note in manifest.notes)
    unread = (f"{problem.message}; the other files were checked" for problem in faults)
    contradictions = (f"{problem.message}; the other packages were checked" for problem in broken)
    chosen = facts["declared.overridden"].value if "declared.overridden" in facts else ()
    notes += tuple(_conflicts(pinned, extras, index, platform, other_index, loose, chosen))
    elsewhere = facts["declared.elsewhere"].value if "declared.elsewhere" in facts else ()
    several = tuple(item for item in opened if item.versions and item.name not in elsewhere)
    return Declaration(
        Facts(facts.values()),
        several,
        platform,
        other_index,
        (*notes, *unread, *contradictions),
        (*faults, *broken),
        requested,
    )


#: Facts that list packages: those of several files are joined.
_JOINED = ("declared.overridden", ISOLATED, BUILT, BEFORE_TORCH, WITHOUT_NVCC, IN_IMAGE, BY_EXTRAS, LOCAL_STOPS)


def _plain_facts(manifests: Iterable[Manifest]) -> dict[str, Fact]:
    """Return the facts of the files except packages; where two differ, the fact is unknown."""
    facts: dict[str, Fact] = {}
    for fact in (_checked(fact) for manifest in manifests for fact in manifest.facts):
        before = facts.get(fact.key)
        if before is not None and fact.key in _JOINED:
            names = tuple(sorted({*before.value, *fact.value}))
            facts[fact.key] = Fact(fact.key, names, f"{before.source}, {fact.source}")
        elif before is not None and before.value != fact.value:
            problem = f"{before.source} says {before.value}, {fact.source} says {fact.value}"
            facts[fact.key] = Fact(fact.key, None, fact.source, problem=problem)
        else:
            facts[fact.key] = fact
    return facts


def _checked(fact: Fact) -> Fact:
    """Return a fact of a file, unknown where its text is no value of the key: `python = '0'`."""
    if not isinstance(fact.value, str):
        return fact
    try:
        parse(fact.key, fact.value)
    except DoctorError as problem:
        return Fact(fact.key, None, fact.source, fact.raw, problem.message)
    return fact


def _checked_entry(entry: DeclaredRequirement) -> DeclaredRequirement:
    """Return a requirement; where its range or its version is none, the version is unknown."""
    try:
        if entry.range and not PLAIN_RANGE.fullmatch(entry.range):
            specifier(entry.range)
        if entry.version:
            parse_version(entry.version)
    except ValueError:  # InvalidSpecifier, InvalidVersion
        shown = shortened((entry.range or entry.version or ""), 60)
        problem = f"{entry.place}: `{shown}` is not a range of versions"
        return replace(entry, range="", version=None, problem=entry.problem or problem)
    return entry


def _groups(manifests: Iterable[Manifest]) -> dict[str, list[DeclaredRequirement]]:
    groups: dict[str, list[DeclaredRequirement]] = {}
    for entry in (_checked_entry(entry) for manifest in manifests for entry in manifest.entries):
        groups.setdefault(entry.name, []).append(entry)
    return groups


def _plain_pin(entries: Sequence[DeclaredRequirement]) -> Fact | None:
    """Return the fact of a package that a single line pins without a condition, else None."""
    entry = entries[0]
    if len(entries) > 1 or entry.version is None or entry.marker or entry.problem or entry.constraint:
        return None
    return Fact(f"{entry.name}.version", entry.version, entry.place, entry.raw)


def _holding(
    entries: Sequence[DeclaredRequirement], likely: Sequence[Platform]
) -> tuple[list[DeclaredRequirement], list[DeclaredRequirement]]:
    """Return the entries that count here, and those for which that is unknown."""
    holding, unsure = [], []
    for entry in entries:
        verdict = applies(entry, likely)
        if verdict is None:
            unsure.append(entry)
        elif verdict:
            holding.append(entry)
    locked = [entry for entry in holding if entry.locked]
    if len({entry.version for entry in locked}) > 1:  # extras or groups decide, and the file does not say which
        return [entry for entry in holding if not entry.locked], unsure + locked
    return holding, unsure


def _requested(name: str, entries: Sequence[DeclaredRequirement]) -> dict[str, DeclaredRequirement]:
    """Return the line to edit for another release: the one that pins, else one with a range; with all ranges."""
    own = [entry for entry in entries if not entry.locked and not entry.problem]
    lines = sorted(own, key=lambda entry: (entry.version is None, not entry.range, entry.constraint))
    ranges = (clause for entry in own if entry.version is None for clause in entry.range.split(",") if clause)
    return {name: replace(lines[0], range=",".join(dict.fromkeys(ranges)))} if lines else {}


def _all_equal(entries: Sequence[DeclaredRequirement]) -> bool:
    return len({(entry.version, entry.range) for entry in entries}) == 1


def _undecided(name: str, entries: Sequence[DeclaredRequirement]) -> Fact:
    choices = ", ".join(dict.fromkeys(f"{entry.version or entry.range or 'any'} ({entry.place})" for entry in entries))
    problem = f"the Python, extras or groups decide which of these is installed: {choices}"
    return Fact(f"{name}.version", None, entries[0].place, problem=problem)


def _pinning_torch(name: str, versions: Sequence[str], index: ReleaseIndex, platform: Platform) -> tuple[str, ...]:
    """Return the releases that pin a torch, of those that fit the chosen one.

    The index of an older CUDA ends at these; a later release without a pin is on the newer indexes only.
    """
    releases = ((version, index.release(name, version)) for version in versions)
    return tuple(
        version
        for version, release in releases
        if release and any(need.package == TORCH and need.pin for need in needs_of(release.requires, platform))
    )


def _join(
    name: str,
    entries: Sequence[DeclaredRequirement],
    pinned: dict[str, Fact],
    ranges: dict[str, tuple[str, DeclaredRequirement]],
) -> None:
    """Join all lines of one package to one pin or one range; DoctorError where they exclude each other."""
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
    """Return the version as the index names it: `torch==2.2` installs 2.2.0."""
    version = str(entry.version)
    release = load_index().release(name, version)
    public, plus, label = version.partition("+")
    return (release.version if release is not None else public) + plus + label


def _follow(
    pinned: dict[str, Fact], ranges: dict[str, tuple[str, DeclaredRequirement]], extras: Mapping[str, frozenset[str]],
    index: ReleaseIndex, platform: Platform, likely: Sequence[Platform], other_index: bool, loose: frozenset[str],
) -> list[OpenRange]:  # fmt: skip
    """Add what pinned releases pin, narrow ranges by what they require, and return the ranges that stay open."""
    open_: dict[str, OpenRange] = {}
    for _ in range(_MOST_ROUNDS):
        needs = _needs(pinned, ranges, extras, index, platform, other_index, loose)
        before = len(pinned)
        for name, fact in needs[0].items():
            if name not in pinned and (name not in ranges or admits(ranges[name][0], str(fact.value))):
                pinned[name] = fact
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
                and (name in loose or fits(name, release, pinned, platform, other_index))
            )
            if other_index and not declared and _value(pinned, TORCH) not in (None, ABSENT):
                versions = _pinning_torch(name, versions, index, platform) or versions
            open_[name] = OpenRange(name, declared, entry.place, versions, extras.get(name, frozenset()), entry.alone)
        for item in go_together(open_, platform, other_index):
            open_[item.name] = item
            if len(item.versions) == 1:
                entry = ranges[item.name][1]
                pinned[item.name] = make_fact(f"{item.name}.version", item.versions[0], entry.place, raw=entry.raw)
                del open_[item.name]
        if len(pinned) == before:
            break
    return list(open_.values())


def _conflicts(
    pinned: Mapping[str, Fact], extras: Mapping[str, frozenset[str]], index: ReleaseIndex, platform: Platform,
    other_index: bool, loose: frozenset[str], chosen: Collection[str],
) -> Iterator[str]:  # fmt: skip
    """Yield a note for each pinned release whose metadata excludes another pin that the project did not set itself."""
    for name, fact in pinned.items():
        if name not in index:
            continue  # most lines of a long file
        release = None if fact.value in (None, ABSENT) or name in loose else index.release(name, str(fact.value))
        needs = () if release is None else needs_of(release.requires, platform, extras.get(name, frozenset()))
        for need in binding(name, str(fact.value), needs, other_index):
            other = pinned.get(need.package)
            known = other is not None and other.value not in (None, ABSENT)
            public = re.sub(r"\+[\w.]+", "", need.range)  # the index decides which build it is
            if other is not None and known and need.package not in chosen and not admits(public, str(other.value)):
                yield (
                    f"{other.source}: {name} {fact.value} requires `{need.package}{need.range}`, but {other.value} is "
                    "pinned: no installer installs both together without an override"
                )


def _needs(
    pinned: Mapping[str, Fact], ranges: Mapping[str, object], extras: Mapping[str, frozenset[str]],
    index: ReleaseIndex, platform: Platform, other_index: bool, loose: frozenset[str],
) -> tuple[dict[str, Fact], dict[str, list[str]]]:  # fmt: skip
    """Return, by package, the versions that pinned releases pin, and the ranges that they require."""
    pins: dict[str, Fact] = {}
    wanted: dict[str, list[str]] = {}
    for name, fact in pinned.items():
        if fact.value in (None, ABSENT) or name not in index or name in loose:
            continue
        version = str(fact.value)
        release = index.release(name, version)
        if release is None:
            continue
        needs = needs_of(release.requires, platform, extras.get(name, frozenset()))
        for need in binding(name, version, needs, other_index):
            if need.package not in index:
                continue
            if name == TORCH and need.package not in ranges:
                continue  # the rulebook knows what each build of torch brings
            if need.pin:
                pin = make_fact(f"{need.package}.version", need.pin, fact.source)
                pins.setdefault(need.package, pin._replace(via=f"{name} {fact.value}"))
            elif need.range:
                wanted.setdefault(need.package, []).append(need.range)
    return pins, wanted


def _value(pinned: Mapping[str, Fact], name: str) -> object:
    found = pinned.get(name)
    return None if found is None else found.value
