"""What the release index has on the wheels of a release, as lines of text that proofs are compared with."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from doctor.errors import DoctorError
from doctor.model import TORCH
from doctor.packages.index import load_index


def recorded_releases(package: str) -> tuple[str, ...]:
    """Return the releases of a package on record, oldest first; DoctorError where it has none."""
    found = tuple(load_index().releases(package))
    if not found:
        raise DoctorError(f"the release index does not have `{package}`")
    return found


def wheel_record(package: str, version: str) -> bytes:
    """Return what is on record of one release, a line for each fact."""
    return "\n".join(_facts(package, version)).encode()


def _facts(package: str, version: str) -> Iterator[str]:
    release = load_index().release(package, version)
    if release is None:
        raise DoctorError(f"the release index does not have `{package}=={version}`")
    yield from (f"wheel for {tag}" for tag in release.tags)
    yield from (f"wheel for {machine}" for machine in release.machines)
    if release.requires_python:
        yield f"requires Python {release.requires_python}"
    if release.sdist:
        yield "source archive"
    if release.yanked:
        yield "withdrawn"
    if package == TORCH:
        yield from _builds(".".join(map(str, Version(version).release[:2])))


def _builds(series: str) -> Iterator[str]:
    """Yield what the builds of a series of torch are made with: code for GPUs, C++ ABI, cuDNN."""
    for name, build in load_index().torch_builds.items():
        of_series, _, label = name.partition("+")
        if of_series == series:
            yield from (f"{label} code for {arch}" for arch in build.archs)
            yield from (f"{label} abi {build.abi}", f"{label} cudnn {build.cudnn}")
