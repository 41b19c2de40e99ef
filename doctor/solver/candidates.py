"""Which releases of a package may be chosen: those of a range that install on the platform, nearest first."""

from __future__ import annotations

from doctor.facts.versions import split_clauses
from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT
from doctor.packages.index import Release, loses_cuda
from doctor.packages.relations import owner_of
from doctor.packages.specifiers import admits

from .cost import distance
from .environment import PackageSet


def releases_of(stack: PackageSet, package: str, wanted: str = "") -> list[str]:
    """Return the releases within the range that install on the platform, nearest first, without the present one."""
    key = ("releases", package, wanted)
    if key not in stack.memo:
        stack.memo[key] = _fitting_releases(stack, package, wanted)
    found: list[str] = stack.memo[key]
    return found


def _fitting_releases(stack: PackageSet, package: str, wanted: str) -> list[str]:
    if not stack.free(package):
        return []
    if wanted == ABSENT:
        return [ABSENT]
    wanted = ",".join(filter(None, (wanted, stack.limits.ranges.get(package, ""))))
    present = stack.installed.get(package)
    if owner_of(package):  # the one release it can be brought back to
        own = stack.pinned_by_owner(package)
        return [own] if own is not None and own != present and admits(wanted, own) else []
    named = _named(stack, package, wanted)
    if named is not None:
        return [] if named == present else [named]
    releases = stack.index.releases(package)
    final = any(not (item.is_prerelease or item.yanked) for item in releases.values())
    fitting = [
        version
        for version, item in releases.items()
        if not item.yanked
        and any(parse_version(version).release)  # 0.0.0 only reserves a name
        and not (final and item.is_prerelease)
        and not (present and _same(version, present))
        and admits(wanted, version)
        and item.installs_on(stack.platform)
        and not loses_cuda(item, stack.platform)
        and _parts_install(stack, item)
    ]
    return sorted(fitting, key=lambda version: distance(stack, package, version))


def _named(stack: PackageSet, package: str, wanted: str) -> str | None:
    """The release that the range itself names, where none on record can be chosen: another build, another package."""
    clauses = split_clauses(wanted)
    named = [bound for operator, bound in clauses if operator == "==" and bound[:1] != "="]
    if package not in stack.index:  # by `==`, or by where the range begins
        named += [bound for operator, bound in clauses if operator in (">=", "~=", "<=")]
        named = [bound.removesuffix(".*") for bound in named]
    else:
        named = [bound for bound in named if "+" in bound]
    return next((bound for bound in named if admits(wanted, bound)), None)


def _parts_install(stack: PackageSet, release: Release) -> bool:
    """Whether everything it pins exactly is available for the platform, as far as that is on record."""
    for part, pin in stack.bundled_packages(release.package, release.version).items():
        found = stack.index.release(part, pin)
        if found is not None and not found.installs_on(stack.platform):
            return False
    return True


def _same(one: str, other: str) -> bool:
    return other != ABSENT and parse_version(one.partition("+")[0]) == parse_version(other.partition("+")[0])
