"""The reader of each manifest kind, imported when a file of that kind is read."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from doctor.sources.watch import Watch

from .base import Manifest, ManifestKind


class Reader(Protocol):
    """A function that reads one file; DoctorError names file and line of what it cannot read."""

    def __call__(self, path: Path, text: str, watch: Watch) -> Manifest:
        """Return what the file declares."""
        ...


#: Kind -> (module, function) of its reader.
_READERS = {
    ManifestKind.CONDA: ("formats.conda", "read"),
    ManifestKind.CONDA_LOCK: ("formats.conda_lock", "read"),
    ManifestKind.DOCKERFILE: ("scripts.dockerfile", "read"),
    ManifestKind.JOBSCRIPT: ("scripts.jobscript", "read"),
    ManifestKind.PDM: ("formats.toml_locks", "read_pdm"),
    ManifestKind.PIPFILE: ("formats.pipfile", "read"),
    ManifestKind.PIPFILE_LOCK: ("formats.pipfile_lock", "read"),
    ManifestKind.PIXI: ("formats.pixi", "read"),
    ManifestKind.PIXI_PROJECT: ("formats.pixi_project", "read"),
    ManifestKind.POETRY: ("formats.toml_locks", "read_poetry"),
    ManifestKind.PYLOCK: ("formats.toml_locks", "read_pylock"),
    ManifestKind.PYPROJECT: ("formats.pyproject", "read"),
    ManifestKind.REQUIREMENTS: ("formats.requirements", "read"),
    ManifestKind.UV: ("formats.toml_locks", "read_uv"),
    ManifestKind.WORKFLOW: ("scripts.workflow", "read"),
}


def reader_of(kind: ManifestKind) -> Reader:
    """Return the reader of one manifest kind."""
    module, function = _READERS[kind]
    return cast(Reader, getattr(import_module(f"doctor.sources.manifests.{module}"), function))
