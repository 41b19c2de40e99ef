"""The reader of each manifest kind, imported when a file of that kind is read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from doctor.errors import DoctorError
from doctor.sources.watch import Watch
from doctor.util.redact import shortened

from .base import MOST_ENTRIES, Manifest, ManifestKind


class Reader(Protocol):
    """A function that reads one file; DoctorError names file and line of what it cannot read."""

    def __call__(self, path: Path, text: str, watch: Watch) -> Manifest:
        """Return what the file declares."""
        ...


#: Kind -> (module, function) of its reader.
_READERS = {
    ManifestKind.CONDA: ("formats.conda", "read"),
    ManifestKind.CONDA_LOCK: ("formats.conda_lock", "read"),
    ManifestKind.CONTAINERS: ("scripts.containers", "read"),
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
    ManifestKind.SETUPTOOLS: ("formats.setuptools_project", "read"),
    ManifestKind.UV: ("formats.toml_locks", "read_uv"),
    ManifestKind.WORKFLOW: ("scripts.workflow", "read"),
}


#: Characters of one file, where its reader needs much memory per character; others have the limit of `read_text`.
_MOST_CHARACTERS = dict.fromkeys(
    (ManifestKind.DOCKERFILE, ManifestKind.JOBSCRIPT, ManifestKind.SETUPTOOLS, ManifestKind.WORKFLOW), 1 << 20
)


def reader_of(kind: ManifestKind) -> Reader:
    """Return the reader of one manifest kind; it raises DoctorError for any file, however malformed."""
    module, function = _READERS[kind]
    read = cast(Reader, getattr(import_module(f"doctor.sources.manifests.{module}"), function))

    def read_bounded(path: Path, text: str, watch: Watch) -> Manifest:
        with bounded(kind, path, text):
            manifest = read(path, text, watch)
        if len(manifest.entries) > MOST_ENTRIES:
            raise DoctorError(f"`{path}` has more than {MOST_ENTRIES:,} requirements")
        return manifest

    return read_bounded


@contextlib.contextmanager
def bounded(kind: ManifestKind, path: Path, text: str) -> Iterator[None]:
    """Raise DoctorError for a file that is too large for its kind, and for what its reader cannot represent."""
    most = _MOST_CHARACTERS.get(kind)
    if most is not None and len(text) > most:
        raise DoctorError(f"`{path}` is larger than {most >> 20} MiB, too much for a {kind} file")
    try:
        yield
    except RecursionError:
        raise DoctorError(f"{path}: nested too deeply") from None
    except (ArithmeticError, ValueError) as problem:  # a number, version or name beyond what its type holds
        reason = shortened(" ".join(str(problem).split()), 120)
        raise DoctorError(f"{path}: cannot be read as a {kind} file: {reason}") from None
