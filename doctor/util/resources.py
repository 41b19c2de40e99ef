"""Locate the kernels and the rulebook in a wheel, an editable install or a checkout."""

from __future__ import annotations

import functools
import importlib.util
import pathlib

from doctor.errors import DoctorError

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]


@functools.cache
def _directory(name: str) -> pathlib.Path:
    packaged = _PACKAGE / f"_{name}"  # a wheel
    if packaged.is_dir():
        return packaged
    # A checkout, installed editable or not at all. Its pyproject.toml distinguishes it from a site-packages folder,
    # where another distribution may own a folder of that name.
    checkout = _PACKAGE.parent / name
    if checkout.is_dir() and (_PACKAGE.parent / "pyproject.toml").is_file():
        return checkout
    spec = importlib.util.find_spec(f"doctor._{name}")
    for location in (spec.submodule_search_locations if spec else None) or ():
        if pathlib.Path(location).is_dir():
            return pathlib.Path(location)
    raise DoctorError(f"the `{name}` directory is missing from this installation", hint="reinstall attn-doctor")


def kernels_dir() -> pathlib.Path:
    """Return the directory of the kernels: programs and what they share."""
    return _directory("kernels")


def programs_dir() -> pathlib.Path:
    """Return the directory of the kernel programs, one file each."""
    return kernels_dir() / "programs"


def rules_dir() -> pathlib.Path:
    """Return the directory of the rulebook."""
    return _directory("rules")
