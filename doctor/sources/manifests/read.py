"""Declared environments: what requirement and lock files say will be installed, as facts with file and line.

One module per format, each a function `read(path, text)` that gives a `Manifest`; `resolve` makes facts of the sheets,
`admitted` judges what a range leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from doctor.errors import DoctorError
from doctor.model import Facts
from doctor.sources.manifests.formats.pyproject import read_project
from doctor.sources.manifests.scripts.dockerfile import read_stage
from doctor.util.yaml_text import read_text

from .base import ENVIRONMENT, MAX_BYTES, VARIABLES, Discovered, Manifest
from .detect import kind_of
from .discover import discover, told
from .readers import reader_of
from .resolve import Declaration, resolve


def read_manifests(names: Sequence[str], said: Facts) -> Declaration:
    """What these files declare together; `said` are facts that decide markers. A bad file does not hide the others.

    A folder stands for what `discover` finds in it; `pyproject.toml[train]` adds an extra or a group,
    `Dockerfile[train]` means that stage.
    """
    sheets: list[Manifest] = []
    faults: list[DoctorError] = []
    notes: list[str] = []
    for name in dict.fromkeys(names):
        chosen: tuple[str, ...] = ()
        try:
            path, chosen = _named(name)
            paths = [(path, ENVIRONMENT)]
            if path.is_dir():
                found = _found(path)
                notes += told(found)
                paths = [(item.path, item.role) for item in found if item.used]
        except DoctorError as fault:
            faults.append(fault)
            continue
        included: set[str] = set()
        for path, role in paths:
            if str(path.resolve()) in included:
                continue  # an image was read before, with all that it installs, in the order in which it does
            try:
                sheet = _read(path, chosen)
            except DoctorError as fault:
                faults.append(fault)
            else:
                sheets.append(replace(sheet, entries=()) if role == VARIABLES else sheet)
                included |= set(sheet.included)
    if not sheets:
        raise faults[0]
    declaration = resolve(sheets, said, faults)
    return replace(declaration, notes=(*notes, *declaration.notes))


def _found(folder: Path) -> Sequence[Discovered]:
    found = discover(folder)
    if not any(item.role == ENVIRONMENT for item in found):
        hint = "its `setup.py` is code, which is not run: " if (folder / "setup.py").is_file() else ""
        raise DoctorError(
            f"no file in `{folder}` declares an environment of the attention stack", f"{hint}name the files themselves"
        )
    return found


def _named(name: str) -> tuple[Path, tuple[str, ...]]:
    """A file, and the extras and groups of `pyproject.toml[train,gpu]`."""
    match = re.fullmatch(r"(.+)\[([^\[\]]*)\]", name)
    try:
        if match is None or Path(name).exists():
            return Path(name), ()
    except (OSError, ValueError):
        return Path(name), ()
    return Path(match[1]), tuple(filter(None, re.split(r"[\s,]+", match[2])))


def _read(path: Path, chosen: tuple[str, ...]) -> Manifest:
    text = read_text(path, "declared environment", MAX_BYTES)
    kind = kind_of(path, text)
    if chosen and kind == "dockerfile" and len(chosen) == 1:
        return read_stage(path, text, chosen[0])
    if chosen:
        if kind != "pyproject":
            hint = "extras and groups of a pyproject.toml can be chosen, and one stage of a Dockerfile"
            raise DoctorError(f"`{path}` has no extras to choose", hint)

        return read_project(path, text, chosen)
    return reader_of(kind)(path, text)
