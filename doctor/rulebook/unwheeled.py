"""Packages that an installer compiles, because their release pages have no wheel for the torch of the environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from doctor.model import ABSENT
from doctor.packages.compiled_records import load_compiled_records
from doctor.packages.release_wheels import WheelMatch, WheelTarget, find, minor, on_release_pages, table

if TYPE_CHECKING:
    from .resolver import FactResolver


class Unwheeled(NamedTuple):
    """One package of whose release no official wheel serves this torch, so that it is compiled."""

    package: str
    release: str | None
    extra: str  # of the project, where a plain install leaves the package out
    match: WheelMatch

    @property
    def words(self) -> str:
        """Why it is compiled."""
        return f"{self.match.why_not}{f' (extra `{self.extra}`)' if self.extra else ''}"

    @property
    def remedy(self) -> str:
        """The nearest pairs that have a wheel, then the build."""
        torch = minor(self.match.place.torch)
        pairs = [
            f"`{wheel.package}=={wheel.version}` has a wheel for torch {torch}"
            if wheel.torch == torch
            else f"`torch=={wheel.torch}.*` has one of {wheel.package} {wheel.version}"
            for wheel in self.match.nearest
        ]
        exact = f"{self.package}=={self.release}" if self.release else self.package
        build = f"`MAX_JOBS=4 pip install --no-build-isolation {exact}` compiles it, in an image with nvcc"
        return "; or ".join((*pairs, build))


def each_unwheeled(known: FactResolver, built: Sequence[str], by_extras: Sequence[str]) -> Iterator[Unwheeled]:
    """Yield those of the packages that are built, always or for an extra, which no official wheel serves here."""
    if known.value("torch.official_build") is not True or known.value("env.MAX_JOBS") not in (None, ABSENT):
        return  # another build of torch has other wheels; who limits the jobs means to compile
    target = _wheel_target(known)
    for package, release, extra in _requested(known, built, by_extras):
        build = load_compiled_records().source(package, release) if release else None
        forced = known.value(f"env.{build.force_build}") if build is not None and build.force_build else None
        if package not in on_release_pages() or "+" in (release or "") or str(forced).upper() == "TRUE":
            continue
        if release is None or table(release, package=package):
            match = find(target, release, package)
            if match.why_not is not None:
                yield Unwheeled(package, release, extra, match)


def _requested(
    known: FactResolver, built: Sequence[str], by_extras: Sequence[str]
) -> Iterator[tuple[str, str | None, str]]:
    """Yield name, release and extra of what an installer builds: always, or with an extra."""
    for package in built:
        version = known.value(f"{package}.version")
        if version != ABSENT:
            yield package, None if version is None else str(version), ""
    for text in by_extras:
        extra, _, requirement = text.partition(":")
        package, _, release = requirement.partition("==")
        yield package, release or None, extra


def _wheel_target(known: FactResolver) -> WheelTarget:
    """Return what a wheel has to fit, as far as it is known."""

    def text(key: str) -> str | None:
        value = known.value(key)
        return None if value in (None, ABSENT) else str(value)

    abi = known.value("torch.cxx11_abi")
    return WheelTarget(
        torch=text("torch.version"), cuda=text("torch.cuda"), abi=abi if isinstance(abi, bool) else None,
        python=text("python.version"), system=text("platform.system") or "Linux",
        machine=text("platform.machine") or "x86_64", glibc=text("platform.glibc"),
    )  # fmt: skip
