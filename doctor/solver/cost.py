"""Cost of a choice of versions, in numbers and words, and the distance between releases: the order of what is tried."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, TORCH
from doctor.packages.release_wheels import PACKAGE as FLASH_ATTN

from .environment import PackageSet, Versions


@lru_cache(maxsize=65536)
def series(version: str) -> tuple[int, ...]:
    """The release line a version belongs to: 2.7.1 → (2, 7); 0.0.29.post1 → (0, 0, 29)."""
    release = (*parse_version(version).release, 0, 0, 0)
    return release[:3] if release[:2] == (0, 0) else release[:2]


def distance(stack: PackageSet, package: str, version: str) -> tuple[int, int]:
    """(release lines away from the present one, releases behind the newest of its line)."""
    lines: dict[tuple[int, ...], list[str]] = stack.memo.get(("lines", package), {})
    if not lines:
        for text in stack.index.releases(package):
            if not parse_version(text).is_prerelease:
                lines.setdefault(series(text), []).append(text)
        stack.memo["lines", package] = lines
    line = series(version)
    newer = [text for text in lines.get(line, ()) if parse_version(version) < parse_version(text)]
    behind = 0 if "+" in version else len(newer)
    present = stack.installed.get(package)
    if present is None:
        return sum(1 for other in lines if other > line), behind  # newly installed: the newest
    here = series(present)
    return sum(1 for other in lines if min(here, line) <= other <= max(here, line) and other != here), behind


def cost(stack: PackageSet, chosen: Versions) -> tuple[int, ...]:
    """Return the cost of a choice, most important part first; lower is better."""
    torch, before = chosen.get(TORCH), stack.installed.get(TORCH)
    moved = bool(torch and torch != ABSENT)
    minor = int(bool(torch and before and series(torch) != series(before)))
    was, becomes = stack.cuda_major(before), stack.cuda_major(torch)
    cuda = int(bool(torch and was and becomes and was != becomes))
    loose = down = builds = lines = behind = 0
    for package, version in chosen.items():
        present = stack.installed.get(package)
        if version == ABSENT:
            continue
        if present and present != ABSENT and parse_version(version) < parse_version(present):
            down += 1
        loose += int(moved and _unpinned(stack, package, version, torch))
        release = stack.index.release(package, version)
        builds += int(release is not None and "+" not in version and not release.has_wheel(stack.platform))
        away, newer = distance(stack, package, version)
        lines, behind = lines + away, behind + newer
    return len(chosen), minor, cuda, loose, down, builds, lines, behind


def _unpinned(stack: PackageSet, package: str, version: str, torch: str | None) -> bool:
    """Compiled for one torch without saying which, where other releases of the package do say it."""
    release = stack.index.release(package, version)
    if release is None or package == TORCH or set(release.machines) <= {"any"}:
        return False
    if any(need.package == TORCH and need.pin for need in stack.needs(package, version, torch)):
        return False
    key = ("pins torch", package)
    if key not in stack.memo:
        some = list(stack.index.releases(package))[-12:]
        stack.memo[key] = any(n.package == TORCH and n.pin for v in some for n in stack.needs(package, v, torch))
    return bool(stack.memo[key])


def in_words(stack: PackageSet, chosen: Versions) -> Iterator[str]:
    """Yield the costs, highest first: another torch or CUDA, downgrades, builds."""
    torch, before = chosen.get(TORCH), stack.installed.get(TORCH)
    if torch and before and torch != ABSENT and series(torch) != series(before):
        yield f"another torch release line: {'.'.join(map(str, series(before)))} → {'.'.join(map(str, series(torch)))}"
    was, becomes = stack.cuda_major(before), stack.cuda_major(torch)
    if was and becomes and was != becomes:
        yield f"another CUDA major: {was} → {becomes}"
    for name, version in sorted(chosen.items()):
        present = stack.installed.get(name, ABSENT)
        if ABSENT not in (version, present) and parse_version(version) < parse_version(present):
            yield f"a downgrade of `{name}`: {present} → {version}"
    for name, version in sorted(chosen.items()):
        release = None if version == ABSENT or "+" in version else stack.index.release(name, version)
        # flash-attn's wheels are on its release page: `describe` names the cost where none fits.
        if release is not None and name != FLASH_ATTN and not release.has_wheel(stack.platform):
            records = f"the records of {stack.index.refreshed}"
            yield f"`{name}` {version} has no wheel in {records}: a source build, or a wheel from its release page"
