"""Find releases of packages with open ranges that are compatible by their metadata."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from doctor.model import ABSENT, TORCH, Fact
from doctor.packages.index import Release, load_index
from doctor.packages.needs import Need, needs_of
from doctor.packages.platform import Platform
from doctor.packages.specifiers import admits

MOST_TRIED = 50_000  # steps of the search for compatible releases
MOST_NAMED = 4  # releases in one sentence, or left out of one range
Ranges = Mapping[str, tuple[str, ...]]  # other package -> ranges that a release requires of it


@dataclass(frozen=True)
class OpenRange:
    """A package whose range allows several releases, the newest last."""

    name: str
    range: str
    place: str
    versions: tuple[str, ...]
    extras: frozenset[str] = frozenset()
    alone: bool = False  # installed with --no-deps


def binding(name: str, version: str, needs: Sequence[Need], other_index: bool) -> Iterator[Need]:
    """Yield the needs that hold for wheels of any index: other builds of torch require other CUDA wheels than PyPI's.

    transformer-engine-torch is compiled at installation and requires the core for the torch it is compiled with.
    """
    label = version.partition("+")[2]
    for need in needs:
        if name == "transformer-engine-torch" and need.package.startswith("transformer-engine-cu"):
            continue
        if name != TORCH or not (label or other_index):
            yield need
        elif need.package == "triton" and (not label or label.startswith("cu")):
            yield need  # every build for CUDA requires the same one


def fits(
    name: str, release: Release, chosen: Mapping[str, Fact], platform: Platform, other_index: bool = False
) -> bool:
    """Return whether a release is compatible with the chosen versions, by its own metadata."""
    for need in binding(name, release.version, needs_of(release.requires, platform), other_index):
        found = chosen.get(need.package)
        if found is not None and found.value not in (None, ABSENT) and not admits(need.range, str(found.value)):
            return False
    return True


@functools.lru_cache(maxsize=4096)
def pins_of(
    name: str, version: str, platform: Platform, extras: frozenset[str] = frozenset()
) -> tuple[tuple[str, str], ...]:
    """Return the indexed packages that a release pins, with the pins; for torch the rulebook has them by build."""
    index = load_index()
    release = index.release(name, version) if name != TORCH else None
    needs = needs_of(release.requires, platform, extras) if release is not None else ()
    return tuple((need.package, need.pin) for need in needs if need.pin and need.package in index)


def go_together(opened: Mapping[str, OpenRange], platform: Platform, other_index: bool) -> list[OpenRange]:
    """Return the open packages without releases that are incompatible with every release of another open package."""
    known = {name: item for name, item in opened.items() if item.versions}  # a long file has thousands of others
    required = {name: _required(item, known, platform, other_index) for name, item in known.items()}
    left = {name: item.versions for name, item in known.items()}
    before = None
    while before != left:
        before = dict(left)
        for name in left:
            left[name] = tuple(version for version in left[name] if _satisfiable(required[name][version], left))
            for other in left:
                left[other] = _allowed_by(
                    left[other], [required[name][version].get(other, ()) for version in left[name]]
                )
    if not all(left.values()):
        return list(opened.values())  # incompatible by their metadata, which the user may override
    return [replace(item, versions=left.get(name, ())) for name, item in opened.items()]


class TooMany(Exception):
    """There are too many combinations to check them all."""


def combinations(
    packages: Sequence[OpenRange], platform: Platform, other_index: bool, *, newest_first: bool = False
) -> Iterator[tuple[str, ...]]:
    """Yield compatible releases, one of each package; raise TooMany where the search takes too many steps.

    newest_first: as pip chooses, which takes the newest release of a package before the ones that this requires.
    """
    given = [item.name for item in packages]
    opened = {item.name: item for item in packages}
    if newest_first:
        packages = _dependents_first(packages, opened, platform, other_index)
    required = [_required(item, opened, platform, other_index) for item in packages]
    names = [item.name for item in packages]
    within = functools.cache(_within)  # few ranges, many releases
    tried = 0

    def further(chosen: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        nonlocal tried
        here = len(chosen)
        if here == len(packages):
            yield tuple(chosen[names.index(name)] for name in given)
            return
        for version in packages[here].versions[:: -1 if newest_first else 1]:
            tried += 1
            if tried > MOST_TRIED:
                raise TooMany
            own = required[here][version]
            if all(
                within(other, own.get(names[place], ()))
                and within(version, required[place][other].get(names[here], ()))
                for place, other in enumerate(chosen)
            ):
                yield from further((*chosen, version))

    return further(())


def _dependents_first(
    packages: Sequence[OpenRange], opened: Mapping[str, OpenRange], platform: Platform, other_index: bool
) -> list[OpenRange]:
    """Return the packages, each before those that its newest release requires, directly or not."""
    newest = {item.name: replace(item, versions=item.versions[-1:]) for item in packages}
    needs = {name: {other for ranges in _required(item, opened, platform, other_index).values() for other in ranges}
             for name, item in newest.items()}  # fmt: skip

    def behind(name: str, found: frozenset[str]) -> frozenset[str]:
        for other in needs[name] - found:
            found = behind(other, found | {other})
        return found

    return sorted(packages, key=lambda item: -len(behind(item.name, frozenset())))


def _required(
    item: OpenRange, opened: Mapping[str, OpenRange], platform: Platform, other_index: bool
) -> dict[str, Ranges]:
    """Return for each release the ranges that it requires of other open packages."""
    found: dict[str, Ranges] = {}
    for version in item.versions:
        release = None if item.alone else load_index().release(item.name, version)
        ranges: dict[str, tuple[str, ...]] = {}
        for need in binding(item.name, version, needs_of(release.requires, platform) if release else (), other_index):
            if need.range and need.package in opened:
                ranges[need.package] = (*ranges.get(need.package, ()), need.range)
        found[version] = ranges
    return found


def _satisfiable(ranges: Ranges, left: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether each other package has a release in the required ranges."""
    return all(any(_within(version, wanted) for version in left[other]) for other, wanted in ranges.items())


