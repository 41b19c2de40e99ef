"""Bring the embedded release index up to date from the package index that pip is configured for.

    python scripts/release/refresh_index.py [--add NAME …] [--only NAME …] [--since DATE] [--dry-run]

Every package in `rules/index/releases.json.gz` is looked up (simple JSON API); only releases that are not on
record yet cost a second request, for their metadata. flash-attn's wheels (`rules/index/release_wheels`) are
on the project's own release pages and in no package index: `scripts/release/refresh_wheels.py` renews that table.
A source-only release without static metadata keeps what
is on record, or is reported and left out.
"""

from __future__ import annotations

import argparse
import email
import gzip
import html.parser
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

INDEX = Path(__file__).resolve().parents[2] / "rules" / "index" / "releases.json.gz"
#: Extras that decide which binary parts come along; all others never matter to a conflict.
EXTRAS = {"transformer-engine": ("pytorch", "core", "core-cu12", "core-cu13")}


def configured_index() -> str:
    """The simple index pip would query: its environment, its configuration, its default."""
    if os.environ.get("PIP_INDEX_URL"):
        return os.environ["PIP_INDEX_URL"]
    pip = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    found = subprocess.run(pip, capture_output=True, text=True, check=False).stdout.strip()
    if found:
        return found
    default = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    return subprocess.run([sys.executable, "-c", default], capture_output=True, text=True, check=True).stdout.strip()


def fetch(url: str, accept: str = "*/*") -> bytes:
    """The body behind a URL."""
    request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "attn-doctor refresh_index"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read()


def file_tags(filename: str) -> tuple[Version, set[str], set[str], bool] | None:
    """(version, Python tags, Linux machines, is a source) of a file; None for one that does not count."""
    try:
        if filename.endswith(".whl"):
            _, version, _, tags = parse_wheel_filename(filename)
            pythons, machines = set(), set()
            for tag in tags:
                if tag.platform != "any" and "linux" not in tag.platform:
                    continue
                if tag.interpreter.startswith("pp") or tag.abi.endswith("t"):
                    continue  # PyPy and free-threaded builds are another interpreter
                machine = re.search(r"(x86_64|aarch64)$", tag.platform)
                machines.add(machine[1] if machine else "any" if tag.platform == "any" else tag.platform)
                pythons.add(tag.interpreter + ("+" if tag.abi == "abi3" else ""))
            return version, pythons - {"py2"}, machines, False
        _, version = parse_sdist_filename(filename)
        return version, set(), set(), True
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def beside(url: str) -> str | None:
    """The `.metadata` file that an index serves next to a wheel (PEP 658), if it does."""
    try:
        return fetch(url.partition("#")[0] + ".metadata").decode("utf-8", "replace")
    except urllib.error.HTTPError:
        return None


_BLOCK = 1 << 20  # bytes of a file that are read at a time


class RangeFile(io.RawIOBase):
    """A file behind an address, read in blocks."""

    def __init__(self, url: str, size: int) -> None:
        super().__init__()
        self._url, self._size, self._at = url, size, 0
        self._blocks: dict[int, bytes] = {}

    def seekable(self) -> bool:
        """Say that positions can be set."""
        return True

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        end = self._size if size < 0 else min(self._size, self._at + size)
        parts = []
        while self._at < end:
            number, inside = divmod(self._at, _BLOCK)
            part = self._block(number)[inside : inside + end - self._at]
            parts.append(part)
            self._at += len(part)
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            last = min(self._size, (number + 1) * _BLOCK) - 1
            headers = {"Range": f"bytes={number * _BLOCK}-{last}", "User-Agent": "attn-doctor refresh"}
            with urllib.request.urlopen(urllib.request.Request(self._url, headers=headers), timeout=120) as answer:
                self._blocks[number] = answer.read()
        return self._blocks[number]


