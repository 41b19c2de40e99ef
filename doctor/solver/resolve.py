"""Find releases that fit together: a complete search over package metadata, fewest changed packages first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from doctor.model import ABSENT, TORCH
from doctor.packages.relations import owner_of
from doctor.packages.specifiers import admits

from .budget import Allowance, SearchBudget
from .candidates import releases_of
from .cost import cost
from .environment import Clash, PackageSet, Versions
from .equivalence import metadata_class

_DEFAULT = SearchBudget()


def choices(
    stack: PackageSet, wanted: Mapping[str, str], budget: SearchBudget = _DEFAULT, left: Allowance | None = None
) -> Iterator[dict[str, str]]:
    """Yield sets of versions that satisfy the wanted ranges and break no requirement, cheapest first.

    `left` counts down the nodes of several searches together.
    """
    unmet = {name: spec for name, spec in wanted.items() if not satisfied(stack, name, spec)}
    seen: set[frozenset[tuple[str, str]]] = set()
    must = sorted({_mover(stack, name, spec, wanted) for name, spec in unmet.items()})
    for size in range(len(must), len(must) + budget.extra_packages + 1):
        most = budget.set_nodes if left is None else min(budget.set_nodes, left.left)
        nodes = Allowance("sets of releases", "set_nodes", most, budget.trace)
        found: list[dict[str, str]] = []
        for chosen in _extend(stack, wanted, {}, must, size, nodes, budget.dead_end_nodes):
            key = frozenset(chosen.items())
            if key not in seen:
                seen.add(key)
                found.append(chosen)
            if len(found) >= budget.sets:
                break
        if left is not None:
            left.spend(most - max(nodes.left, 0))
        yield from sorted(found, key=lambda chosen: cost(stack, chosen))


def _mover(stack: PackageSet, package: str, wanted: str, all_wanted: Mapping[str, str]) -> str:
    """What has to change: the package; for a part its owner, unless the part only strayed from its owner's pin."""
    owner = owner_of(package)
    if owner is None or wanted == ABSENT:
        return package
    own = stack.pinned_by_owner(package)
    strayed = own is not None and admits(wanted, own) and satisfied(stack, owner, all_wanted.get(owner, ""))
    return package if strayed else owner


def satisfied(stack: PackageSet, package: str, wanted: str, versions: Versions | None = None) -> bool:
    """Whether the package is at a version within the range, or gone where it has to be."""
    present = (stack.installed if versions is None else versions).get(package)
    if wanted == ABSENT:
        return present is None or present == ABSENT
    return present is not None and present != ABSENT and admits(wanted, present)


def impossible(stack: PackageSet, wanted: Mapping[str, str]) -> str | None:
    """The sentence that says why a demand cannot be met at all; None when the obstacle is not a single package."""
    for package, spec in wanted.items():
        if satisfied(stack, package, spec) or owner_of(package) or releases_of(stack, package, spec):
            continue
        unmet = f"`{package}{'' if spec == ABSENT else spec}`"
        if not stack.free(package):
            why = "is held" if package in stack.limits.hold else "is not in `--allow`"
            return f"{unmet} is excluded: `{package}` {why}"
        releases = [item for item in stack.index.releases(package).values() if admits(spec, item.version)]
        usable = [item for item in releases if not item.yanked and not item.is_prerelease]
        own_range = stack.limits.ranges.get(package, "")
        if usable and own_range and not any(admits(own_range, item.version) for item in usable):
            return f"{unmet} conflicts with `{package}{own_range}` ({stack.limits.source(package)})"
        python = stack.platform.python
        if usable and python is not None and not any(admits(item.requires_python, python) for item in usable):
            return f"{unmet} needs Python {usable[-1].requires_python}, the target has {python}"
        if usable:
            return f"{unmet} has no release that installs on this platform"
    return None


