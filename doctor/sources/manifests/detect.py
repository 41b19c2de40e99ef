"""Which format a file is in, told by its name, and by its content where a name serves several."""

from __future__ import annotations

import re
from pathlib import Path

from doctor.errors import DoctorError

#: What a file's name looks like → the module that reads it; the first that fits counts.
FORMATS = (
    (r"pylock(\.[^.]+)?\.toml", "pylock"),
    (r"uv\.lock", "uv"),
    (r"poetry\.lock", "poetry"),
    (r"pdm(\.[^.]+)?\.lock", "pdm"),
    (r"pixi\.lock", "pixi"),
    (r"pixi\.toml", "pixi_project"),
    (r"pipfile\.lock", "pipfile_lock"),
    (r"pipfile", "pipfile"),
    (r"pyproject\.toml", "pyproject"),
    (r"(.*[._-])?conda-lock(\.[^.]+)?\.ya?ml", "conda_lock"),
    (r"(?!.*\.(py|sh|rst|md|json|txt|ya?ml|png|svg)$)(.*[._-])?(docker|container)file([._-].*)?", "dockerfile"),
    (r".*\.(sh|bash|zsh|sbatch|slurm|pbs|job|srun|sub)", "jobscript"),
    (r".*\.ya?ml", "conda"),
)
#: Names of other tools' files, which nobody means as a list of requirements.
_NOT_READ = re.compile(r".*\.(lock|json|toml|cfg|py|whl|gz|zip|ipynb|md|rst)")
KNOWN = (
    "requirements.txt, pylock.toml, uv.lock, poetry.lock, pdm.lock, Pipfile(.lock), pixi.lock, pixi.toml, "
    "pyproject.toml, environment.yml, conda-lock.yml, Dockerfile, GitHub workflows and job scripts are"
)
#: What the text of a workflow of GitHub holds at its top level.
_WORKFLOW = re.compile(r"^(jobs|runs):", re.MULTILINE)
_CONDA_LOCK = re.compile(r"^package:", re.MULTILINE)
_EXPLICIT = re.compile(r"^@EXPLICIT\s*$", re.MULTILINE)
_CONDA = re.compile(r"^dependencies:", re.MULTILINE)
_SHEBANG = re.compile(r"#!.*\b(ba|z|k|da)?sh\b|#SBATCH\b", re.ASCII)


def kind_of(path: Path, text: str) -> str:
    """The module of this package that reads the file; DoctorError for a kind that none reads."""
    name = path.name.lower()
    found = next((module for pattern, module in FORMATS if re.fullmatch(pattern, name)), None)
    if found == "conda":  # any YAML: its content says more than its name, and its place where it is all comments
        if _WORKFLOW.search(text) or path.resolve().parts[-3:-1] == (".github", "workflows"):
            return "workflow"
        if _CONDA_LOCK.search(text) and not _CONDA.search(text):
            return "conda_lock"
    if found is not None:
        return found
    if _EXPLICIT.search(text):
        return "conda_lock"
    if _NOT_READ.fullmatch(name):
        raise DoctorError(f"cannot read `{path}`: this kind of file is not known", KNOWN)
    return "jobscript" if _SHEBANG.match(text) else "requirements"