def _allowed_by(versions: tuple[str, ...], choices: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the releases that at least one of the choices allows; all where a choice has no requirement."""
    if not choices or not all(choices):
        return versions
    distinct = set(choices)
    return tuple(version for version in versions if any(_within(version, wanted) for wanted in distinct))


def _within(version: str, ranges: tuple[str, ...]) -> bool:
    return all(admits(text, version) for text in ranges)


def any_of(name: str, ranges: Sequence[str]) -> str:
    """Return one range that allows the indexed releases of any of these ranges; empty where there is none."""
    releases = [version for version, item in load_index().releases(name).items() if not item.is_prerelease]
    good = [at for at, version in enumerate(releases) if any(admits(text, version) for text in ranges)]
    if not good:
        return ""
    first, last = good[0], good[-1]
    clauses = [f">={releases[first]}", *([f"<={releases[last]}"] if last + 1 < len(releases) else [])]
    return ",".join([*clauses, *(f"!={releases[at]}" for at in range(first, last) if at not in set(good))])


def narrowed(item: OpenRange, clean: Sequence[str]) -> str:
    """Return a range of the newest of these releases that excludes all others, with few exclusions inside."""
    versions, good = item.versions, set(clean)
    first = last = max(map(versions.index, clean))
    inside: list[str] = []
    for position in range(last - 1, -1, -1):
        if versions[position] in good:
            first = position
        elif versions[position + 1] not in good or len(inside) == MOST_NAMED:
            break  # older ones are separated by several excluded releases
        else:
            inside.insert(0, versions[position])
    inside = [version for version in inside if versions.index(version) > first]
    replaced = (">" if first > 0 else "") + ("<" if last + 1 < len(versions) else "")
    clauses = [clause for clause in item.range.split(",") if clause and clause[0] not in replaced]
    if first > 0:
        clauses.append(f">={versions[first]}")
    if last + 1 < len(versions):
        clauses.append(f"<{versions[last + 1]}")
    return ",".join([*clauses, *(f"!={version}" for version in inside)])
