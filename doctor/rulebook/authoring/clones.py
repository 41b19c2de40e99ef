"""Read the files at the tags of a repository, from a clone that the user made; nothing is fetched."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version

from doctor.errors import DoctorError

#: What precedes the release in a tag: `v2.18`, `core_v0.12.0`, `release-1.4`.
_BEFORE = re.compile(r"^(?:core_)?(?:release[/_-]?)?v?(?=\d)")


def clone_of(folder: Path | None, repository: str) -> Path:
    """Return the clone of a repository (`owner/name`) below a folder; DoctorError where there is none."""
    owner, _, name = repository.partition("/")
    places = [] if folder is None else [folder / f"{owner}+{name}", folder / owner / name, folder / name]
    for place in places:
        for git_folder in (place / "repo", place / ".git", place):
            if (git_folder / "HEAD").is_file():
                return git_folder
    raise DoctorError(
        f"there is no clone of `{repository}`", "clone it with its tags, and name its folder with `--clones`"
    )


def tags_of(clone: Path) -> dict[str, str]:
    """Return release -> tag, oldest first; tags that are no release and those of nightly builds are left out."""
    found: dict[Version, str] = {}
    for tag in _git(clone, "tag").decode("utf-8", "replace").split():
        try:
            version = Version(_BEFORE.sub("", tag))
        except InvalidVersion:
            continue
        if not version.is_devrelease:
            found.setdefault(version, tag)
    return {str(version): found[version] for version in sorted(found)}


def packed_files(clone: Path, tag: str) -> Iterator[tuple[str, int, bytes]]:
    """Yield path, size and content of every file at a tag."""
    with tarfile.open(fileobj=io.BytesIO(_git(clone, "archive", "--format=tar", tag))) as packed:
        for member in packed:
            stream = packed.extractfile(member) if member.isfile() else None
            if stream is not None:
                yield member.name, member.size, stream.read()


def _git(clone: Path, *arguments: str) -> bytes:
    command = [shutil.which("git") or "git", "--git-dir", str(clone), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, check=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        raise DoctorError(f"git cannot read `{clone}`", str(error)) from error
    return ended.stdout
