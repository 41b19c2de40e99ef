"""Find the environment to examine: an interpreter, an unpacked tree, or the active environment."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from doctor.errors import DoctorError, NoDiagnosis, reason_of
from doctor.sources.probes.tree import tree_target

from .interpreter import InterpreterQuery
from .target import INTERPRETER, OLDEST, Target


def find_target(
    python: str | None = None, site_packages: str | None = None, asked: InterpreterQuery | None = None
) -> Target:
    """The target that the command line names, else the active environment, else our own interpreter.

    `asked` is its interpreter where that was asked already.
    """
    if python is not None and site_packages is not None:
        raise DoctorError("`--python` and `--site-packages` exclude each other")
    if site_packages is not None:
        return tree_target(site_packages)
    asked = asked or ask(python)
    return _own() if asked is None else _of_interpreter(asked)


def ask(python: str | None = None) -> InterpreterQuery | None:
    """The interpreter of that target, started and asked who it is; None for our own."""
    interpreter = named_interpreter(python)
    if interpreter is None:
        return None

    return InterpreterQuery(interpreter)


def named_interpreter(python: str | None = None) -> str | None:
    """The interpreter of that target, not yet asked anything; None for our own."""
    if python is not None:
        return _executable(python)
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = os.environ.get(variable)
        if not prefix:
            continue
        if Path(prefix).resolve() == Path(sys.prefix).resolve():
            return None
        interpreter = _interpreter_in(Path(prefix))
        if interpreter is None:
            raise DoctorError(f"{variable} names `{prefix}`, which holds no Python", "say which one with `--python`")
        return interpreter
    return None


def _executable(python: str) -> str:
    """An absolute path that can be started; a folder means the environment in it."""
    if "\0" in python or not python:
        raise DoctorError("`--python` needs the path of an interpreter")
    path = Path(python).expanduser()
    if os.sep not in python and not os.path.exists(path):  # noqa: PTH110 - does not raise for what cannot be a name
        found = shutil.which(python)
        if found is None:
            raise DoctorError(f"interpreter `{python}` is not on the PATH")
        return found
    try:
        if path.is_dir():
            inside = _interpreter_in(path)
            if inside is None:
                raise DoctorError(f"no Python under `{python}`", "name the interpreter itself")
            return inside
        if not path.exists():
            dangling = path.is_symlink()
            raise DoctorError(
                f"interpreter `{python}` " + ("is a link to a file that is gone" if dangling else "does not exist"),
                "create the environment anew" if dangling else None,
            )
    except OSError as problem:
        raise DoctorError(f"interpreter `{python}`: {reason_of(problem)}") from None
    if not os.access(path, os.X_OK):
        raise DoctorError(f"interpreter `{python}` is not executable")
    # A virtual environment's python is a link: resolved, it would be another interpreter.
    return str(path.absolute())


def _interpreter_in(prefix: Path) -> str | None:
    for name in ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe"):
        path = prefix / name
        if os.access(path, os.X_OK) and path.is_file():
            return str(path.absolute())
    return None


def _own() -> Target:
    """The interpreter that runs us: it knows all that a child would say."""
    uname = os.uname() if hasattr(os, "uname") else None
    # Our own script's folder and the current one are on our path, not on the job's.
    ours = {"", str(Path.cwd()), str(Path(sys.argv[0]).resolve().parent) if sys.argv and sys.argv[0] else ""}
    return Target(
        python=sys.executable,
        prefix=Path(sys.prefix),
        site_dirs=import_dirs([entry for entry in sys.path if entry not in ours], str(Path(os.__file__).parent)),
        kind=INTERPRETER,
        version=".".join(str(part) for part in sys.version_info[:3]),
        implementation=sys.implementation.name,
        system=uname.sysname if uname else sys.platform,
        machine=uname.machine if uname else None,
        glibc=_glibc(),
    )


def _glibc() -> str | None:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError, AttributeError):
        return None
    return version if name == "glibc" else None


def import_dirs(entries: list[str], stdlib: str) -> tuple[Path, ...]:
    """The folders of a `sys.path` in which distributions may lie."""
    kept: dict[str, None] = {}
    for entry in entries:
        path = entry.rstrip(os.sep)
        if path and path != stdlib.rstrip(os.sep) and not path.endswith("lib-dynload") and os.path.isdir(path):  # noqa: PTH112 - half of what a Path costs
            kept[os.path.abspath(path)] = None  # noqa: PTH100
    return tuple(Path(path) for path in kept)


def _of_interpreter(asked: InterpreterQuery) -> Target:
    try:
        said, python = asked.answer(), asked.python
    finally:
        asked.close()
    version = tuple(int(part) for part in said.version.split("."))
    if version < OLDEST:
        raise DoctorError(f"`{python}` is Python {said.version}: needs 3.8 or newer")
    if not said.path:
        raise NoDiagnosis(f"`{python}` has an empty import path: nothing to examine")
    return Target(
        python=python,
        prefix=Path(said.prefix),
        site_dirs=import_dirs(said.path, said.stdlib),
        kind=INTERPRETER,
        version=said.version,
        implementation=said.implementation,
        system=said.system or None,
        machine=said.machine or None,
        glibc=said.glibc or None,
    )
