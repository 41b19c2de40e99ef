"""Read declared environments: requirement, lock and project files, as facts with file and line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.facts.libraries.frameworks import caller_named
from doctor.model import Facts
from doctor.sources.manifests.formats.pyproject import read_project
from doctor.sources.manifests.formats.setuptools_project import read_extras
from doctor.sources.manifests.scripts.dockerfile import read_stage
from doctor.sources.watch import Watch
from doctor.util.reading import read_text

from .base import DiscoveredFile, FileRole, Manifest, ManifestKind, most_bytes
from .detect import kind_of
from .discover import discover, notes_of
from .readers import bounded, reader_of
from .resolve import Declaration, resolve


def read_manifests(names: Sequence[str], stated: Facts, watch: Watch) -> Declaration:
    """Return what these files declare together; a file that cannot be read does not hide the others.

    names: files, or folders of which `discover` chooses the files. `pyproject.toml[train]` adds an extra or a group,
        `Dockerfile[train]` chooses a stage.
    stated: facts given by the user; they decide markers.

    Raise DoctorError where no file can be read.
    """
    manifests: list[Manifest] = []
    faults: list[DoctorError] = []
    notes: list[str] = []
    jobs: dict[int, Path] = {}  # index of a manifest -> the file of a folder that is no environment
    for name in dict.fromkeys(names):
        chosen: tuple[str, ...] = ()
        try:
            path, chosen = _split_extras(name)
            files = [(path, FileRole.ENVIRONMENT)]
            if _is_folder(path):
                discovered = _discover(path, watch)
                notes += notes_of(discovered)
                files = [(item.path, item.role) for item in discovered if item.used]
        except DoctorError as problem:
            faults.append(problem)
            continue
        included: set[str] = set()
        for path, role in files:
            if included and str(path.resolve()) in included:
                continue  # an image was read before, with the files it installs, in the order of its commands
            try:
                manifest = _read(path, chosen, watch)
            except DoctorError as problem:
                faults.append(problem)
            else:
                manifests.append(replace(manifest, entries=()) if role == FileRole.VARIABLES else manifest)
                if role == FileRole.VARIABLES:
                    jobs[len(manifests) - 1] = path
                included |= set(manifest.included)
    if not manifests:
        raise faults[0]
    notes += _choose_job(manifests, jobs)
    declaration = resolve(manifests, stated, faults)
    return replace(declaration, notes=(*notes, *declaration.notes))


def _choose_job(manifests: list[Manifest], jobs: Mapping[int, Path]) -> list[str]:
    """Remove the workloads of a folder's scripts unless it is one that the environment serves; return notes on that."""
    packages = {entry.name for manifest in manifests for entry in manifest.entries}
    notes: list[str] = []
    stated: dict[int, dict[str, Any]] = {}
    for index, path in jobs.items():
        workload = {fact.key: fact.value for fact in manifests[index].facts if fact.key.startswith("workload.")}
        named = workload.get("workload.framework")
        if named is None or packages.isdisjoint(caller_named(named).packages or (named,)):
            manifests[index] = _without_workload(manifests[index])
            if named is not None:
                notes.append(f"the job of `{path}` is left out: the environment does not declare {named}")
        else:
            stated[index] = workload
    if any(workload != next(iter(stated.values())) for workload in stated.values()):
        for index in stated:
            manifests[index] = _without_workload(manifests[index])
        names = ", ".join(f"`{jobs[index]}`" for index in stated)
        notes.append(f"several scripts start a job, so none counts: {names}; name one to check it")
    return notes


def _without_workload(manifest: Manifest) -> Manifest:
    return replace(manifest, facts=tuple(fact for fact in manifest.facts if not fact.key.startswith("workload.")))


def _discover(folder: Path, watch: Watch) -> Sequence[DiscoveredFile]:
    discovered = discover(folder, watch)
    if not any(item.role == FileRole.ENVIRONMENT for item in discovered):
        raise DoctorError(f"no file in `{folder}` declares attention libraries", "name the files to check")
    return discovered


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long; reading it reports that
        return False


def _split_extras(name: str) -> tuple[Path, tuple[str, ...]]:
    """Return the file, and the extras and groups of `pyproject.toml[train,gpu]`."""
    match = re.fullmatch(r"(.+)\[([^\[\]]*)\]", name)
    try:
        if match is None or Path(name).exists():
            return Path(name), ()
    except (OSError, ValueError):
        return Path(name), ()
    return Path(match[1]), tuple(filter(None, re.split(r"[\s,]+", match[2])))


def _read(path: Path, chosen: tuple[str, ...], watch: Watch) -> Manifest:
    text = read_text(path, "declared environment", most_bytes(path), named=True)
    kind = kind_of(path, text)
    if chosen and kind == ManifestKind.DOCKERFILE and len(chosen) == 1:
        with bounded(kind, path, text):
            return read_stage(path, text, chosen[0], watch)
    if chosen and kind == ManifestKind.SETUPTOOLS:
        with bounded(kind, path, text):
            return read_extras(path, text, watch, chosen)
    if chosen:
        if kind != ManifestKind.PYPROJECT:
            hint = "only a pyproject.toml has extras and groups, setup.py extras, and a Dockerfile stages (name one)"
            raise DoctorError(f"`{path}` has no extras", hint)
        with bounded(kind, path, text):
            return read_project(path, text, watch, chosen)
    return reader_of(kind)(path, text, watch)
