"""Read the files that proofs name from a published release; what was read stays in the user's cache."""

from __future__ import annotations

import functools
import json
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from packaging.version import Version

from doctor.errors import DoctorError
from doctor.packages.archives import fetch_archive, published_releases
from doctor.packages.index import load_index
from doctor.rulebook.proofs import Proof
from doctor.util.cache_file import cache_folder, read_cache, write_cache

from .clones import clone_of, packed_files, tags_of

MEMBER_LIMIT = 2**28  # bytes of one file
TOTAL_LIMIT = 2**28  # bytes of the files that are read from one release
METADATA_FILES = ("*.dist-info/METADATA", "PKG-INFO")


class Releases:
    """The files of published releases, fetched at first use and kept in the cache folder of the user."""

    def __init__(
        self,
        proofs: Iterable[Proof] = (),
        *,
        offline: bool = False,
        clones: Path | None = None,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Read all files that these proofs name when a release is fetched; fetch nothing if `offline`.

        Repositories are read from the clones below a folder.
        """
        self.offline = offline
        self._clones = clones
        self._named: dict[str, set[str]] = defaultdict(set)
        for proof in proofs:
            self._named[proof.origin].update(proof.files)
        self._on_step = on_step
        self._listed: dict[str, tuple[str, ...]] = {}
        self._tagged: dict[tuple[str, str], dict[str, bytes]] = {}  # of the tag that was read last

    def known(self, package: str) -> tuple[str, ...]:
        """Return every release of a package, oldest first; DoctorError where none is known."""
        if package not in self._listed:
            self._listed[package] = self._list(package)
        return self._listed[package]

    def _list(self, package: str) -> tuple[str, ...]:
        """Return what the registry lists and what the release index has: the former leaves out withdrawn releases."""
        if "/" in package:
            return tuple(tags_of(clone_of(self._clones, package)))
        indexed = load_index().releases(package)
        if self.offline and not indexed:
            raise DoctorError(f"the release index does not have `{package}`", "leave out `--offline`")
        listed = () if self.offline else published_releases(package)
        return tuple(map(str, sorted({Version(version) for version in (*indexed, *listed)})))

    def files(self, package: str, version: str, patterns: Iterable[str]) -> Mapping[str, bytes]:
        """Return path -> content of the files of a release that match; DoctorError where they cannot be had."""
        wanted = set(patterns)
        if "/" in package:
            return self._files_of_tag(package, version, wanted)
        held, files = _cached(package, version)
        if not wanted <= held:
            if self.offline:
                raise DoctorError(f"`{package}=={version}` was not read before")
            self._on_step(f"fetching {package} {version}")
            named = wanted | held | self._named[package]
            files = _fetched(package, version, named)
            _keep(package, version, named, files)
        return {path: content for path, content in files.items() if any(matches(path, one) for one in wanted)}

    def _files_of_tag(self, repository: str, version: str, wanted: set[str]) -> Mapping[str, bytes]:
        clone = clone_of(self._clones, repository)
        if (repository, version) not in self._tagged:
            self._tagged = {(repository, version): {
                path: content for path, size, content in packed_files(clone, tags_of(clone)[version])
                if size <= MEMBER_LIMIT
            }}  # fmt: skip
        found = self._tagged[repository, version]
        return {path: content for path, content in found.items() if any(matches(path, one) for one in wanted)}

    def requirements(self, package: str, version: str, *, extras: bool = False) -> tuple[str, ...]:
        """Return what the metadata of a release requires, as published; the release index has few of the extras."""
        indexed = None if extras else load_index().release(package, version)
        if indexed is not None:
            return indexed.requires
        files = self.files(package, version, METADATA_FILES)
        if not files:
            raise DoctorError(f"`{package}=={version}` has no metadata")
        path, content = next(iter(files.items()))
        lines = content.decode("utf-8", "replace").splitlines()
        found = tuple(line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: "))
        if not found and path == "PKG-INFO":
            raise DoctorError(f"only a build of `{package}=={version}` shows what it requires")
        return found


@functools.cache
def _pattern(glob: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*)", glob)
    return re.compile("".join({"**/": "(?:.*/)?", "*": "[^/]*"}.get(part, re.escape(part)) for part in parts))


def matches(path: str, glob: str) -> bool:
    """Whether a path fits a pattern: `*` is a part of a name, `**/` any number of folders."""
    return _pattern(glob).fullmatch(path) is not None


def _fetched(package: str, version: str, patterns: Iterable[str]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="attn-doctor-") as scratch:
        archive = fetch_archive(package, version, Path(scratch))
        try:
            return dict(members(archive, tuple(patterns)))
        except (OSError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
            raise DoctorError(f"the files of `{package}=={version}` cannot be read", str(error)) from error


def members(
    archive: Path, patterns: tuple[str, ...], skipped: re.Pattern[str] | None = None, largest: int = MEMBER_LIMIT
) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each file of an archive that matches; ValueError where they are too large together."""
    left = TOTAL_LIMIT
    for path, size, read in _entries(archive):
        if size > largest or not any(matches(path, one) for one in patterns):
            continue
        if skipped is not None and skipped.search(path):
            continue
        left -= size
        if left < 0:
            raise ValueError(f"the files that match have more than {TOTAL_LIMIT >> 20} MiB")
        yield path, read()


def _entries(archive: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Yield path, size and a reader of each file; the path as it is below site-packages, or below the sources."""
    if archive.suffix in (".whl", ".zip"):
        inside = below_sources if archive.suffix == ".zip" else below_site
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                if not member.is_dir():
                    yield inside(member.filename), member.file_size, functools.partial(opened.read, member)
        return
    with tarfile.open(archive) as packed:
        for entry in packed:
            if entry.isfile():
                yield below_sources(entry.name), entry.size, functools.partial(_content, packed, entry)


def _content(packed: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    stream = packed.extractfile(entry)
    return stream.read() if stream is not None else b""


def below_sources(name: str) -> str:
    """Return the path of a member of a source archive below its folder."""
    return name.removeprefix("./").partition("/")[2]


def below_site(name: str) -> str:
    """Return the path of a member of a wheel as it is below site-packages."""
    parts = name.split("/")
    in_data = len(parts) > 2 and parts[0].endswith(".data") and parts[1] in ("purelib", "platlib")
    return "/".join(parts[2:] if in_data else parts)


def _cached(package: str, version: str) -> tuple[set[str], dict[str, bytes]]:
    """Return the patterns that were read of a release, and the files that match them."""
    place = _place(package, version)
    found = None if place is None else read_cache(place, f"{package} {version}")
    if found is None:
        return set(), {}
    stored = json.loads(zlib.decompress(found[1]))
    return set(stored["patterns"]), {path: text.encode("latin-1") for path, text in stored["files"].items()}


def _keep(package: str, version: str, patterns: Iterable[str], files: Mapping[str, bytes]) -> None:
    place = _place(package, version)
    if place is not None:
        stored = {
            "patterns": sorted(patterns),
            "files": {path: content.decode("latin-1") for path, content in files.items()},
        }
        write_cache(place, f"{package} {version}", zlib.compress(json.dumps(stored).encode()))


def _place(package: str, version: str) -> Path | None:
    folder = cache_folder("proofs")
    return None if folder is None else folder / f"{package}-{version}"
