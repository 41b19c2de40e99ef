"""Keep the sources of many releases of a package in one file: paths of each release, and each content once.

The finder of proofs and `make refresh` read the same releases many times; each is fetched once. Only texts are stored:
Python, C, C++ and CUDA. Nothing is installed or run.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import sqlite3
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import refresh_index

from doctor.errors import DoctorError
from doctor.rulebook.authoring.clones import packed_files, tags_of
from doctor.rulebook.authoring.release_files import Releases, below_site, below_sources, matches

TEXTS = (".py", ".pyi", ".cpp", ".cc", ".cu", ".cuh", ".h", ".hpp", ".pyx")
LARGEST = 600_000  # bytes of one file
_WHOLE = 60 << 20  # archives up to this size are fetched in one request
_LEFT_OUT = re.compile(r"(?:^|/)(?:tests?|examples?|benchmarks?|docs)/")
_OF_OTHERS = re.compile(r"(?:^|/)(?:third_?party|3rdparty|cutlass)/")  # modules are imported there; C++ is not ours
_TABLES = """
create table if not exists blob (digest text primary key, content blob);
create table if not exists file (version text, path text, digest text, primary key (version, path));
create table if not exists release (version text primary key, read integer);
create table if not exists parsed (digest text primary key, content text);
"""


class Store:
    """The releases of one package, or the tags of one repository (`owner/name`)."""

    def __init__(self, folder: Path, package: str) -> None:
        """Open the file of a package below a folder; it is made where it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        self.package = package
        self._base = sqlite3.connect(folder / f"{package.replace('/', '+')}.sqlite", check_same_thread=False)
        self._base.executescript(_TABLES)

    def listed(self) -> list[str]:
        """Return every release on record, oldest first; some of them may be unread."""
        return sorted((row[0] for row in self._base.execute("select version from release")), key=Version)

    def read(self) -> list[str]:
        """Return the releases whose files are stored, oldest first."""
        rows = self._base.execute("select version from release where read = 1")
        return sorted((row[0] for row in rows), key=Version)

    def note(self, versions: Iterable[str]) -> None:
        """Record that releases exist."""
        self._base.executemany("insert or ignore into release values (?, 0)", [(one,) for one in versions])
        self._base.commit()

    def add(self, version: str, files: Iterable[tuple[str, bytes]]) -> int:
        """Store the files of a release."""
        count = 0
        for path, content in files:
            digest = digest_of(content)
            if not self._base.execute("select 1 from blob where digest = ?", (digest,)).fetchone():
                self._base.execute("insert or ignore into blob values (?, ?)", (digest, zlib.compress(content, 1)))
            self._base.execute("insert or replace into file values (?, ?, ?)", (version, path, digest))
            count += 1
        self._base.execute("insert or replace into release values (?, 1)", (version,))
        self._base.commit()
        return count

    def paths(self, version: str) -> dict[str, str]:
        """Return path -> digest of the files of a release."""
        return dict(self._base.execute("select path, digest from file where version = ?", (version,)))

    def parsed(self, digest: str, parse: Callable[[bytes], Any]) -> Any:
        """Return what a content parses to, as JSON has it; each content is parsed once."""
        row = self._base.execute("select content from parsed where digest = ?", (digest,)).fetchone()
        if row is None:
            row = (json.dumps(parse(self.content(digest)), separators=(",", ":")),)
            self._base.execute("insert or replace into parsed values (?, ?)", (digest, row[0]))
        return json.loads(row[0])

    def save(self) -> None:
        """Write what was parsed to the file."""
        self._base.commit()

    def content(self, digest: str) -> bytes:
        """Return the content with a digest."""
        return zlib.decompress(self._base.execute("select content from blob where digest = ?", (digest,)).fetchone()[0])


def digest_of(content: bytes) -> str:
    """Return a short name of a content."""
    return hashlib.sha1(content).hexdigest()[:20]


def published(package: str) -> dict[str, list[dict]]:
    """Return the files of every release of a package, withdrawn and early ones too, oldest first."""
    page = f"{refresh_index.configured_index().rstrip('/')}/{package}/"
    found: dict[str, list[dict]] = {}
    for item in refresh_index.files_of(page):
        version = _version_of(item["filename"])
        if version is not None and not version.is_devrelease:
            found.setdefault(str(version), []).append({**item, "url": urljoin(page, item["url"])})
    return {version: found[version] for version in sorted(found, key=Version)}


def _version_of(name: str) -> Version | None:
    try:
        if name.endswith(".whl"):
            return parse_wheel_filename(name)[1]
        return parse_sdist_filename(name)[1] if name.endswith((".tar.gz", ".zip")) else None
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def _preference(item: Mapping[str, Any]) -> tuple[int, str]:
    name = str(item["filename"])
    if name.endswith("none-any.whl"):
        return 0, name
    if name.endswith((".tar.gz", ".zip")):
        return 1, name
    places = ("macosx", "manylinux", "win")
    return 2 + next((at for at, word in enumerate(places) if word in name), len(places)), name


