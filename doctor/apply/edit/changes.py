"""The changes a fix makes to files: a version for every package it changes, and the index of another torch build."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from packaging.specifiers import InvalidSpecifier
from packaging.version import InvalidVersion

from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, ChangeKind, Facts, Finding, InstallPlan, Remedy, RemedyKind, Report, Severity
from doctor.packages.index import load_index
from doctor.packages.platform import Platform
from doctor.packages.relations import owner_of
from doctor.packages.release_wheels import PACKAGE, find
from doctor.packages.specifiers import admits
from doctor.rulebook.resolver import FactResolver
from doctor.solver.candidates import releases_of
from doctor.solver.environment import PackageSet, stack_of
from doctor.solver.install_plan import wheel_target_of
from doctor.sources.manifests.base import cuda_of_index
from doctor.sources.manifests.markers import platforms

K = TypeVar("K")
_TAG = re.compile(r"(?<=/)cu\d+(?=[/?#]|$)")


@dataclass(frozen=True)
class PackageChange:
    """What becomes of one package."""

    package: str
    version: str | None  # None: it goes
    why: str
    named: bool = True  # the fix names it; what only comes along with another needs no line of its own
    extra: str = ""  # such as `[core-cu12]`
    range: str | None = None  # instead of a version: what a range is narrowed to


@dataclass(frozen=True)
class ChangeSet:
    """All that one fix wants of the files of a project."""

    items: Mapping[str, PackageChange]
    platforms: tuple[Platform, ...]
    torch: str | None = None  # the new one, if it moves
    tag: str | None = None  # of its build: cu126
    index_url: str | None = None
    wheels: Callable[[str, str], str | None] | None = None
    companions: Callable[[str, str], PackageChange | None] | None = None
    notes: list[str] = field(default_factory=list)  # for the user, about what was written

    def same(self, written: str, wanted: str) -> bool:
        """Whether a file says it already; a label that names the very build which was judged does."""

        try:
            here, there = parse_version(written), parse_version(wanted)
        except InvalidVersion:
            return False
        return here == there or (here.public == there.public and not there.local and here.local == self.tag)

    def wheel(self, package: str, version: str) -> str | None:
        """The address of the wheel that fits the environment to come; of what a registry has, none is needed."""
        found = self.wheels(package, version) if self.wheels else None
        if found:
            self.say(f"`{package}`: the wheel URL is expected from the release workflow; it was not checked")
        elif self._in_registry(package, version):
            self.say(f"`{package}` {version} comes from the package index, instead of the old URL")
        else:
            self.say(f"`{package}` {version} has no known wheel for the new torch: it is built from source")
        return found

    def _in_registry(self, package: str, version: str) -> bool:
        """Whether some machine that is meant finds a wheel of it in the registry."""

        release = load_index().release(package, version.partition("+")[0])
        return release is not None and any(release.has_wheel(platform) for platform in self.platforms)

    def companion(self, package: str, spec: str) -> PackageChange | None:
        """What a package must become that only the file knows; None where it may stay."""
        found = self.companions(package, spec) if self.companions else None
        if found is None:
            return None
        if found.version is None:
            self.say(f"`{package}{spec}` stays, but no release of it is compatible with the fix")
            return None
        self.say(f"`{package}{spec}` is not compatible with the fix; {found.version} is")
        return found

    def say(self, text: str) -> None:
        """Once, however many lines it concerns."""
        if text not in self.notes:
            self.notes.append(text)

    def indexes(self, urls: Mapping[K, str], where: str) -> dict[K, str]:
        """The addresses to replace, by their keys: PyTorch's for another CUDA than that of the build which was judged.

        None where one is right already, nor where there are several of them and nothing says which is meant.
        """

        cudas = {key: cuda for key, url in urls.items() if (cuda := cuda_of_index(url))}
        tags = {f"cu{cuda.replace('.', '')}" for cuda in cudas.values()}
        if self.tag is None or not tags or self.tag in tags:
            return {}
        if len(tags) > 1:
            self.say(
                f"{where} has several PyTorch indexes ({', '.join(sorted(tags))}): "
                f"change the right one to {self.tag} by hand"
            )
            return {}
        self.say(f"{where}: the PyTorch index is now that of the checked build, {self.tag}")
        return {key: _TAG.sub(self.tag, urls[key], count=1) for key in cudas}


def changes_of(report: Report) -> ChangeSet | None:
    """Return the package changes of the fix, or the ranges to narrow; None where there are neither."""
    fix = report.package_fix
    if fix is None or not fix.changes_packages:
        return _narrowed(report)
    overridden = {line.package for line in fix.plan.overridden}  # next to the pin, no resolver would take it
    packages = [change for change in fix.changes if change.kind == ChangeKind.PACKAGE and change.name not in overridden]
    known = FactResolver(report.facts)
    stack = stack_of(report.facts, known, load_index())
    chosen = {change.name: change.after or ABSENT for change in packages}
    pins = fix.plan
    extras = {line.package: line.extra for line in (*pins.changed, *pins.built)}
    items = {}
    for change in packages:
        why = f"clears {', '.join(change.resolves)}" if change.resolves else change.why
        items[change.name] = PackageChange(
            change.name, change.after, " ".join(why.split()), True, extras.get(change.name, "")
        )
    for name, version in pins.along:
        items.setdefault(name, PackageChange(name, version, "follows another package", False))
    return ChangeSet(
        items=items,
        platforms=_platforms(report.facts),
        torch=pins.torch,
        tag=_tag(pins),
        index_url=pins.index_url,
        companions=lambda package, spec: companion(stack, chosen, package, spec),
        wheels=lambda package, version: _wheel(known, pins.torch, package, version),
    )


def narrowings(report: Report) -> Iterator[tuple[Finding, Remedy]]:
    """Yield the warnings about ranges that allow both affected and unaffected releases, each with its remedy."""
    for finding in report.findings:
        way = finding.alternatives[0] if finding.alternatives else None
        if finding.severity == Severity.WARNING and way is not None and way.kind == RemedyKind.NARROWS_RANGE:
            yield finding, way


def _narrowed(report: Report) -> ChangeSet | None:
    """Return the ranges that allow both affected and unaffected releases, narrowed to the unaffected."""
    items: dict[str, PackageChange] = {}
    for finding, way in narrowings(report):
        for package, wanted in way.require.items():
            before = items.get(package)
            clauses = [*(before.range or "").split(","), *wanted.split(",")] if before else wanted.split(",")
            why = f"{before.why}, {finding.rule}" if before else f"leaves out releases that {finding.rule} affects"
            items[package] = PackageChange(package, None, why, False, range=",".join(dict.fromkeys(clauses)))
    return ChangeSet(items, _platforms(report.facts)) if items else None


def _platforms(facts: Facts) -> tuple[Platform, ...]:
    return platforms([], facts)


def _tag(plan: InstallPlan) -> str | None:
    """Return the label of the new torch's build, such as cu126."""
    label = re.search(r"\+(cu\d+)$", plan.torch or "")
    return label[1] if label else f"cu{plan.cuda.replace('.', '')}" if plan.torch and plan.cuda else None


def _wheel(known: object, torch: str | None, package: str, version: str) -> str | None:
    if package != PACKAGE:
        return None
    fitting = find(wheel_target_of(known, torch), version).fitting
    return fitting[0].url if fitting else None


def companion(stack: PackageSet, chosen: Mapping[str, str], package: str, spec: str) -> PackageChange | None:
    """What it must become with the new versions, a version of None where no release goes with them.

    None altogether where it may stay: a release in its range goes with them, or nothing is on record of it.
    """
    if package not in stack.index or stack.installed.get(package, ABSENT) != ABSENT or owner_of(package):
        return None
    releases = stack.index.releases(package)
    try:
        admitted = [name for name, release in releases.items() if not release.is_prerelease and admits(spec, name)]
    except InvalidSpecifier:  # the line holds what is no range: it stays as it is
        return None
    if not admitted or any(stack.fits(package, version, chosen) for version in admitted):
        return None
    moved_stack = replace(stack, installed={**stack.installed, package: admitted[-1]}, memo={})
    fitting = (
        version
        for version in releases_of(moved_stack, package)
        if moved_stack.fits(package, version, chosen) and not moved_stack.outdated(package, version, chosen)
    )
    return PackageChange(package, next(fitting, None), "compatible with the fix", False)
