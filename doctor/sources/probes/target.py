"""The target of the probes: an interpreter, or an unpacked folder of packages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from doctor.errors import DoctorError, NoDiagnosis, reason_of
from doctor.model import Fact, TextEnum
from doctor.sources.watch import Watch
from doctor.util.reading import regular_bytes

from .metadata import Distribution, scan

OLDEST = (3, 8)  # Python versions that can be examined
_PLACES = (
    "lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3*/dist-packages",
    "lib/python3/dist-packages", "Lib/site-packages",
)  # fmt: skip
_ROOTS = ("", "usr/local", "usr", "opt/venv", "venv", ".venv", "opt/conda")
_PYTHON_IN_PATH = re.compile(r"python(3\.\d+)$")
_TAG = re.compile(r"\.cpython-3(\d+)[a-z]*-(\w+?)-(linux|darwin)")
MAX_PTH_BYTES = 64 * 1024


class TargetKind(TextEnum):
    """What is examined."""

    INTERPRETER = "interpreter"
    SITE_PACKAGES = "site_packages"  # an unpacked folder of packages


@dataclass(frozen=True)
class Target:
    """The target environment, with what its interpreter reported about itself."""

    python: str | None
    prefix: Path
    site_dirs: tuple[Path, ...]  # where it imports from, in order
    kind: TargetKind
    version: str | None = None
    implementation: str | None = None
    system: str | None = None
    machine: str | None = None
    glibc: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, compare=False)  # of what runs in it

    @cached_property
    def distributions(self) -> tuple[Distribution, ...]:
        """Every installed distribution, in the order of the import path."""
        return tuple(scan(self.site_dirs))

    def describe(self) -> str:
        """Return the target in words, for a report."""
        if self.kind == TargetKind.SITE_PACKAGES:
            return f"packages in {self.site_dirs[0]}"
        return f"Python {self.version} at {self.python}"


class Probe(Protocol):
    """A module with these two names; `PROMISES` are the keys that it always yields."""

    @property
    def PROMISES(self) -> tuple[str, ...]:
        """Return the keys that become unknown where the probe fails."""
        ...

    def collect(self, target: Target, watch: Watch) -> Iterator[Fact]:
        """Yield the facts."""
        ...


def tree_target(directory: str) -> Target:
    """Return the packages below `directory`; DoctorError where it cannot be read, NoDiagnosis where it holds none."""
    if "\0" in directory or not directory:
        raise DoctorError("`--site-packages` needs a folder")
    root = Path(directory).expanduser().absolute()
    try:
        if not root.exists():
            raise DoctorError(f"folder `{directory}` does not exist")
        if not root.is_dir():
            raise DoctorError(
                f"`{directory}` is not a folder", "`--site-packages` needs an unpacked folder of packages"
            )
        found = [root] if _has_packages(root) else _inside(root)
    except OSError as problem:
        raise DoctorError(f"cannot read folder `{directory}`: {reason_of(problem)}") from None
    if not found:
        raise NoDiagnosis(
            f"no installed packages under `{directory}`: no `.dist-info` and no `.egg-info` in it",
            "name the folder that contains the `.dist-info` folders, usually `…/site-packages`",
        )
    dirs = list(dict.fromkeys(path for base in found for path in (base, *_pth_entries(base))))
    tagged = _tag(dirs)
    in_path = next((match[1] for base in found if (match := _PYTHON_IN_PATH.search(str(base.parent)))), None)
    return Target(
        python=None,
        prefix=_prefix(found[0]),
        site_dirs=tuple(dirs),
        kind=TargetKind.SITE_PACKAGES,
        version=in_path or tagged[0],
        implementation="cpython" if tagged[0] else None,
        system=tagged[1],
        machine=tagged[2],
    )


def _has_packages(directory: Path) -> bool:
    return any(name.endswith((".dist-info", ".egg-info", ".egg-link", ".egg")) for name in os.listdir(directory))  # noqa: PTH208


def _inside(root: Path) -> list[Path]:
    """Return the site-packages folders of a prefix, or of the root of an image."""
    found: dict[Path, None] = {}
    for base in _ROOTS:
        for place in _PLACES:
            for path in sorted((root / base).glob(place)):
                if path.is_dir() and _has_packages(path):
                    found[path] = None
    return list(found)


def _prefix(site: Path) -> Path:
    """Return the prefix of a site-packages folder: …/lib/python3.11/site-packages -> …"""
    if site.name in ("site-packages", "dist-packages") and site.parent.name.startswith("python"):
        return site.parents[2]
    return site


def _pth_entries(site: Path) -> list[Path]:
    """Return the folders that `.pth` files add, as editable installs do; code in them is not run."""
    entries: list[Path] = []
    for name in sorted(os.listdir(site)):  # noqa: PTH208 - site itself goes by name
        if not name.endswith(".pth"):
            continue
        try:
            text = regular_bytes(site / name, MAX_PTH_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        for line in text.splitlines():
            line = line.strip()
            if not line or line.startswith(("#", "import ", "import\t")) or "\0" in line:
                continue
            path = site / line
            try:
                if path.is_dir():
                    entries.append(path.resolve())
            except OSError:
                continue
    return entries


def _tag(dirs: list[Path]) -> tuple[str | None, str | None, str | None]:
    """Return Python, system and machine that the compiled modules were built for."""
    for base in dirs:
        for pattern in ("torch/_C.*.so", "*.cpython-3*.so", "*/*.cpython-3*.so"):
            for path in base.glob(pattern):
                match = _TAG.search(path.name)
                if match:
                    return f"3.{match[1]}", {"linux": "Linux", "darwin": "Darwin"}[match[3]], match[2]
    return None, None, None