def _extend(
    stack: PackageSet,
    wanted: Mapping[str, str],
    chosen: dict[str, str],
    must: Iterable[str],
    size: int,
    nodes: Allowance,
    dead_end: int,
) -> Iterator[dict[str, str]]:
    """Depth-first: first what must move, then what breaks, until nothing does."""
    if nodes.exhausted:
        return
    nodes.spend()
    pending = [name for name in must if name not in chosen]
    if pending:
        if len(chosen) < size:
            fitting = (
                v
                for v in releases_of(stack, pending[0], wanted.get(pending[0], ""))
                if stack.fits(pending[0], v, chosen)
            )
            yield from _each(stack, wanted, chosen, pending[0], fitting, must, size, nodes, dead_end)
        return
    versions = stack.completed(chosen)
    if not all(satisfied(stack, name, spec, versions) for name, spec in wanted.items()) or not stack.keeps(versions):
        return
    clashes = unresolved_clashes(stack, chosen)
    if not clashes:
        if len(chosen) == size:
            yield chosen
        return
    ways = [list(repairs_of(stack, clash, versions, chosen)) for clash in clashes]
    movers = [{package for package, _ in options} for options in ways]
    forced = {next(iter(packages)) for packages in movers if len(packages) == 1}
    further = len(forced) + any(not packages & forced for packages in movers)
    if not all(movers) or len(chosen) + further > size:
        return  # a requirement that nothing can meet, or more packages than this size has room for
    for package, narrowed in min(zip(movers, ways, strict=True), key=lambda pair: len(pair[0]))[1]:
        spec = ",".join(part for part in (wanted.get(package, ""), narrowed) if part)
        fitting = (
            version for version in releases_of(stack, package, spec)
            if stack.fits(package, version, chosen) and not stack.outdated(package, version, chosen)
        )  # fmt: skip
        yield from _each(stack, wanted, chosen, package, fitting, must, size, nodes, dead_end)


def _each(
    stack: PackageSet,
    wanted: Mapping[str, str],
    chosen: dict[str, str],
    package: str,
    versions: Iterable[str],
    must: Iterable[str],
    size: int,
    nodes: Allowance,
    dead_end: int,
) -> Iterator[dict[str, str]]:
    """One more package at each of these versions; what metadata shows as a dead end is left out."""
    dead: set[Any] = set()
    torch = stack.completed(chosen).get(TORCH)
    for version in versions:
        if dead and package != TORCH and metadata_class(stack, package, version, torch) in dead:
            continue
        before, found = nodes.left, False
        for one in _extend(stack, wanted, {**chosen, package: version}, must, size, nodes, dead_end):
            found = True
            yield one
        if not found and before - nodes.left > dead_end and not nodes.exhausted and package != TORCH:
            dead.add(metadata_class(stack, package, version, torch))


def unresolved_clashes(stack: PackageSet, chosen: Versions) -> list[Clash]:
    """The requirements that break and that no installer fixes by itself."""
    return [clash for clash in stack.clashes(chosen) if not _installer_moves(stack, clash, chosen)]


def repairs_of(stack: PackageSet, clash: Clash, versions: Versions, chosen: Versions) -> Iterator[tuple[str, str]]:
    """(package to move, range it then has to meet) for either end of a broken requirement."""
    for package, narrowed in ((clash.needs, clash.range), (clash.package, "")):
        mover = owner_of(package) or package
        if mover in chosen or versions.get(package) == ABSENT or not (stack.free(mover) and stack.free(package)):
            continue
        if mover == package and not stack.movable(package):
            pinned = re.fullmatch(r"==[^,*]+", narrowed)
            if package not in stack.index and pinned:
                yield package, narrowed  # not on record, but the pin names the release
            continue
        yield mover, narrowed if mover == package else ""


def _installer_moves(stack: PackageSet, clash: Clash, chosen: Versions) -> bool:
    """A plain dependency that is not on record (numpy, tokenizers …) follows by itself, unless it is pinned."""
    if clash.needs in stack.index or clash.needs in chosen or owner_of(clash.needs) or not stack.free(clash.needs):
        return False
    return re.fullmatch(r"==[^,*]+", clash.range) is None
