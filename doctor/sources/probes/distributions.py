"""Installed distributions by the names of their metadata folders: nothing is imported, few files are opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from doctor.facts.vocabulary import fact
from doctor.model import TORCH, Fact
from doctor.sources.watch import Watch
from doctor.util.reading import regular_bytes

from .metadata import Distribution, scan
from .target import Target

PROMISES = ("distributions.complete", "distributions.broken", "distributions.duplicates")

MAX_METADATA = 1 << 20


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield `<name>.version` of every distribution, the broken and duplicate ones, and whether the list is complete."""
    broken: list[str] = []
    unreadable: list[str] = []
    by_name: dict[str, list[Distribution]] = {}
    for found in scan(target.site_dirs, frozenset(canonicalize_name(name) for name in watch.distributions), unreadable):
        if found.problem:
            broken.append(f"{found.path}: {found.problem}")
        if found.name:
            by_name.setdefault(found.name, []).append(found)
    duplicates: list[str] = []
    for name, copies in by_name.items():
        chosen = _first_on_path(copies)
        if len(copies) > 1:
            duplicates.append(f"{name}: " + ", ".join(f"{copy.version or 'broken'} ({copy.path})" for copy in copies))
        yield fact(f"{name}.version", chosen.version, chosen.path, problem=chosen.problem)
    where = ", ".join(str(path) for path in target.site_dirs)
    yield Fact("distributions.broken", tuple(broken), where)
    yield Fact("distributions.duplicates", tuple(duplicates), where)
    if unreadable:  # a distribution that was not found may still be there
        yield Fact("distributions.complete", None, where, problem="cannot read " + ", ".join(unreadable))
    elif by_name and TORCH not in by_name:  # an image layer, or half installed
        problem = "it has no torch, so it is only a part of the environment of the job"
        yield Fact("distributions.complete", None, where, problem=problem)
    else:
        yield Fact("distributions.complete", True, where)


def _first_on_path(copies: list[Distribution]) -> Distribution:
    """Return the copy that an import finds; its version is unknown where one folder holds two versions."""
    first = copies[0]
    folder = os.path.dirname(first.path)  # noqa: PTH120 - hundreds of these at every start
    same_folder = [copy for copy in copies if os.path.dirname(copy.path) == folder]  # noqa: PTH120
    versions = list(dict.fromkeys(copy.version for copy in same_folder if copy.version))
    if len(versions) > 1:
        return Distribution(
            first.name,
            None,
            folder,
            f"installed as {' and '.join(versions)} in one folder, so the files of both may be mixed",
        )
    return next((copy for copy in same_folder if copy.version), first)


def installed_version(target: Target, name: str) -> str | None:
    """Return the version of one distribution, None where it is missing or broken."""
    wanted = canonicalize_name(name)
    return next((found.version for found in target.distributions if found.name == wanted), None)


def installed_requirements(target: Target) -> dict[str, list[str]]:
    """Return the requirements of every installed distribution by its metadata; opens all files, so call it late."""
    requirements: dict[str, list[str]] = {}
    for found in target.distributions:
        if found.name and found.version and found.name not in requirements:
            requirements[found.name] = _requires(found.path)
    return requirements


def _requires(path: str) -> list[str]:
    for name in ("METADATA", "PKG-INFO", "EGG-INFO/PKG-INFO", ""):
        candidate = f"{path}/{name}" if name else path
        if os.path.isfile(candidate):  # noqa: PTH113
            try:
                with open(candidate, "rb") as stream:  # noqa: PTH123
                    text = stream.read(MAX_METADATA).decode("utf-8", "replace").replace("\r\n", "\n")
            except OSError:
                return []
            head = text.partition("\n\n")[0]
            declared = re.findall(r"^Requires-Dist:[ \t]*(.+?)[ \t]*$", head, re.MULTILINE | re.IGNORECASE)
            return declared or _requires_txt(path)
    return []


def _requires_txt(path: str) -> list[str]:
    """Read `requires.txt` of an egg, up to the first `[extra]` heading."""
    for name in ("requires.txt", "EGG-INFO/requires.txt"):
        candidate = Path(path) / name
        if candidate.is_file():
            try:
                text = regular_bytes(candidate, MAX_METADATA).decode("utf-8", "replace")
            except OSError:
                return []
            plain = re.split(r"^\[", text, maxsplit=1, flags=re.MULTILINE)[0]
            return [line.strip() for line in plain.splitlines() if line.strip()]
    return []
