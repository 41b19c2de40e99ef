"""Detect the format of a manifest by its name, and by its content where one name serves several formats."""

from __future__ import annotations

import re
from pathlib import Path

from doctor.errors import DoctorError

from .base import ManifestKind

#: Pattern of a file name -> its format; the first match counts.
_FORMATS = (
    (r"pylock(\.[^.]+)?\.toml", ManifestKind.PYLOCK),
    (r"uv\.lock", ManifestKind.UV),
    (r"poetry\.lock", ManifestKind.POETRY),
    (r"pdm(\.[^.]+)?\.lock", ManifestKind.PDM),
    (r"pixi\.lock", ManifestKind.PIXI),
    (r"pixi\.toml", ManifestKind.PIXI_PROJECT),
    (r"pipfile\.lock", ManifestKind.PIPFILE_LOCK),
    (r"pipfile", ManifestKind.PIPFILE),
    (r"pyproject\.toml", ManifestKind.PYPROJECT),
    (r"setup\.(py|cfg)", ManifestKind.SETUPTOOLS),
    (r"(.*[._-])?conda-lock(\.[^.]+)?\.ya?ml", ManifestKind.CONDA_LOCK),
    (
        r"(?!.*\.(py|sh|rst|md|json|txt|ya?ml|png|svg)$)(.*[._-])?(docker|container)file([._-].*)?",
        ManifestKind.DOCKERFILE,
    ),
    (r".*\.(sh|bash|zsh|sbatch|slurm|pbs|job|srun|sub)", ManifestKind.JOBSCRIPT),
    (r".*\.ya?ml", ManifestKind.CONDA),
)
#: Files of other tools, which are no lists of requirements.
_NOT_READ = re.compile(r".*\.(lock|json|toml|cfg|whl|gz|zip|md|rst)")
_PROGRAM = re.compile(r".*\.(py|ipynb)")
_OF_PROGRAM = "`attn-doctor check {}` reads what it states of the job, next to other files"
_SUPPORTED = (
    "supported: requirements.txt, pylock.toml, uv.lock, poetry.lock, pdm.lock, Pipfile(.lock), pixi.lock, pixi.toml, "
    "pyproject.toml, setup.py, setup.cfg, environment.yml, conda-lock.yml, Dockerfile, compose files, "
    "Kubernetes manifests, GitHub workflows and job scripts"
)
#: Top-level keys of a GitHub workflow or action.
_WORKFLOW = re.compile(r"^(jobs|runs):", re.MULTILINE)
_CONDA_LOCK = re.compile(r"^package:", re.MULTILINE)
#: Top-level keys of a compose file, and those of a Kubernetes manifest.
_COMPOSE = re.compile(r"^services:", re.MULTILINE)
_KUBERNETES = (re.compile(r"^apiVersion:", re.MULTILINE), re.compile(r"^kind:", re.MULTILINE))
_EXPLICIT = re.compile(r"^@EXPLICIT\s*$", re.MULTILINE)
_CONDA = re.compile(r"^dependencies:", re.MULTILINE)
_SHEBANG = re.compile(r"#!.*\b(ba|z|k|da)?sh\b|#SBATCH\b", re.ASCII)


class UnknownKind(DoctorError):
    """The file has a format that no reader knows."""


def is_manifest(path: Path) -> bool:
    """Return whether the name of a file is that of a manifest."""
    return any(re.fullmatch(pattern, path.name.lower()) for pattern, _ in _FORMATS)


def is_project_file(path: Path) -> bool:
    """Return whether a file is a manifest by its name alone: any YAML may be another file."""
    return is_manifest(path) and path.suffix.lower() not in (".yaml", ".yml")


def kind_of(path: Path, text: str) -> ManifestKind:
    """Return the format of a file; UnknownKind where no reader knows it."""
    name = path.name.lower()
    kind = next((kind for pattern, kind in _FORMATS if re.fullmatch(pattern, name)), None)
    if kind == ManifestKind.CONDA:  # any YAML: the content decides, or the folder where the file has only comments
        if _WORKFLOW.search(text) or path.resolve().parts[-3:-1] == (".github", "workflows"):
            return ManifestKind.WORKFLOW
        kubernetes = all(pattern.search(text) for pattern in _KUBERNETES)
        if (_COMPOSE.search(text) or kubernetes) and not _CONDA.search(text):
            return ManifestKind.CONTAINERS
        if _CONDA_LOCK.search(text) and not _CONDA.search(text):
            return ManifestKind.CONDA_LOCK
    if kind is not None:
        return kind
    if _EXPLICIT.search(text):
        return ManifestKind.CONDA_LOCK
    if _PROGRAM.fullmatch(name):
        raise UnknownKind(f"`{path}` is a Python program and declares no environment", _OF_PROGRAM.format(path))
    if _NOT_READ.fullmatch(name):
        raise UnknownKind(f"cannot read `{path}`: unknown file format", _SUPPORTED)
    return ManifestKind.JOBSCRIPT if _SHEBANG.match(text) else ManifestKind.REQUIREMENTS
