"""Which files are edited by hand, and what to run instead for those that a tool writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from doctor.errors import DoctorError
from doctor.sources.manifests.base import ENVIRONMENT, MAX_BYTES
from doctor.sources.manifests.detect import kind_of
from doctor.sources.manifests.discover import discover
from doctor.util.yaml_text import read_text

_EDITED = ("requirements", "pyproject")
#: Kind of a lock file → (what it is made from, the command that regenerates it).
_LOCKS = {
    "uv": ("pyproject.toml", "uv lock"),
    "poetry": ("pyproject.toml", "poetry lock"),
    "pdm": ("pyproject.toml", "pdm lock"),
    "pylock": ("pyproject.toml", "uv export --format pylock.toml -o {name}"),
    "pipfile_lock": ("Pipfile", "pipenv lock"),
    "pixi": ("pixi.toml", "pixi lock"),
    "conda_lock": ("environment.yml", "conda-lock"),
}
#: Kind of any other file → what to do instead.
_INSTEAD = {
    "pipfile": "`--pin` gives the versions; put them there, then run `pipenv lock`",
    "pixi_project": "`--pin` gives the versions; put them there, then run `pixi lock`",
    "conda": "`--format conda` gives its lines, and conda's solver has to choose the builds: `conda env update`",
    "dockerfile": "`--format docker` gives its lines",
    "jobscript": "`--format shell` gives its lines",
    "workflow": "`--format shell` gives its lines",
}


def sorted_out(names: Sequence[str]) -> tuple[list[Path], list[DoctorError]]:
    """(the files to edit, why the others are not edited): of a folder those that declare its environment."""
    editable: list[Path] = []
    refusals: list[DoctorError] = []
    for path in dict.fromkeys(path for name in names for path in _files(name)):
        refusal = _refusal(path)
        if refusal is None:
            editable.append(path)
        else:
            refusals.append(refusal)
    return editable, refusals


def _files(name: str) -> Iterator[Path]:
    with_extras = re.fullmatch(r"(.+)\[[^\[\]]*\]", name)
    path = Path(with_extras[1] if with_extras and not Path(name).exists() else name)
    if not path.is_dir():
        yield path
        return
    for item in discover(path):
        if item.used and item.role == ENVIRONMENT:
            yield _source(item.path)


def _source(path: Path) -> Path:
    """Return the file that a lock file is made from, where it is in the same folder and can be edited."""
    source, _ = _LOCKS.get(_kind(path), ("", ""))
    beside = path.with_name(source) if source else path
    return beside if beside.name == "pyproject.toml" and beside.is_file() else path


def _kind(path: Path) -> str:
    return kind_of(path, read_text(path, "file", MAX_BYTES))


def _refusal(path: Path) -> DoctorError | None:
    """Why a file is not edited; raised where there is no such file at all."""
    if not path.is_file():
        what = "it is no regular file" if path.exists() else "there is no such file"
        raise DoctorError(f"cannot edit `{path}`: {what}", "`--pin FILE` writes a new one")
    try:
        kind = _kind(path)
    except DoctorError as problem:
        if "is not known" not in problem.message:
            raise
        what = "requirements.txt and pyproject.toml are"
        return DoctorError(f"`{path}` is not edited: unknown kind of file", what)
    if kind in _EDITED:
        return None
    if kind not in _LOCKS:
        return DoctorError(f"`{path}` is not edited: only requirements.txt and pyproject.toml are", _INSTEAD.get(kind))
    source, command = _LOCKS[kind]
    again = command.format(name=path.name)
    first = (
        "`--write {}` edits what it is made from" if source == "pyproject.toml" else "put the pins of `--pin` into `{}`"
    )
    hint = f"{first.format(path.with_name(source))}; then run `{again}`"
    return DoctorError(f"`{path}` is not edited: `{again}` generates it", hint)
