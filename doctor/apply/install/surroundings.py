"""Collect everything installed that a fix leaves alone, for the resolver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement

from doctor.diagnosis.request import Request
from doctor.model import ABSENT, InstallPlan, Report
from doctor.packages.index import ReleaseIndex, load_index
from doctor.packages.needs import needs_of
from doctor.packages.platform import Platform
from doctor.packages.relations import owner_of
from doctor.packages.requirements import requirement
from doctor.packages.specifiers import admits, normalized
from doctor.rulebook.resolver import FactResolver
from doctor.solver.environment import distributions, platform_of
from doctor.sources.probes.distributions import installed_requirements
from doctor.sources.probes.locate import find_target

from .dry_run import Question
from .state import packages_of

#: Tools of the environment itself, at any version.
_TOOLS = frozenset({"pip", "uv", "setuptools", "wheel", "attn-doctor"})


@dataclass(frozen=True)
class Surroundings:
    """What is known of an environment beyond the versions in it."""

    local: Mapping[str, Sequence[str]] = field(default_factory=dict)  # from no registry → what it requires
    broken: Mapping[str, str] = field(default_factory=dict)  # breaks its own requirements already → which
    requires: Mapping[str, Sequence[str]] = field(default_factory=dict)  # installed → what it requires


def surroundings_of(python: str) -> Surroundings:
    """Packages of an interpreter that came from elsewhere, and those whose requirements are not met as it is."""

    target = find_target(python, None)
    packages = packages_of(target.site_dirs)
    requires = installed_requirements(target)
    platform = Platform(target.version, target.system or "Linux", target.machine or "x86_64")
    broken = {}
    for name, lines in requires.items():
        for need in needs_of(tuple(lines), platform):
            found = packages.get(need.package)
            if found is None or not admits(need.range, found.version):
                what = "is not installed" if found is None else f"is {found.version}"
                broken[name] = f"{name} needs {need.package}{need.range}, which {what}"
                break
    local = {name: requires.get(name, ()) for name, kept in packages.items() if kept.origin}
    return Surroundings(local, broken, requires)


def question_of(
    report: Report,
    pins: InstallPlan,
    around: Surroundings | None = None,
    request: Request | None = None,
    index: ReleaseIndex | None = None,
) -> Question:
    """The pins, what else is installed, what the user keeps, and where."""

    around = around or Surroundings()
    local, apart = around.local, {*around.local, *around.broken}
    known = FactResolver(report.facts)
    index = index or load_index()
    glibc = known.value("platform.glibc")
    built = [line for line in pins.built if line.package in index]  # what the others need is unknown
    others = _beside(report, pins, around, index)
    firm = set(map(normalized, request.hold)) if request is not None else set()
    if request is not None and request.allow:
        firm = set(others) - set(map(normalized, request.allow))
    return Question(
        pins=tuple(line.requirement for line in pins.changed if line.package not in local),
        held=tuple(line.requirement for line in pins.held if line.package not in apart),
        others=others,
        needs=tuple(
            text for name, lines in local.items() if name not in around.broken for text in lines if _plain(text)
        ),
        built=tuple(line.requirement for line in built if line.package not in (apart if line.held else local)),
        overrides=tuple(line.requirement for line in pins.overridden),
        stays=tuple(line.requirement for line in (*pins.held, *built) if line.held and line.package not in apart),
        firm=frozenset(firm),
        constraints=tuple(str(Path(path).absolute()) for path in request.constraints) if request is not None else (),
        platform=platform_of(known),
        glibc=None if glibc in (None, ABSENT) else str(glibc),
        index_url=pins.index_url,
        known={name: around.requires[name] for name in others if name in around.requires},
    )


def _beside(report: Report, pins: InstallPlan, around: Surroundings, index: ReleaseIndex) -> dict[str, str]:
    """Installed packages that are no part of the stack: they stay, unless the fix needs them to move."""
    stack = {line.package for line in (*pins.changed, *pins.held)}
    found = {}
    for name, fact in distributions(report.facts).items():
        if name in stack or name in pins.removed or name in around.local or name in _TOOLS:
            continue
        if name in around.broken:  # no resolver accepts it, with the fix or without
            continue
        if owner_of(name) or name in index:  # a part follows its leader; what cannot be held is reported with the pins
            continue
        found[name] = str(fact.value)
    return found


def _plain(text: str) -> bool:
    """A requirement that holds without any extra, and that names a release and no place."""
    try:
        parsed = requirement(text)
    except InvalidRequirement:
        return False
    return parsed.url is None and "extra" not in str(parsed.marker or "")
