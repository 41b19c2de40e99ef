"""Write files atomically; every file that attn-doctor writes goes through here."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from doctor.errors import DoctorError, reason_of

from .open_flags import BINARY


def write_atomically(path: Path, content: str | bytes, force: bool = True, like: Path | None = None) -> None:
    """Write the whole file or change nothing; without `force` an existing file is an error.

    Of a link, the target is replaced. Mode and owner stay, or are those of the file `like`. A device or a pipe is
    written to directly.
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
        with path.open("wb") as stream:  # a terminal, a pipe, /dev/null: it cannot be replaced
            stream.write(data)
        return
    if not force and (path.exists() or path.is_symlink()):
        raise FileExistsError
    target = path.resolve()
    if target.is_symlink():  # a loop of links; since Python 3.13 resolving one raises nothing
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    temporary = target.with_name(f".{target.name[:100]}.{os.urandom(4).hex()}.tmp")
    try:
        # os.open, not mkstemp: the mode follows the user's umask.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
        try:
            model = like or target
            if model.exists():  # before writing, so that private content stays private
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
    os.fsync(descriptor)  # some file systems report a full disk only here


def _as(descriptor: int, model: os.stat_result) -> None:
    """Set owner, then mode: a change of owner clears mode bits. Only privileged users can change the owner."""
    if not hasattr(os, "fchown"):
        return  # Windows: a new file takes the permissions of its folder
    if (model.st_uid, model.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, model.st_uid, model.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(model.st_mode))


def _link(temporary: Path, target: Path) -> None:
    """Give the file its name; unlike a rename, this fails if a file of that name was created meanwhile."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        temporary.replace(target)
