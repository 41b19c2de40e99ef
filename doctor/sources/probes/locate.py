"""Find the target environment: an interpreter, a folder of packages, or the active environment."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from doctor.errors import DoctorError, NoDiagnosis, reason_of
from doctor.util.redact import shortened

from .interpreter import InterpreterQuery
from .target import OLDEST, Target, TargetKind, tree_target


def find_target(
    python: str | None = None, site_packages: str | None = None, query: InterpreterQuery | None = None
) -> Target:
    """Return the target that the command line names, else the active environment, else our own interpreter.

    `query` is a query of its interpreter that was started before.
    """
    if python is not None and site_packages is not None:
        raise DoctorError("`--python` and `--site-packages` exclude each other")
    if site_packages is not None:
        return tree_target(site_packages)
    query = query or query_interpreter(python)
    return _own() if query is None else _of_interpreter(query)


def query_interpreter(python: str | None = None) -> InterpreterQuery | None:
    """Start a query of the target's interpreter; None for our own, which needs no query."""
    interpreter = named_interpreter(python)
    return None if interpreter is None else InterpreterQuery(interpreter)


def named_interpreter(python: str | None = None) -> str | None:
    """Return the path of the target's interpreter; None for our own."""
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
            raise DoctorError(
                f"{variable} names `{prefix}`, which has no Python", "name the interpreter with `--python`"
            )
        return interpreter
    return None


def _executable(python: str) -> str:
    """Return an absolute path that can be started; a folder means the environment in it."""
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
                f"interpreter `{python}` " + ("is a link to a missing file" if dangling else "does not exist"),
                "create the environment again" if dangling else None,
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
    """Return our own interpreter as the target, without starting a process."""
    uname = os.uname() if hasattr(os, "uname") else None
    # The folder of our script and the current one are on our path, not on the job's.
    ours = {"", str(Path.cwd()), str(Path(sys.argv[0]).resolve().parent) if sys.argv and sys.argv[0] else ""}
    return Target(
        python=sys.executable,
        prefix=Path(sys.prefix),
        site_dirs=import_dirs([entry for entry in sys.path if entry not in ours], str(Path(os.__file__).parent)),
        kind=TargetKind.INTERPRETER,
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
    """Return the folders of a `sys.path` that may contain distributions."""
    kept: dict[str, None] = {}
    for entry in entries:
        path = entry.rstrip(os.sep)
        if path and path != stdlib.rstrip(os.sep) and not path.endswith("lib-dynload") and os.path.isdir(path):  # noqa: PTH112 - half of what a Path costs
            kept[os.path.abspath(path)] = None  # noqa: PTH100
    return tuple(Path(path) for path in kept)


def _of_interpreter(query: InterpreterQuery) -> Target:
    try:
        answer, python = query.answer(), query.python
    finally:
        query.close()
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", answer.version):
        raise DoctorError(
            f"`{python}` says that it is Python `{shortened(answer.version, 40)}`, which is no release of Python"
        )
    version = tuple(int(part) for part in answer.version.split("."))
    if version < OLDEST:
        raise DoctorError(f"`{python}` is Python {answer.version}: needs 3.8 or newer")
    if not answer.path:
        raise NoDiagnosis(f"`{python}` has an empty import path: nothing to examine")
    return Target(
        python=python,
        prefix=Path(answer.prefix),
        site_dirs=import_dirs(answer.path, answer.stdlib),
        kind=TargetKind.INTERPRETER,
        version=answer.version,
        implementation=answer.implementation,
        system=answer.system or None,
        machine=answer.machine or None,
        glibc=answer.glibc or None,
    )