def length_of(url: str) -> int:
    """Return the size of a file in bytes; OSError where the index serves no parts of files."""
    request = urllib.request.Request(url, headers={"Range": "bytes=0-0", "User-Agent": "attn-doctor refresh"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        if answer.status != 206:
            raise OSError("the index serves no parts of files")
        return int(answer.headers["Content-Range"].rpartition("/")[2])


def inside_wheel(url: str) -> str:
    """The METADATA inside a wheel; of a large one only the parts that hold it are read."""
    try:
        file: io.IOBase = RangeFile(url, length_of(url))
    except (OSError, KeyError):
        file = io.BytesIO(fetch(url))
    with zipfile.ZipFile(file) as archive:
        name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        return archive.read(name).decode("utf-8", "replace")


class Links(html.parser.HTMLParser):
    """The files of an HTML simple page, in the terms of the JSON one."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[dict] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect one link."""
        found = dict(attrs)
        if tag != "a" or not found.get("href"):
            return
        item = {"url": found["href"], "filename": unquote(urlparse(found["href"]).path.rsplit("/", 1)[-1])}
        item["yanked"] = "data-yanked" in found
        for key in ("requires-python", "upload-time"):
            if found.get(f"data-{key}"):
                item[key] = found[f"data-{key}"]
        self.files.append(item)


def files_of(page: str) -> list[dict]:
    """Every file of a package, from a JSON or an HTML simple page."""
    body = fetch(page, "application/vnd.pypi.simple.v1+json, text/html;q=0.1")
    if body.lstrip().startswith(b"{"):
        return json.loads(body)["files"]
    links = Links()
    links.feed(body.decode("utf-8", "replace"))
    return links.files


def requires_of(package: str, files: list[dict], page: str, *, extras: bool = False) -> list[str] | None:
    """Requires-Dist of a release, of all extras if wished; None when no file shows it without a build."""
    wheels = [f for f in files if f["filename"].endswith(".whl")]
    linux = [f for f in wheels if "linux" in f["filename"] and "x86_64" in f["filename"]] or wheels
    for item in sorted(linux, key=lambda f: f["filename"], reverse=True)[:1]:
        metadata = beside(urljoin(page, item["url"])) or inside_wheel(urljoin(page, item["url"]))
        return kept(package, metadata, extras=extras)
    for item in files:
        if item["filename"].endswith(".tar.gz"):
            with tarfile.open(fileobj=io.BytesIO(fetch(urljoin(page, item["url"])))) as archive:
                member = next((m for m in archive if re.fullmatch(r"[^/]+/PKG-INFO", m.name)), None)
                stream = archive.extractfile(member) if member else None
                text = stream.read().decode("utf-8", "replace") if stream else ""
            lines = kept(package, text, extras=extras)
            dynamic = {field.lower() for field in email.message_from_string(text).get_all("Dynamic") or ()}
            return lines if lines or (text and "requires-dist" not in dynamic) else None
    return None


def kept(package: str, metadata: str, *, extras: bool = False) -> list[str]:
    """The Requires-Dist lines worth keeping: none of extras (unless wished), but for those that matter."""
    lines = []
    for line in email.message_from_string(metadata).get_all("Requires-Dist") or ():
        try:
            marker = Requirement(line).marker
        except InvalidRequirement:
            continue
        extra = re.search(r"""extra\s*==\s*["']([^"']+)["']""", str(marker or ""))
        if extras or extra is None or extra[1] in EXTRAS.get(package, ()):
            lines.append(line)
    return lines


def refreshed(package: str, old: dict, index: str, since: str = "") -> dict:
    """The package's line, with new releases added and files and yanks read again."""
    page = f"{index.rstrip('/')}/{package}/"
    by_version: dict[str, list[dict]] = {}
    for item in files_of(page):
        tags = file_tags(item["filename"])
        if tags is not None and not tags[0].is_devrelease:
            by_version.setdefault(str(tags[0]), []).append({**item, "tags": tags})
    known = {str(Version(version)): body for version, body in old.get("releases", {}).items()}
    releases = {}
    for version, files in sorted(by_version.items(), key=lambda entry: Version(entry[0])):
        before = known.get(version)
        if before is None and since > max((f.get("upload-time") or "9999") for f in files):
            continue
        requires = before.get("rd", []) if before else requires_of(package, files, page)
        if requires is None:
            print(f"{package} {version}: requirements are only known to its build, left out", file=sys.stderr)
            continue
        body = {
            "d": min((f.get("upload-time") or "9999") for f in files)[:10].replace("9999", ""),
            "rp": next((f["requires-python"] for f in files if f.get("requires-python")), ""),
            "rd": requires,
            "y": int(all(f.get("yanked") for f in files)),
            "t": sorted(set().union(*(f["tags"][1] for f in files))),
            "m": sorted(set().union(*(f["tags"][2] for f in files))),
            "s": int(any(f["tags"][3] for f in files)),
        }
        releases[version] = {key: value for key, value in body.items() if value}
    return {"name": package, **{k: v for k, v in old.items() if k not in ("name", "releases")}, "releases": releases}


def read_index(path: Path) -> dict[str, dict]:
    """Package → its line, decoded; empty when there is no index yet."""
    if not path.is_file():
        return {}
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()[1:]
    return {body["name"]: body for body in map(json.loads, lines)}


def write_index(path: Path, packages: dict[str, dict]) -> int:
    """Write atomically, the same bytes for the same content; the size in bytes."""
    dates = (body.get("d", "") for line in packages.values() for body in line["releases"].values())
    newest = {name: found for name in sorted(packages) if (found := newest_release(packages[name]["releases"]))}
    head = {"format": 1, "refreshed": max(dates, default=""), "newest": newest}
    lines = [head, *(packages[name] for name in sorted(packages))]
    text = "".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines)
    packed = gzip.compress(text.encode(), 9, mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(packed)
    temporary.replace(path)
    return len(packed)


def newest_release(releases: dict[str, dict]) -> str:
    """Return the newest release that is no pre-release and was not withdrawn; empty where there is none."""
    found = [Version(text) for text, body in releases.items() if not body.get("y")]
    return str(max((version for version in found if not version.is_prerelease), default=""))


def main() -> int:
    """Refresh the file and say what is new."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--add", nargs="*", default=[], help="packages to take up")
    parser.add_argument("--only", nargs="*", default=[], help="refresh these alone")
    parser.add_argument("--since", default="", metavar="DATE", help="take up no release older than this")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    packages = read_index(INDEX)
    index = configured_index()
    for name in sorted({*(arguments.only or packages), *arguments.add}):
        old = packages.get(name, {})
        packages[name] = refreshed(name, old, index, arguments.since)
        new = [v for v in packages[name]["releases"] if v not in old.get("releases", {})]
        print(f"{name}: {len(packages[name]['releases'])} releases, new: {', '.join(new) or 'none'}")
    if not arguments.dry_run:
        print(f"{INDEX.name}: {write_index(INDEX, packages)} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
