"""The reader of each manifest kind, imported when a file of that kind is read."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from .base import Manifest

#: A function of a file's path and text; DoctorError names file and line of what it cannot read.
Reader = Callable[[Path, str], Manifest]

#: Kind (see `detect`) -> module with a function `read(path, text)`.
_MODULES = {
    "conda": "formats.conda",
    "conda_lock": "formats.conda_lock",
    "dockerfile": "scripts.dockerfile",
    "jobscript": "scripts.jobscript",
    "pdm": "formats.pdm",
    "pipfile": "formats.pipfile",
    "pipfile_lock": "formats.pipfile_lock",
    "pixi": "formats.pixi",
    "pixi_project": "formats.pixi_project",
    "poetry": "formats.poetry",
    "pylock": "formats.pylock",
    "pyproject": "formats.pyproject",
    "requirements": "formats.requirements",
    "uv": "formats.uv",
    "workflow": "scripts.workflow",
}


def reader_of(kind: str) -> Reader:
    """Return the reader of one manifest kind."""
    found: Reader = import_module(f"doctor.sources.manifests.{_MODULES[kind]}").read
    return found
