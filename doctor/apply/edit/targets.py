"""Which files are edited by hand, and what to run instead for those that a tool writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from doctor.errors import DoctorError
from doctor.sources.manifests.base import MAX_BYTES, FileRole, ManifestKind
from doctor.sources.manifests.detect import UnknownKind, kind_of
from doctor.sources.manifests.discover import discover
from doctor.sources.watch import Watch
from doctor.util.reading import read_text

_EDITED = (ManifestKind.REQUIREMENTS, ManifestKind.PYPROJECT)
#: Kind of a lock file → (what it is made from, the command that regenerates it).
_LOCKS = {
    ManifestKind.UV: ("pyproject.toml", "uv lock"),
    ManifestKind.POETRY: ("pyproject.toml", "poetry lock"),
    ManifestKind.PDM: ("pyproject.toml", "pdm lock"),
    ManifestKind.PYLOCK: ("pyproject.toml", "uv export --format pylock.toml -o {name}"),
    ManifestKind.PIPFILE_LOCK: ("Pipfile", "pipenv lock"),
    ManifestKind.PIXI: ("pixi.toml", "pixi lock"),
    ManifestKind.CONDA_LOCK: ("environment.yml", "conda-lock"),
}
#: Kind of any other file → what to do instead.
_INSTEAD = {
    ManifestKind.PIPFILE: "`--pin` gives the versions; put them there, then run `pipenv lock`",
    ManifestKind.PIXI_PROJECT: "`--pin` gives the versions; put them there, then run `pixi lock`",
    ManifestKind.SETUPTOOLS: "`--pin` gives the versions; put them there",
    ManifestKind.CONDA: "`--format conda` gives its lines; `conda env update` lets conda's solver choose the builds",
    ManifestKind.DOCKERFILE: "`--format docker` gives its lines",
    ManifestKind.JOBSCRIPT: "`--format shell` gives its lines",
    ManifestKind.WORKFLOW: "`--format shell` gives its lines",
}


def sorted_out(names: Sequence[str], watch: Watch) -> tuple[list[Path], list[DoctorError]]:
    """(the files to edit, why the others are not edited): of a folder those that declare its environment."""
    editable: list[Path] = []
    refusals: list[DoctorError] = []
    for path in dict.fromkeys(path for name in names for path in _files(name, watch)):
        refusal = _refusal(path)
        if refusal is None:
            editable.append(path)
        else:
            refusals.append(refusal)
    return editable, refusals


def _files(name: str, watch: Watch) -> Iterator[Path]:
    with_extras = re.fullmatch(r"(.+)\[[^\[\]]*\]", name)
    path = Path(with_extras[1] if with_extras and not Path(name).exists() else name)
    if not path.is_dir():
        yield path
        return
    for item in discover(path, watch):
        if item.used and item.role == FileRole.ENVIRONMENT:
            yield _source(item.path)


def _source(path: Path) -> Path:
    """Return the file that a lock file is made from, where it is in the same folder and can be edited."""
    source, _ = _LOCKS.get(_kind(path), ("", ""))
    sibling = path.with_name(source) if source else path
    return sibling if sibling.name == "pyproject.toml" and sibling.is_file() else path


def _kind(path: Path) -> ManifestKind:
    return kind_of(path, read_text(path, "file", MAX_BYTES))


def _refusal(path: Path) -> DoctorError | None:
    """Why a file is not edited; raised where there is no such file at all."""
    if not path.is_file():
        what = "it is no regular file" if path.exists() else "there is no such file"
        raise DoctorError(f"cannot edit `{path}`: {what}", "`--pin FILE` writes a new one")
    try:
        kind = _kind(path)
    except UnknownKind:
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