def texts_of(files: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the texts of a release, from its best file; paths as they are when installed.

    Of a source archive next to wheels only modules count: `rules verify` reads the wheel.
    """
    item = min(files, key=_preference)
    url = item["url"].partition("#")[0]
    if not item["filename"].endswith(".whl"):
        built = any(one["filename"].endswith(".whl") for one in files)
        for path, content in _of_sources(item["filename"], refresh_index.fetch(url)):
            if not built or ("/" in path and path.endswith((".py", ".pyi"))):
                yield path, content
        return
    try:
        size = item.get("size") or refresh_index.length_of(url)
    except (OSError, KeyError):
        size = 0
    whole = not size or size < _WHOLE
    file = io.BytesIO(refresh_index.fetch(url)) if whole else refresh_index.RangeFile(url, size)
    with zipfile.ZipFile(file) as archive:
        for entry in sorted(archive.infolist(), key=lambda one: one.header_offset):
            if _kept(entry.filename, entry.file_size):
                yield below_site(entry.filename), archive.read(entry)


def _of_sources(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for entry in archive.infolist():
                if _kept(entry.filename, entry.file_size):
                    yield below_sources(entry.filename), archive.read(entry)
        return
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        for member in packed:
            stream = packed.extractfile(member) if member.isfile() and _kept(member.name, member.size) else None
            if stream is not None:
                yield below_sources(member.name), stream.read()


def _kept(path: str, size: int) -> bool:
    if not path.endswith(TEXTS) or size > LARGEST or _LEFT_OUT.search(path):
        return False
    return path.endswith(".py") or not _OF_OTHERS.search(path)


def fill(
    store: Store, since: str = "0", clone: Path | None = None, jobs: int = 6, only: Collection[str] | None = None
) -> None:
    """Bring a store up to date: every release from `since` on that is not in it, of these releases only."""
    if clone is not None:
        tags = tags_of(clone)
        store.note(tags)
        for version in _due(store, since):
            found = ((path, content) for path, size, content in packed_files(clone, tags[version]) if _kept(path, size))
            print(store.package, version, store.add(version, found), flush=True)
        return
    files = published(store.package)
    store.note(files)
    due = [version for version in _due(store, since) if version in files and (only is None or version in only)]
    with ThreadPoolExecutor(jobs) as pool:
        for start in range(0, len(due), jobs):
            some = due[start : start + jobs]
            for version, got in zip(some, pool.map(lambda one: _or_error(files[one]), some), strict=True):
                if isinstance(got, list):
                    print(store.package, version, store.add(version, got), flush=True)
                else:
                    print(f"{store.package} {version} cannot be read: {got}", file=sys.stderr, flush=True)


def _due(store: Store, since: str) -> list[str]:
    done = set(store.read())
    return [one for one in store.listed() if one not in done and Version(one) >= Version(since)]


def _or_error(files: Sequence[Mapping[str, Any]]) -> list[tuple[str, bytes]] | str:
    try:
        return list(texts_of(files))
    except (OSError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        return str(error)


class StoredReleases(Releases):
    """The releases of a folder of stores, in the form that proofs are checked with."""

    def __init__(self, folder: Path) -> None:
        """Read from the stores below a folder; nothing is fetched."""
        super().__init__(offline=True)
        self._folder = folder
        self._stores: dict[str, Store] = {}

    def store(self, package: str) -> Store:
        """Return the store of a package."""
        if package not in self._stores:
            self._stores[package] = Store(self._folder, package)
        return self._stores[package]

    def known(self, package: str) -> tuple[str, ...]:
        """Return every release of a package, oldest first."""
        listed = self.store(package).listed()
        if not listed:
            raise DoctorError(f"the store does not have `{package}`")
        return tuple(listed)

    def files(self, package: str, version: str, patterns: Iterable[str]) -> Mapping[str, bytes]:
        """Return path -> content of the files of a release that match."""
        store, wanted = self.store(package), tuple(patterns)
        paths = store.paths(version)
        if not paths:
            raise DoctorError(f"`{package}=={version}` was not read before")
        found = {path: digest for path, digest in paths.items() if any(matches(path, one) for one in wanted)}
        return {path: store.content(digest) for path, digest in found.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill the stores of the named packages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--clone", type=Path, help="read the tags of this clone, for a repository `owner/name`")
    parser.add_argument("--since", default="0", help="the oldest release")
    parser.add_argument("packages", nargs="+", help="packages, or one repository")
    chosen = parser.parse_args(arguments)
    for package in chosen.packages:
        name, _, since = package.partition(">=")
        fill(Store(chosen.cache, name), since or chosen.since, chosen.clone)


if __name__ == "__main__":
    main()
