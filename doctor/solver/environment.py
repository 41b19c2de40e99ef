"""The installed packages and their releases: what a choice of versions implies and breaks.

A package's own version is a choice; what it pins with `==` as bundled packages (torch's CUDA libraries,
TransformerEngine's core) follows from that choice and is never chosen by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from doctor.facts.vocabulary import TERMS, parse_version
from doctor.model import ABSENT, TORCH, Fact, Facts
from doctor.packages.index import ReleaseIndex, load_index
from doctor.packages.needs import Need, needs_of
from doctor.packages.platform import Platform
from doctor.packages.relations import EXTRAS, PARTS, other_build, owner_of
from doctor.packages.specifiers import admits, named_release, normalized
from doctor.rulebook.resolver import FactResolver

from .limits import Limits

Versions = Mapping[str, str]  # package -> version or ABSENT


class Clash(NamedTuple):
    """A requirement that a set of versions breaks."""

    package: str
    version: str
    needs: str  # package
    range: str  # the versions it would take

    @property
    def sentence(self) -> str:
        """The reason, for the user."""
        wants = f"needs `{self.needs}{self.range}`" if self.range else f"needs `{self.needs}`"
        return f"`{self.package}` {self.version} {wants}"


@dataclass(frozen=True)
class PackageSet:
    """The installed packages of a target and all that may replace them."""

    index: ReleaseIndex
    platform: Platform
    installed: Versions  # known to be there
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # Requires-Dist as installed
    limits: Limits = field(default_factory=Limits)
    cuda: str | None = None  # of the installed torch, None when unknown or a CPU build
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def extras(self, package: str, torch: str | None) -> frozenset[str]:
        """The extras that a torch user has of a package: TransformerEngine's torch part and its core."""
        if package not in EXTRAS:
            return frozenset()
        major = self.cuda_major(torch) or "12"
        return frozenset(extra.replace("{cuda_major}", major) for extra in EXTRAS[package])

    def cuda_major(self, torch: str | None) -> str | None:
        """Major of the CUDA a torch version is built for, by its label or its pins."""
        if torch is None or torch == ABSENT:
            return None
        label = re.search(r"\+cu(\d\d)\d", torch)
        if label:
            return label[1]
        if torch == self.installed.get(TORCH) and self.cuda:
            return self.cuda.split(".")[0]
        pinned = "\n".join(name for name in self.bundled_packages(TORCH, torch) if name.startswith("nvidia-cudnn-"))
        found = re.search(r"-cu(\d\d)", pinned)
        return found[1] if found else None

    def bundled_packages(self, owner: str, version: str, torch: str | None = None) -> Versions:
        """What this release of a owner brings along: part → pinned version, parts of parts included."""
        extras = self.extras(owner, torch)
        found: dict[str, str] | None = self.memo.get((owner, version, extras))
        if found is None:
            found = self.memo[owner, version, extras] = {}
            for need in self._published(owner, version, extras):
                if need.pin is not None and owner_of(need.package) == (owner_of(owner) or owner):
                    found.setdefault(need.package, need.pin)
                    for part, pin in self.bundled_packages(need.package, need.pin).items():
                        found.setdefault(part, pin)
        return found

    def _published(self, package: str, version: str, extras: frozenset[str]) -> tuple[Need, ...]:
        """What a release on record requires; nothing for a build of another index, whose pins are not on record."""
        key = ("needs", package, version, extras)
        found: tuple[Need, ...] | None = self.memo.get(key)
        if found is None:
            release = self.index.release(package, version)
            foreign = release is None or ("+" in version and package == TORCH)
            found = () if release is None or foreign else needs_of(release.requires, self.platform, extras)
            self.memo[key] = found
        return found

    def completed(self, chosen: Versions) -> Versions:
        """All versions once the chosen ones are in: parts follow their owner, orphaned parts are gone."""
        key = ("completed", *sorted(chosen.items()))
        found: dict[str, str] | None = self.memo.get(key)
        if found is None:
            found = self._completed(chosen)
            followers = self._followers(chosen, found)
            self.memo["followers", key] = followers
            found = self.memo[key] = {**found, **followers}
        return found

    def _followers(self, chosen: Versions, versions: Versions) -> dict[str, str]:
        """The plain dependencies (tokenizers, huggingface-hub …) that an installer moves for the chosen releases.

        No record has their releases: each is taken at a bound of the range, the lowest release that is named.
        """
        found: dict[str, str] = {}
        torch = versions.get(TORCH)
        for package, version in chosen.items():
            for need in () if version == ABSENT else self.needs(package, version, torch):
                present = found.get(need.package) or versions.get(need.package, ABSENT)
                if present == ABSENT or _meets(need, present) or need.pin is not None or not self._plain(need.package):
                    continue
                bound = named_release(need.range)
                if need.package not in chosen and bound is not None:
                    found[need.package] = bound
        return found

    def _plain(self, package: str) -> bool:
        """Whether an installer moves it by itself: not on record, no part of another package, and not held."""
        return package not in self.index and owner_of(package) is None and self.free(package)

    def _completed(self, chosen: Versions) -> dict[str, str]:
        versions = {**self.installed, **chosen}
        torch = versions.get(TORCH)
        for owner in PARTS:
            if owner not in chosen or chosen[owner] == self.installed.get(owner):
                continue
            before = self.installed.get(owner)
            on_record = before is not None and self.index.release(owner, before) is not None
            old = self.bundled_packages(owner, before, self.installed.get(TORCH)) if before and on_record else None
            for name in self._bundled_installed(owner):
                if name not in chosen and (not old or name in old):
                    if other_build(chosen[owner], name):
                        versions.pop(name)  # it brings its own; at which version is not on record
                    else:
                        versions[name] = ABSENT
            if chosen[owner] != ABSENT:
                for name, pin in self.bundled_packages(owner, chosen[owner], torch).items():
                    if name not in chosen:
                        versions[name] = pin
        return versions

    def _bundled_installed(self, owner: str) -> tuple[str, ...]:
        """The installed parts of a owner."""
        key = ("led", owner)
        if key not in self.memo:
            self.memo[key] = tuple(name for name in self.installed if owner_of(name) == owner)
        found: tuple[str, ...] = self.memo[key]
        return found

    def _moved(self, chosen: Versions) -> dict[str, str]:
        """The packages that are at another version once the chosen ones are in: those, and the parts of a owner."""
        versions, touched = self.completed(chosen), dict.fromkeys(chosen)
        touched |= dict.fromkeys(self.memo["followers", ("completed", *sorted(chosen.items()))])
        for owner in PARTS:
            if owner in chosen and chosen[owner] != self.installed.get(owner):
                torch = versions.get(TORCH)
                touched |= dict.fromkeys(
                    (*self._bundled_installed(owner), *self.bundled_packages(owner, chosen[owner], torch))
                )
        return {n: versions[n] for n in touched if n in versions and versions[n] != self.installed.get(n)}

    def needs(self, package: str, version: str, torch: str | None) -> tuple[Need, ...]:
        """What this version requires: as installed where it stays, as published where it is new."""
        extras = self.extras(package, torch)
        if version != self.installed.get(package) or package not in self.requires:
            return self._published(package, version, extras)
        key = ("installed", package, extras)
        if key not in self.memo:
            self.memo[key] = needs_of(self.requires[package], self.platform, extras)
        found: tuple[Need, ...] = self.memo[key]
        return found

    def clashes(self, chosen: Versions) -> Iterator[Clash]:
        """Every requirement that breaks and did not break before."""
        versions, moved = self.completed(chosen), self._moved(chosen)
        torch = versions.get(TORCH)
        dependants = self._dependants(torch)
        for name, found in moved.items():  # what stays may need what moves …
            for package, need in dependants.get(name, ()):
                if package not in moved and package in versions and not _meets(need, found):
                    before = self.installed.get(name)
                    if before is None or _meets(need, before):
                        yield Clash(package, versions[package], name, need.range)
        for package, version in moved.items():  # … and what moves may need anything
            for need in () if version == ABSENT else self.needs(package, version, torch):
                other = versions.get(need.package)
                if other is not None and not _meets(need, other):
                    yield Clash(package, version, need.package, need.range)

    def wanting(self, package: str, chosen: Versions) -> Iterator[tuple[str, Need]]:
        """Who requires this package once the chosen ones are in, and how."""
        versions, moved = self.completed(chosen), self._moved(chosen)
        torch = versions.get(TORCH)
        for other, need in self._dependants(torch).get(package, ()):
            if other not in moved and other in versions:
                yield other, need
        for other, version in moved.items():
            for need in () if version == ABSENT else self.needs(other, version, torch):
                if need.package == package:
                    yield other, need

    def _dependants(self, torch: str | None) -> Mapping[str, list[tuple[str, Need]]]:
        """Package → who requires it, and how, among the packages as they are installed."""
        key = ("dependants", self.cuda_major(torch))
        if key not in self.memo:
            found: dict[str, list[tuple[str, Need]]] = {}
            for package, version in self.installed.items():
                for need in () if version == ABSENT else self.needs(package, version, torch):
                    found.setdefault(need.package, []).append((package, need))
            self.memo[key] = found
        known: Mapping[str, list[tuple[str, Need]]] = self.memo[key]
        return known

    def fits(self, package: str, version: str, chosen: Versions) -> bool:
        """Whether a release agrees with what is chosen already, both ways; a cheap test ahead of the full one."""
        if version == ABSENT:
            return True
        versions = self.completed(chosen)
        torch = versions.get(TORCH)
        for need in self.needs(package, version, torch):
            name = need.package
            found = versions.get(name)
            fixed = name in chosen or name in self.limits.hold or owner_of(name) in chosen
            if found is not None and fixed and not _meets(need, found):
                return False
        for other in chosen:
            if chosen[other] != ABSENT:
                for need in self.needs(other, chosen[other], torch):
                    if need.package == package and not admits(need.range, version):
                        return False
        return True

    def outdated(self, package: str, version: str, chosen: Versions) -> bool:
        """Compiled code older than the torch it would meet, and only admitted because it names no upper bound."""
        torch = self.completed(chosen).get(TORCH)
        release, other = self.index.release(package, version), self.index.release(TORCH, torch or ABSENT)
        present = self.installed.get(package)
        if release is None or other is None or present is None or package == TORCH or torch == ABSENT:
            return False
        now = self.index.release(package, present)
        if now is None or set(now.machines) <= {"any"} or parse_version(version) > parse_version(present):
            return False
        needs = [need for need in self.needs(package, version, torch) if need.package == TORCH]
        return bool(needs) and needs[0].pin is None and release.date < other.date

    def pinned_by_owner(self, part: str) -> str | None:
        """The version at which the installed owner wants this part."""
        owner = owner_of(part)
        if owner is None or self.installed.get(owner, ABSENT) == ABSENT:
            return None
        return self.bundled_packages(owner, self.installed[owner], self.installed.get(TORCH)).get(part)

    def overridden(self, chosen: Versions) -> frozenset[str]:
        """The parts that are chosen themselves, and not at the version that their owner pins."""
        found = set()
        for name, version in chosen.items():
            owner = owner_of(name)
            own = ABSENT if owner is None else chosen.get(owner, self.installed.get(owner, ABSENT))
            if owner is None or ABSENT in (version, own):
                continue
            if version != self.bundled_packages(owner, own, chosen.get(TORCH, self.installed.get(TORCH))).get(name):
                found.add(name)
        return frozenset(found)

    def free(self, package: str) -> bool:
        """Whether the user lets it change; a part may wherever its owner may, unless it is held itself."""
        owner = owner_of(package)
        return package not in self.limits.hold and (self.limits.free(package) or bool(owner and self.free(owner)))

    def keeps(self, versions: Versions) -> bool:
        """Whether what the user holds stays, parts included, and every new package is in the user's own ranges."""
        for name in {*self.limits.hold, *self.limits.ranges}:
            before, now = self.installed.get(name), versions.get(name)
            if now is None and before not in (None, ABSENT):
                return False  # another index's build brings its own; at which version is not on record
            if now is None or now == (before or ABSENT):
                continue
            if name in self.limits.hold or (now != ABSENT and not admits(self.limits.ranges.get(name, ""), now)):
                return False
        return True

    def movable(self, package: str) -> bool:
        """Whether another release could be chosen: on record and not held."""
        return package in self.index and self.free(package) and owner_of(package) is None


