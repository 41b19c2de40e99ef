"""Read what the user keeps: the options, and files of constraints."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement

from doctor.errors import DoctorError
from doctor.packages.platform import Platform
from doctor.packages.requirements import marker_holds, requirement
from doctor.packages.specifiers import normalized
from doctor.util.reading import TRUST_HINT, contained, is_trusted, project_top, read_text
from doctor.util.redact import shortened

from .limits import Limits

if TYPE_CHECKING:
    pass

MAX_FILES = 200  # that one file includes
# Compiled when a file of constraints is read, and not at every start.
_SPECIAL = r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*@"
_INCLUDE = r"(?:-r|-c|--requirement|--constraint)[\s=]+(?P<file>\S+)"


def limits_of(
    hold: Sequence[str] = (),
    allow: Sequence[str] = (),
    constraints: Sequence[str] = (),
    platform: Platform | None = None,
) -> Limits:
    """The limits of a command line; DoctorError where they contradict one another or a file cannot be read."""
    held, allowed = {normalized(name) for name in hold}, {normalized(name) for name in allow}
    for name in sorted(held & allowed):
        raise DoctorError(f"`{name}` is both held and allowed to change", "use `--hold` or `--allow`, not both")
    ranges: dict[str, str] = {}
    for path in constraints:
        for name, text in _Constraints(platform or Platform()).read(Path(path), named=True):
            if text is None:
                held.add(name)  # from a URL or a folder: no release of an index may take its place
            elif text:
                ranges[name] = f"{ranges[name]},{text}" if name in ranges else text
    return Limits(frozenset(held), frozenset(allowed), ranges)


class _Constraints:
    """The files of one `--constraint`, each read once."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self._seen: set[Path] = set()

    def read(self, path: Path, *, named: bool = False) -> Iterator[tuple[str, str | None]]:
        """(package, range) of each line that holds here; None for a package that comes from a URL."""
        text = read_text(path, "constraints", named=named)
        self._seen.add(path.resolve())
        for number, line in _logical(text):
            include = re.fullmatch(_INCLUDE, line)
            if include:
                yield from self._included(path, include["file"], number)
            elif not line.startswith("-"):
                yield from _requirement(line, f"{path}:{number}", self.platform)

    def _included(self, path: Path, name: str, number: int) -> Iterator[tuple[str, str | None]]:
        inner = path.parent / name
        if not is_trusted() and not contained(inner, project_top(path.parent) or path.parent):
            raise DoctorError(f"{path}:{number}: `{shortened(name, 80)}` is outside the project", TRUST_HINT)
        if inner.resolve() in self._seen:  # also of files that include one another
            return
        if len(self._seen) >= MAX_FILES:
            raise DoctorError(f"{path}:{number}: more than {MAX_FILES} files are included")
        try:
            yield from self.read(inner)
        except RecursionError:
            raise DoctorError(f"{path}:{number}: files are included too deeply") from None


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """(number, line) without comments and hashes, continued lines joined, empty ones left out."""
    whole, begun = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        begun = begun or number
        continued = raw.rstrip().endswith("\\")
        whole += raw.rstrip().removesuffix("\\") + " "
        if continued:
            continue
        line = re.sub(r"(^|\s)#.*$", "", whole)
        line = re.sub(r"\s--hash[=\s]\S+", "", line).strip()
        if line:
            yield begun, line
        whole, begun = "", 0
    if whole.strip():
        yield begun, whole.strip()


def _requirement(line: str, where: str, platform: Platform) -> Iterator[tuple[str, str | None]]:
    special = re.match(_SPECIAL, line)
    if special:
        yield normalized(special["name"]), None
        return
    try:
        parsed = requirement(line)
    except InvalidRequirement:
        raise DoctorError(
            f"{where}: `{shortened(line, 80)}` is not a requirement", "write one per line, such as `torch>=2.6,<2.9`"
        ) from None
    if parsed.marker is None or marker_holds(parsed.marker, {**platform.markers, "extra": ""}):
        yield normalized(parsed.name), str(parsed.specifier)


def unknown_names(names: Sequence[str], known: Collection[str]) -> list[str]:
    """Those that are neither installed nor on record: most likely misspelt."""
    return [name for name in names if normalized(name) not in known]
