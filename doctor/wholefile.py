"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from .errors import DoctorError


def write_whole(path: Path, text: str, *, force: bool = False) -> None:
    """Write a text file atomically: a full disk or an interruption leaves what was there, and nothing else."""
    try:
        if not force and (path.exists() or path.is_symlink()):
            raise _exists(path)
        goal = path.resolve() if force else path
        if goal.exists() and not goal.is_file():
            what = "a directory" if goal.is_dir() else "no regular file"
            raise DoctorError(f"cannot write `{path}`: it is {what}", "name a file that can be replaced")
        _put(goal.with_name(f".{goal.name}.{os.getpid()}.{time.monotonic_ns()}"), goal, text, force)
    except (OSError, ValueError, RuntimeError) as problem:  # RuntimeError: a loop of links, before Python 3.13
        reason = str(getattr(problem, "strerror", None) or problem).lower()
        raise DoctorError(f"cannot write `{path}`: {reason}") from None


def _exists(path: Path) -> DoctorError:
    return DoctorError(f"`{path}` exists already", "`--force` overwrites it")


def _put(temporary: Path, goal: Path, text: str, force: bool) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            content = memoryview(text.encode("utf-8"))
            while content:
                content = content[os.write(descriptor, content) :]
            os.fsync(descriptor)  # some file systems tell only now that the disk is full
            if force and goal.exists():
                os.fchmod(descriptor, goal.stat().st_mode & 0o777)
        finally:
            os.close(descriptor)
        if force:
            temporary.replace(goal)
            return
        try:
            os.link(temporary, goal)  # unlike a rename, refuses a file that came into being meanwhile
        except FileExistsError:
            raise _exists(goal) from None
        except OSError:  # a file system without hard links
            temporary.rename(goal)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
