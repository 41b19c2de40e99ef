"""Facts about the builds that an installation makes: which of them stop, why, and what lets them go through.

They follow from what the set-up of a release needs (the records), and from what is there when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from doctor.model import ABSENT, Fact
from doctor.packages.compiled_records import load_compiled_records
from doctor.packages.records import UNKNOWN_PACKAGE, PackageRecords
from doctor.packages.source_build import SourceBuild

from .unwheeled import Unwheeled, each_unwheeled

if TYPE_CHECKING:
    from .resolver import FactResolver

SOURCE = "the set-up scripts on record"
#: Tool -> what is missing, and what brings it where the job runs.
_TOOLS = {
    "nvcc": ("no nvcc", "take an image with nvcc (`-devel`)"),
    "ninja": ("no ninja", "`pip install ninja`"),
    "c_compiler": ("no C compiler", "`apt-get install -y gcc`"),
}


class Build(NamedTuple):
    """One package that is built, with the release on record: its own, or the newest if it is open."""

    package: str
    release: str  # empty where the version is open
    needs: SourceBuild

    @property
    def title(self) -> str:
        """Name and release."""
        return f"{self.package} {self.release}".strip()


class Stop(NamedTuple):
    """Why the build of one package stops, and what helps."""

    title: str
    reason: str
    remedy: str


def build_fact(key: str, known: FactResolver, packages: PackageRecords) -> Fact:
    """Return one of the facts of `BUILDS`; ABSENT where no build is concerned."""
    return Fact(key, BUILDS[key](known, packages) or ABSENT, SOURCE)


def _isolated(known: FactResolver, packages: PackageRecords) -> tuple[str, ...]:
    """Return packages whose set-up stops in an isolated build, each with the reason."""
    return tuple(
        f"{build.title} ({build.needs.isolated})"
        for build in _named(known, "declared.isolated")
        if build.needs.isolated and not packages.get(build.package, UNKNOWN_PACKAGE).has_build_rule
    )


def _stops(known: FactResolver, packages: PackageRecords) -> tuple[str, ...]:
    """Return builds that stop because torch, a CUDA compiler that fits, or a GPU is missing."""
    local = known.value("declared.local_stops")
    found = [f"{stop.title} ({stop.reason})" for stop in _each_stop(known)]
    return (*found, *(local if isinstance(local, tuple) else ()))


def _remedy(known: FactResolver, packages: PackageRecords) -> str:
    """Return what lets the first of these builds go through."""
    first = next(_each_stop(known), None)
    if first is not None:
        return first.remedy
    return (
        "install torch first, then the project with `--no-build-isolation`, in an image with nvcc if it compiles CUDA"
    )


def _at_run(known: FactResolver, packages: PackageRecords) -> tuple[str, ...]:
    """Return packages that this job reaches and that compile while it runs, where a tool for that is missing."""
    return tuple(
        f"{name} ({' and '.join(_TOOLS[tool][0] for tool in tools)})" for name, tools in _lacking(known, packages)
    )


def _at_run_remedy(known: FactResolver, packages: PackageRecords) -> str:
    """Return what to install for all of them."""
    tools = dict.fromkeys(tool for _, lacks in _lacking(known, packages) for tool in lacks)
    return " and ".join(_TOOLS[tool][1] for tool in tools)


def _lacking(known: FactResolver, packages: PackageRecords) -> Iterator[tuple[str, list[str]]]:
    """Yield packages with the tools that are missing while this job runs."""
    if known.value("torch.cuda") == ABSENT or known.value("gpu.sm") == ABSENT:
        return
    framework = known.value("workload.framework")
    for name, record in packages.items():
        work = record.compiles_at_run
        if work is None or framework not in work.called_by or known.value(f"{name}.version") == ABSENT:
            continue
        lacks = [tool for tool in work.needs if _lacks(tool, known)]
        if lacks and not any(known.value(f"{other}.version") not in (None, ABSENT) for other in work.unless):
            yield name, lacks


def _lacks(tool: str, known: FactResolver) -> bool:
    """Return whether a tool is known to be missing."""
    if tool == "ninja" and known.value("ninja.version") not in (None, ABSENT):
        return False
    if tool == "c_compiler" and known.value("env.CC") not in (None, ABSENT):
        return False
    return known.value(f"toolkit.{tool}") in (ABSENT, False)


def _each_stop(known: FactResolver) -> Iterator[Stop]:
    isolated = {build.package for build in _named(known, "declared.isolated")}
    early = {build.package for build in _named(known, "declared.built_before_torch")}
    for build in _named(known, "declared.built"):
        needs = build.needs
        if build.package in isolated and needs.isolated:
            continue  # it stops before: `builds.isolated` reports it
        if build.package in early and needs.imports_torch:
            reason = "its set-up imports torch, which is not installed when it runs"
            yield Stop(build.title, reason, f"install torch in a step of its own before `{build.package}`")
        elif known.value(f"env.{needs.skip_cuda}") in (None, ABSENT) or not needs.skip_cuda:
            yield from _compiler_stop(known, build)


def _compiler_stop(known: FactResolver, build: Build) -> Iterator[Stop]:
    """Yield why the compiled part of a package is not made: no CUDA compiler, one of another CUDA, or no GPU."""
    needs, cuda = build.needs, known.value("torch.cuda")
    if cuda == ABSENT:
        return  # next to a torch for the CPU most leave the compiled part out
    lacks = build.package in _names(known, "declared.built_without_nvcc")
    if needs.without_nvcc and lacks:
        image = f"an image with the CUDA compiler (`-devel`){f' of CUDA {cuda}' if cuda else ''}"
        skip = f", or take a wheel of its releases; `{needs.skip_cuda}=TRUE` leaves the compiled part out"
        yield Stop(
            build.title,
            f"no CUDA compiler: {needs.without_nvcc}",
            f"build it in {image}{skip if needs.skip_cuda else ''}",
        )
    elif needs.compiles_cuda and not needs.wheels and not lacks and known.value("toolkit.major_of_torch") is False:
        nvcc = known.value("toolkit.nvcc")
        yield Stop(
            build.title, f"nvcc is of CUDA {nvcc} and torch of CUDA {cuda}", f"build it with the nvcc of CUDA {cuda}"
        )
    elif needs.without_gpu and _sees_no_gpu(build, known) and known.value("env.TORCH_CUDA_ARCH_LIST") in (None, ABSENT):
        sm = known.value("gpu.sm")
        yield Stop(
            build.title,
            f"no GPU is visible: {needs.without_gpu}",
            f"set `TORCH_CUDA_ARCH_LIST={'9.0' if sm in (None, ABSENT) else sm}` for the build: it then needs no GPU",
        )


def _sees_no_gpu(build: Build, known: FactResolver) -> bool:
    """Return whether the build sees no GPU: on a machine without one, or while an image is built."""
    return known.value("gpu.sm") == ABSENT or build.package in _names(known, "declared.built_in_image")


def _named(known: FactResolver, key: str) -> Iterator[Build]:
    """Yield the builds of the packages that a fact lists, as far as they are on record."""
    records = load_compiled_records()
    for package in _names(known, key):
        version = known.value(f"{package}.version")
        if version == ABSENT or "+" in str(version):
            continue
        release = str(version) if version is not None else next(reversed(records.source_releases(package)), "")
        needs = records.source(package, release)
        if needs is not None and not records.wheels(package, release):
            yield Build(package, release if version is not None else "", needs)


def _names(known: FactResolver, key: str) -> tuple[str, ...]:
    names = known.value(key)
    return names if isinstance(names, tuple) else ()


def _no_wheel(known: FactResolver, packages: PackageRecords) -> tuple[str, ...]:
    """Return packages that an installer compiles, because their release pages have no wheel for this torch."""
    return tuple(one.words for one in _each_unwheeled(known))


def _no_wheel_remedy(known: FactResolver, packages: PackageRecords) -> str:
    """Return the nearest pairs that have a wheel for the first of them, then the build."""
    first = next(_each_unwheeled(known), None)
    return "" if first is None else first.remedy


def _each_unwheeled(known: FactResolver) -> Iterator[Unwheeled]:
    built, by_extras = _names(known, "declared.built"), _names(known, "declared.built_by_extras")
    if not (built or by_extras):
        return
    yield from each_unwheeled(known, built, by_extras)


#: Key -> how it follows from the builds.
BUILDS: Mapping[str, Any] = {
    "builds.isolated": _isolated,
    "builds.stops": _stops,
    "builds.stops_remedy": _remedy,
    "builds.no_wheel": _no_wheel,
    "builds.no_wheel_remedy": _no_wheel_remedy,
    "builds.at_run": _at_run,
    "builds.at_run_remedy": _at_run_remedy,
}
