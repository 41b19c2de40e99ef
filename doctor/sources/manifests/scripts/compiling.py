"""What an install command compiles, and what its image lacks at that moment: torch, or a CUDA compiler."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from doctor.model import ABSENT, Fact
from doctor.packages.source_build import SourceBuild
from doctor.sources.builds.project import read_build
from doctor.sources.manifests.base import (
    BEFORE_TORCH,
    BUILT,
    IN_IMAGE,
    LOCAL_STOPS,
    WITHOUT_NVCC,
    DeclaredRequirement,
    builds,
)

from .compilers import NVCC

#: What build commands are preceded by: none of these brings torch.
_TOOLS = frozenset(
    (
        "pip",
        "setuptools",
        "wheel",
        "ninja",
        "packaging",
        "psutil",
        "cmake",
        "pybind11",
        "numpy",
        "uv",
        "build",
        "poetry",
    )
)
_FOLDER = re.compile(r"(?P<folder>\.|\./)(?:\[[^\]]*\])?")
Find = Callable[[str], "tuple[Path, str] | None"]


class Building(Enum):
    """How a command builds what has no wheel."""

    NONE = "only wheels are taken"
    ISOLATED = "in an environment of its own"
    OPEN = "in the environment itself"


class LocalBuild(NamedTuple):
    """A folder of the project that a command builds."""

    folder: str
    build: SourceBuild


def building(words: Sequence[str], variables: Mapping[str, str | None]) -> Building:
    """Return how a command builds."""
    if any(word.startswith("--only-binary") for word in words):
        return Building.NONE
    off = (variables.get("PIP_NO_BUILD_ISOLATION") or "").lower() in ("0", "no", "false", "off")  # pip reads it so
    return Building.OPEN if off or any(word.startswith("--no-build-isolation") for word in words) else Building.ISOLATED


def local_builds(words: Iterable[str], find: Find) -> Iterator[LocalBuild]:
    """Yield the project's own folder, where a command installs it: `.`, `-e .`, `.[extra]`."""
    for word in words:
        match = _FOLDER.fullmatch(word.strip("\"'"))
        if match is None or find("setup.py") is None:
            continue

        def read(name: str) -> str | None:
            found = find(name)
            return None if found is None else found[1]

        if (build := read_build(read)) is not None:
            yield LocalBuild(match["folder"], build)


def compiled(
    entries: Sequence[DeclaredRequirement], folders: Sequence[LocalBuild], how: Building, before: Collection[str],
    facts: Mapping[str, Fact], place: str, *, certain: bool,
) -> dict[str, tuple[str, ...]]:  # fmt: skip
    """Return the facts of what a command compiles: packages of the registry, and why folders of the project stop.

    before: what earlier commands installed. certain: every earlier command was understood.
    """
    if how is Building.NONE:
        return {}
    found = {fact.key: tuple(fact.value) for fact in builds(entries, place, isolated=how is Building.ISOLATED)}
    names = found.get(BUILT, ())
    plain = NVCC in facts and certain and _TOOLS.issuperset(before)  # an image whose content is known
    early = plain and how is Building.OPEN and "torch.version" not in facts
    if names and early:
        found[BEFORE_TORCH] = names
    if names and NVCC in facts:
        found[IN_IMAGE] = names
    no_nvcc = NVCC in facts and facts[NVCC].value == ABSENT
    if names and no_nvcc:
        found[WITHOUT_NVCC] = names
    stops = tuple(filter(None, (_stop_of(one, how, early=early, no_nvcc=no_nvcc) for one in folders)))
    return {**found, LOCAL_STOPS: stops} if stops else found


def _stop_of(local: LocalBuild, how: Building, *, early: bool, no_nvcc: bool) -> str:
    """Return why the build of a folder stops, empty where it does not or that is not known."""
    build = local.build
    reason = ""
    if how is Building.ISOLATED:
        reason = build.isolated
    elif early and build.imports_torch:
        reason = "its set-up imports torch, which is not installed yet"
    if not reason and no_nvcc and build.without_nvcc:
        reason = f"no CUDA compiler: {build.without_nvcc}"
    return f"the project in `{local.folder}` ({reason})" if reason else ""
