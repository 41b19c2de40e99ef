"""Which releases fit together: a complete search over package metadata, fewest changed packages first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from doctor.model import ABSENT
from doctor.packages.index import admits
from doctor.packages.relations import owner_of
from doctor.solver.candidates import releases_of

from .cost import cost
from .environment import Clash, PackageSet, Versions
from .equivalence import metadata_class

_NODES, _YIELDS = 6000, 400  # bounds of one search; the largest real ones stay an order of magnitude below
_WORTH = 8  # nodes of a dead end from which on it is cheaper to ask which releases share it


def choices(
    stack: PackageSet, wanted: Mapping[str, str], extra: int = 6, left: list[int] | None = None
) -> Iterator[dict[str, str]]:
    """Sets of versions that meet the wanted ranges and break no requirement, cheapest first.

    `left` counts down the nodes of several searches together.
    """
    asked = {name: spec for name, spec in wanted.items() if not met(stack, name, spec)}
    seen: set[frozenset[tuple[str, str]]] = set()
    must = sorted({_mover(stack, name, spec, wanted) for name, spec in asked.items()})
    for size in range(len(must), len(must) + extra + 1):
        most = _NODES if left is None else min(_NODES, left[0])
        budget = [most]
        found: list[dict[str, str]] = []
        for chosen in _extend(stack, wanted, {}, must, size, budget):
            key = frozenset(chosen.items())
            if key not in seen:
                seen.add(key)
                found.append(chosen)
            if len(found) >= _YIELDS:
                break
        if left is not None:
            left[0] -= most - max(budget[0], 0)
        yield from sorted(found, key=lambda chosen: cost(stack, chosen))


def _mover(stack: PackageSet, package: str, wanted: str, all_wanted: Mapping[str, str]) -> str:
    """What has to change: the package; for a part its leader, unless the part only strayed from its leader's pin."""
    leader = owner_of(package)
    if leader is None or wanted == ABSENT:
        return package
    own = stack.own_pin(package)
    strayed = own is not None and admits(wanted, own) and met(stack, leader, all_wanted.get(leader, ""))
    return package if strayed else leader


def met(stack: PackageSet, package: str, wanted: str, versions: Versions | None = None) -> bool:
    """Whether the package is at a version within the range, or gone where it has to be."""
    present = (stack.installed if versions is None else versions).get(package)
    if wanted == ABSENT:
        return present is None or present == ABSENT
    return present is not None and present != ABSENT and admits(wanted, present)


def impossible(stack: PackageSet, wanted: Mapping[str, str]) -> str | None:
    """The sentence that says why a demand cannot be met at all; None when the obstacle is not a single package."""
    for package, spec in wanted.items():
        if met(stack, package, spec) or owner_of(package) or releases_of(stack, package, spec):
            continue
        asked = f"`{package}{'' if spec == ABSENT else spec}`"
        if not stack.free(package):
            why = "is held" if package in stack.limits.hold else "is not among those that may change"
            return f"{asked} is ruled out, because `{package}` {why}"
        releases = [item for item in stack.index.releases(package).values() if admits(spec, item.version)]
        usable = [item for item in releases if not item.yanked and not item.is_prerelease]
        own_range = stack.limits.ranges.get(package, "")
        if usable and own_range and not any(admits(own_range, item.version) for item in usable):
            return f"{asked} is ruled out by `{package}{own_range}` ({stack.limits.source(package)})"
        python = stack.platform.python
        if usable and python is not None and not any(admits(item.requires_python, python) for item in usable):
            return f"{asked} needs Python {usable[-1].requires_python}, and this is {python}"
        if usable:
            return f"{asked} has no release that installs on this platform"
    return None


def _extend(
    stack: PackageSet,
    wanted: Mapping[str, str],
    chosen: dict[str, str],
    must: Iterable[str],
    size: int,
    budget: list[int],
) -> Iterator[dict[str, str]]:
    """Depth-first: first what must move, then whatever breaks, until nothing does."""
    budget[0] -= 1
    if budget[0] < 0:
        return
    pending = [name for name in must if name not in chosen]
    if pending:
        if len(chosen) < size:
            fitting = (
                v
                for v in releases_of(stack, pending[0], wanted.get(pending[0], ""))
                if stack.fits(pending[0], v, chosen)
            )
            yield from _each(stack, wanted, chosen, pending[0], fitting, must, size, budget)
        return
    versions = stack.completed(chosen)
    if not all(met(stack, name, spec, versions) for name, spec in wanted.items()) or not stack.keeps(versions):
        return
    clashes = pressing(stack, chosen)
    if not clashes:
        if len(chosen) == size:
            yield chosen
        return
    ways = [list(ways_out(stack, clash, versions, chosen)) for clash in clashes]
    movers = [{package for package, _ in options} for options in ways]
    forced = {next(iter(packages)) for packages in movers if len(packages) == 1}
    further = len(forced) + any(not packages & forced for packages in movers)
    if not all(movers) or len(chosen) + further > size:
        return  # a requirement that nothing can mend, or more packages than this size has room for
    for package, narrowed in min(zip(movers, ways, strict=True), key=lambda pair: len(pair[0]))[1]:
        spec = ",".join(part for part in (wanted.get(package, ""), narrowed) if part)
        fitting = (
            version for version in releases_of(stack, package, spec)
            if stack.fits(package, version, chosen) and not stack.outdated(package, version, chosen)
        )  # fmt: skip
        yield from _each(stack, wanted, chosen, package, fitting, must, size, budget)


def _each(
    stack: PackageSet,
    wanted: Mapping[str, str],
    chosen: dict[str, str],
    package: str,
    versions: Iterable[str],
    must: Iterable[str],
    size: int,
    budget: list[int],
) -> Iterator[dict[str, str]]:
    """One more package at each of these versions; what metadata cannot tell from a dead end is one."""
    dead: set[Any] = set()
    torch = stack.completed(chosen).get("torch")
    for version in versions:
        if dead and package != "torch" and metadata_class(stack, package, version, torch) in dead:
            continue
        before, found = budget[0], False
        for one in _extend(stack, wanted, {**chosen, package: version}, must, size, budget):
            found = True
            yield one
        if not found and before - budget[0] > _WORTH and budget[0] >= 0 and package != "torch":
            dead.add(metadata_class(stack, package, version, torch))


def pressing(stack: PackageSet, chosen: Versions) -> list[Clash]:
    """The requirements that break and that no installer mends by itself."""
    return [clash for clash in stack.clashes(chosen) if not _installer_moves(stack, clash, chosen)]


def ways_out(stack: PackageSet, clash: Clash, versions: Versions, chosen: Versions) -> Iterator[tuple[str, str]]:
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
    """A plain dependency that is not on record (numpy, tokenizers …) moves along by itself, unless it is pinned."""
    if clash.needs in stack.index or clash.needs in chosen or owner_of(clash.needs) or not stack.free(clash.needs):
        return False
    return re.fullmatch(r"==[^,*]+", clash.range) is None
