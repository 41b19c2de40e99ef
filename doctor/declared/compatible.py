"""Which releases of the packages that a declaration leaves open go together, by what their metadata requires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..model import ABSENT, Fact
from ..records import dataclass
from ..release_index import Need, Platform, Release, admits, load_index, needs_of

MOST_NAMED = 4  # releases in one sentence, or left out of one range
Ranges = Mapping[str, tuple[str, ...]]  # other package → what a release asks of it


@dataclass(frozen=True)
class Open:
    """A package whose range leaves several releases open, the newest last."""

    name: str
    range: str
    place: str
    versions: tuple[str, ...]


def binding(name: str, version: str, needs: Sequence[Need], other_index: bool) -> Iterator[Need]:
    """The needs that hold wherever a wheel comes from: another build of torch brings other CUDA wheels than PyPI's.

    transformer-engine-torch is built on the spot and asks for the core of whichever torch it is built with.
    """
    label = version.partition("+")[2]
    for need in needs:
        if name == "transformer-engine-torch" and need.package.startswith("transformer-engine-cu"):
            continue
        if name != "torch" or not (label or other_index):
            yield need
        elif need.package == "triton" and (not label or label.startswith("cu")):
            yield need  # every build for CUDA asks for the same


def fits(
    name: str, release: Release, chosen: Mapping[str, Fact], platform: Platform, other_index: bool = False
) -> bool:
    """Whether a release goes with the versions that are settled, by its own metadata."""
    for need in binding(name, release.version, needs_of(release.requires, platform), other_index):
        found = chosen.get(need.package)
        if found is not None and found.value not in (None, ABSENT) and not admits(need.range, str(found.value)):
            return False
    return True


def go_together(opened: Mapping[str, Open], platform: Platform, other_index: bool) -> list[Open]:
    """The open packages without those releases that no release of another open package goes with."""
    asks = {name: _asked(item, opened, platform, other_index) for name, item in opened.items()}
    left = {name: item.versions for name, item in opened.items()}
    before = None
    while before != left:
        before = dict(left)
        for name in left:
            left[name] = tuple(version for version in left[name] if _served(asks[name][version], left))
            for other in left:
                left[other] = _asked_for(left[other], [asks[name][version].get(other, ()) for version in left[name]])
    if any(item.versions and not left[name] for name, item in opened.items()):
        return list(opened.values())  # by their metadata none go together, which their user may know better
    return [Open(item.name, item.range, item.place, left[name]) for name, item in opened.items()]


def _asked(item: Open, opened: Mapping[str, Open], platform: Platform, other_index: bool) -> dict[str, Ranges]:
    """Release → what it asks of the other open packages of which there are releases on record."""
    found: dict[str, Ranges] = {}
    for version in item.versions:
        release = load_index().release(item.name, version)
        ranges: dict[str, tuple[str, ...]] = {}
        for need in binding(item.name, version, needs_of(release.requires, platform) if release else (), other_index):
            if need.range and need.package in opened and opened[need.package].versions:
                ranges[need.package] = (*ranges.get(need.package, ()), need.range)
        found[version] = ranges
    return found


def _served(ranges: Ranges, left: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether each other package has a release that this one takes."""
    return all(any(_within(version, wanted) for version in left[other]) for other, wanted in ranges.items())


def _asked_for(versions: tuple[str, ...], choices: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The releases that one of the choices takes; all of them where one choice asks for nothing."""
    if not choices or not all(choices):
        return versions
    distinct = set(choices)
    return tuple(version for version in versions if any(_within(version, wanted) for wanted in distinct))


def _within(version: str, ranges: tuple[str, ...]) -> bool:
    return all(admits(text, version) for text in ranges)


def narrowed(item: Open, clean: Sequence[str]) -> str:
    """A range that admits none of the others on record, and of these the newest, with few releases left out between."""
    versions, good = item.versions, set(clean)
    first = last = max(map(versions.index, clean))
    inside: list[str] = []
    for position in range(last - 1, -1, -1):
        if versions[position] in good:
            first = position
        elif versions[position + 1] not in good or len(inside) == MOST_NAMED:
            break  # older ones lie behind a whole stretch that is bad
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