def _meets(need: Need, version: str) -> bool:
    return version != ABSENT and admits(need.range, version)


def stack_of(
    facts: Facts,
    known: FactResolver,
    index: ReleaseIndex,
    limits: Limits | None = None,
    installed: Mapping[str, Sequence[str]] | None = None,
) -> PackageSet:
    """The packages of the target, as given and as they follow from what is given."""

    versions = {name: str(fact.value) for name, fact in distributions(facts).items()}
    for name in index.packages:
        value = known.value(f"{name}.version")
        if value not in (None, ABSENT):
            versions.setdefault(name, str(value))
    cuda = known.value("torch.cuda")
    return PackageSet(
        index=index,
        platform=platform_of(known),
        installed=versions,
        requires={normalized(name): tuple(lines) for name, lines in (installed or {}).items()},
        limits=limits or Limits(),
        cuda=None if cuda in (None, ABSENT) else str(cuda),
    )


def distributions(facts: Facts) -> dict[str, Fact]:
    """Package → fact of its version, for every distribution known to be installed."""
    return {
        key.removesuffix(".version"): fact
        for key, fact in facts.items()
        if key.endswith(".version") and key not in TERMS and fact.value not in (None, ABSENT)
    }


def known_names(facts: Facts) -> tuple[str, ...]:
    """Return the distributions that are installed or on record."""
    return (*distributions(facts), *load_index().packages)


def platform_of(known: FactResolver) -> Platform:
    """Where the target runs; an unknown Python excludes no release."""
    python = known.value("python.version")
    return Platform(
        python=None if python in (None, ABSENT) else str(python),
        system=str(known.value("platform.system") or "Linux"),
        machine=str(known.value("platform.machine") or "x86_64"),
    )
