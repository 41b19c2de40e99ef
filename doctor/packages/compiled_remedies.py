"""Which release or build of a compiled package serves an environment: a wheel on record first, then a build."""

from __future__ import annotations

from collections.abc import Iterator

from doctor.facts.derived.compiled import runs_on
from doctor.facts.vocabulary import parse_version
from doctor.facts.wheel_labels import parse_label
from doctor.model import ABSENT

from .compiled_fit import CompiledFit, Wanted, fit_of
from .compiled_records import load_compiled_records
from .records import PackageRecord
from .source_build import SourceBuild
from .specifiers import admits

_MOST = 2


def remedies(package: str, version: str, wanted: Wanted, record: PackageRecord) -> tuple[str, ...]:
    """Return what to install instead, best first: a wheel on record, then builds from source."""
    found = list(_wheels(package, wanted, record))[:_MOST]
    build = build_command(package, version, wanted, record)
    return tuple([*found, *([build] if build else [])]) or (fallback(package, version, wanted),)


def _wheels(package: str, wanted: Wanted, record: PackageRecord) -> Iterator[str]:
    for release in reversed(load_compiled_records().releases(package)):
        fit = fit_of(package, release, wanted)
        if not fit.fails and _serves(fit, wanted) and not is_wrong(record, release, wanted.sm):
            yield f"`pip install {package}=={release}`, whose wheel has code for {fit.gpu.found or 'it'}"


def _serves(fit: CompiledFit, wanted: Wanted) -> bool:
    return fit.gpu.answer is True or wanted.sm in (None, ABSENT)


def build_command(package: str, version: str, wanted: Wanted, record: PackageRecord) -> str | None:
    """Return the command that builds a release which names the GPU; None where none on record does."""
    records = load_compiled_records()
    own = version.partition("+")[0]
    for release in (own, *reversed(records.source_releases(package))):
        build = records.source(package, release)
        if build is None or is_wrong(record, release, wanted.sm):
            continue
        settings = _settings(build, package, release, wanted)
        if settings is not None:
            return f"build it: `{settings}pip install --no-build-isolation --no-cache-dir --no-deps --force-reinstall {package}=={release}`{_compiler(build, release, wanted)}"  # noqa: E501
    return None


def _settings(build: SourceBuild, package: str, release: str, wanted: Wanted) -> str | None:
    """Return the variables of a build for the GPU, as typed in a shell; None where its script leaves the GPU out."""
    force = f"{build.force_build}=TRUE " if build.force_build and build.wheels else ""
    if not build.archs:
        sm = "" if wanted.sm in (None, ABSENT) else f"TORCH_CUDA_ARCH_LIST={wanted.sm} "
        return force + sm
    if wanted.sm in (None, ABSENT) or first_compiler(build, str(wanted.sm)) is not None:
        return force
    return None


def first_compiler(build: SourceBuild, sm: str) -> str | None:
    """Return the first release of nvcc for which a build script names code that runs on a GPU."""
    fitting = [release for release, archs in build.archs.items() if runs_on(archs, sm) is not None]
    return min(fitting, key=parse_version, default=None)


def _compiler(build: SourceBuild, release: str, wanted: Wanted) -> str:
    since = None if wanted.sm in (None, ABSENT) or not build.archs else first_compiler(build, str(wanted.sm))
    cuda = "" if wanted.cuda in (None, ABSENT) else f" of CUDA {str(wanted.cuda).partition('.')[0]}"
    newer = f", {since} or later," if since else ""
    return f" (needs nvcc{cuda}{newer} and a C++ compiler)"


def fallback(package: str, version: str, wanted: Wanted) -> str:
    """Return what to do where nothing is on record."""
    label = parse_label(version)
    goal = [f"torch {'.'.join(str(wanted.torch).split('.')[:2])}"] if wanted.torch not in (None, ABSENT) else []
    goal += [f"CUDA {wanted.cuda}"] if wanted.cuda not in (None, ABSENT) else []
    if label.names_build and goal:
        return f"install the wheel of {package} whose label names {' and '.join(goal)}, from its releases"
    sm = "" if wanted.sm in (None, ABSENT) else f"TORCH_CUDA_ARCH_LIST={wanted.sm} "
    return (
        f"build it from source: `{sm}pip install --no-build-isolation --no-cache-dir --no-binary {package} {package}`"
    )


def is_wrong(record: PackageRecord, release: str, sm: str | None) -> bool:
    """Return whether a release is known to compute wrong results, or to fail, on a GPU."""
    if sm in (None, ABSENT):
        return False
    return any(admits(spec, release) and str(sm).startswith(tuple(gpus)) for spec, gpus in record.wrong_on.items())
