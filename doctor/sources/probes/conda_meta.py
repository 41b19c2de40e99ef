"""Packages that conda lists in an environment and pip installed again in another release, by their file names."""

from __future__ import annotations

import os
from collections.abc import Iterator

from packaging.version import InvalidVersion

from doctor.facts.vocabulary import fact, parse_version
from doctor.model import Fact
from doctor.packages.records import PackageRecords
from doctor.sources.watch import Watch

from .target import Target

PROMISES: tuple[str, ...] = ()


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield `files.conda_and_pip` where both lists name a package with different versions."""
    folder = conda_folder(target)
    if folder is None:
        return
    listed = dict(_listed(f"{folder}/conda-meta", watch.packages))
    if not listed:
        return
    site = [path for path in target.site_dirs if str(path).startswith(f"{folder}/")]
    folders = set(map(str, site))
    installed = {found.name: found for found in target.distributions if found.version and found.folder in folders}
    both = []
    for name, (conda_name, version) in listed.items():
        other = installed.get(name)
        if other is not None and _differ(version, str(other.version)):
            both.append(f"{name}: conda lists {conda_name} {version}, and {other.version} was installed over it")
    if both:
        yield fact("files.conda_and_pip", tuple(both), f"{folder}/conda-meta and {site[0]}")


def conda_folder(target: Target) -> str | None:
    """Return the folder of the conda environment that is examined, None for any other environment."""
    folder = str(target.prefix)
    return folder if os.path.isdir(f"{folder}/conda-meta") else None  # noqa: PTH112


def _listed(folder: str, records: PackageRecords) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield distribution, and name and version in conda, from files such as `pytorch-2.5.1-py3.11_cuda12.4_0.json`."""
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return
    distributions = {name: distribution for distribution, record in records.items() for name in record.conda}
    for entry in sorted(names):
        name, _, rest = entry.removesuffix(".json").rpartition("-")[0].rpartition("-")
        if entry.endswith(".json") and name in distributions:
            yield distributions[name], (name, rest)


def _differ(one: str, other: str) -> bool:
    try:
        return parse_version(one).release != parse_version(other).release
    except InvalidVersion:
        return False
