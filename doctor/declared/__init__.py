"""Declared environments: what requirement and lock files say will be installed, as facts with file and line.

One module per format, each a function `read(path, text)` that gives a `Sheet`; `gather` makes facts of the sheets,
`admitted` judges what a range leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from ..errors import DoctorError
from ..model import Facts
from ..yamltext import read_text
from .gather import Declaration, gather
from .interface import MAX_BYTES, Sheet

__all__ = ["FORMATS", "Declaration", "declare"]

#: What a file's name looks like → module; the first that fits, and anything else is a requirements file.
FORMATS = (
    (r"pylock(\.[^.]+)?\.toml", "pylock"),
    (r"uv\.lock", "uv"),
    (r"poetry\.lock", "poetry"),
    (r"pyproject\.toml", "pyproject"),
    (r".*\.ya?ml", "conda"),
)
_NOT_READ = re.compile(r"Pipfile(\.lock)?|.*\.(lock|json|toml|cfg|py|whl|gz|zip)")


def declare(names: Sequence[str], said: Facts) -> Declaration:
    """What these files declare together; `said` are facts that decide markers. A bad file does not hide the others."""
    sheets: list[Sheet] = []
    faults: list[DoctorError] = []
    for name in dict.fromkeys(names):
        try:
            sheets.append(_read(Path(name)))
        except DoctorError as fault:
            faults.append(fault)
    if not sheets:
        raise faults[0]
    return gather(sheets, said, faults)


def _read(path: Path) -> Sheet:
    module = next((module for pattern, module in FORMATS if re.fullmatch(pattern, path.name)), None)
    if module is None and _NOT_READ.fullmatch(path.name):
        raise DoctorError(
            f"cannot read `{path}`: this kind of file is not known",
            "requirements.txt, pylock.toml, uv.lock, poetry.lock, pyproject.toml and environment.yml are",
        )
    reader: Callable[[Path, str], Sheet] = import_module(f".{module or 'requirements'}", __package__).read
    return reader(path, read_text(path, "declared environment", MAX_BYTES))
