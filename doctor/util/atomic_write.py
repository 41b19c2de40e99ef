"""Files written whole or not at all: the one way in which the doctor writes."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from doctor.errors import DoctorError, reason_of


def write_atomically(path: Path, content: str | bytes, force: bool = True, like: Path | None = None) -> None:
    """Write the whole file or leave everything as it was; without `force` an existing file is an error.

    Behind a link the file is replaced and not the link; mode and owner stay, or are those of the file `like`. A device
    or a pipe is written to.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    try:
        _write(path, data, force, like)
    except FileExistsError:
        raise DoctorError(f"`{path}` exists already", "`--force` overwrites it") from None
    except (OSError, RuntimeError) as problem:  # RuntimeError: a loop of links, before Python 3.13
        reason = reason_of(problem)
        raise DoctorError(f"cannot write `{path}`: {reason}") from None
    except ValueError:
        raise DoctorError(f"cannot write `{str(path)!r}`: not a file name") from None


def _write(path: Path, data: bytes, force: bool, like: Path | None) -> None:
    if path.is_dir():
        raise IsADirectoryError(21, "is a directory")
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:  # a terminal, a pipe, /dev/null: nothing to replace
            stream.write(data)
        return
    if not force and (path.exists() or path.is_symlink()):
        raise FileExistsError
    target = path.resolve()
    temporary = target.with_name(f".{target.name[:100]}.{os.urandom(4).hex()}.tmp")
    try:
        # os.open and not mkstemp: the mode is the user's, as for any file he writes.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            model = like or target
            if model.exists():  # first, so that nobody else reads what is private meanwhile
                _as(descriptor, model.stat())
            _fill(descriptor, data)
        finally:
            os.close(descriptor)
        if force:
            temporary.replace(target)
        else:
            _link(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _fill(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)  # some file systems tell only now that the disk is full


def _as(descriptor: int, model: os.stat_result) -> None:
    """Owner first, since a change of owner takes mode bits away; not everybody may give a file away."""
    if (model.st_uid, model.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, model.st_uid, model.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(model.st_mode))


def _link(temporary: Path, target: Path) -> None:
    """Give the file its name; other than a rename, this fails if someone has made one of that name meanwhile."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        temporary.replace(target)
