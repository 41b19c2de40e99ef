"""requirements.txt as pip reads it: includes, constraints, hashes, extras, markers, addresses, index options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from doctor.errors import DoctorError, fault
from doctor.facts.libraries.titles import OTHER_NAMES
from doctor.facts.vocabulary import parse_version
from doctor.model import Fact
from doctor.packages.requirements import parse_requirement
from doctor.sources.manifests.base import (
    MAX_BYTES,
    MOST_ENTRIES,
    DeclaredRequirement,
    Manifest,
    builds,
    cuda_of_index,
    index_builds,
    own_builds,
    pin_of,
)
from doctor.sources.manifests.local_wheels import Wheel, found_in, named_file, wheel_facts
from doctor.sources.watch import Watch
from doctor.util.reading import read_text
from doctor.util.redact import shortened

MAX_FILES = 200
_OPTION = re.compile(r"(--?[A-Za-z][A-Za-z-]*)(?:\s*=\s*|\s+|(?<=^-[a-z]))?(.*)", re.DOTALL)
_TRAILING = re.compile(r"\s(--?[A-Za-z][\w-]*(?:[\s=].*)?)$", re.DOTALL)  # pip's requirement ends with the first option
_IGNORED = re.compile(r"(?<!\S)(-i|-f|--(?:extra-)?index-url|--find-links)(?=[\s=])")  # they need a line of their own
_COMMENT = re.compile(r"(^|\s)#.*$")
_WHEEL = re.compile(
    r"(?:.*/)?(?P<name>[A-Za-z0-9_.]+)-(?P<version>[0-9][^-/]*)(-[0-9][^-/]*)?-[^-/]+-[^-/]+-[^-/]+\.whl"
)
_SDIST = re.compile(r"(?:.*/)?(?P<name>[A-Za-z0-9_.-]+?)-(?P<version>[0-9][^-/]*)\.(?:tar\.gz|zip)")
_TAG = re.compile(r"@v?([0-9]+(?:\.[0-9]+)+(?:\.?(?:post|rc|a|b|dev)[0-9]+)?)(?:[#?].*)?$")
_NAMED = r"[A-Za-z0-9._-]+\s*(?:\[[^\]]*\])?\s*@"
_ADDRESS = re.compile(rf"(?!{_NAMED})(?:[a-z+]+://|git\+|\.{{0,2}}/|file:|.*\.(?:whl|tar\.gz|zip)(?:#.*)?$)")
#: A project folder, as pip accepts it: `.`, `./server[gpu]`, `libs/kernels`.
_FOLDER = re.compile(r"(?:\.{1,2}|(?:file:)?[\w.~+-]*/[\w./~+-]*)(?:\[[\w,. -]*\])?(?:\s*;.*)?")
_FILE = re.compile(r"\.(?:whl|tar\.gz|zip|txt)\b")
_PIN = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([0-9]{1,9}(?:\.[0-9]{1,9}){0,6})")
_WITHOUT_EFFECT = (
    "--no-index", "--no-binary", "--only-binary", "--prefer-binary", "--require-hashes", "--pre",
    "--trusted-host", "--use-feature", "--no-build-isolation", "--no-deps", "--no-cache-dir", "--upgrade", "-U",
    "--use-pep517", "--default-timeout", "--timeout", "--retries",
)  # fmt: skip


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the file with those it includes."""
    reader = Reader(project_top(path))
    reader.file(path, text, (), constraint=False)
    if reader.entries:
        reader.facts.append(Fact("target.manifest", "requirements", str(path)))
        reader.facts += builds(reader.entries, str(path))
    return reader.manifest(watch)


class Reader:
    """Collect the entries of one file and its includes."""

    def __init__(self, top: Path) -> None:
        self.top = top  # includes stay inside this folder
        self.entries: list[DeclaredRequirement] = []
        self.facts: list[Fact] = []
        self.notes: list[str] = []
        self.indexes: list[tuple[str, str]] = []  # the places that name one, and their addresses
        self.hashed = 0
        self._read: set[tuple[Path, bool]] = set()
        self._wheels: list[Wheel] = []  # that lines name by address
        self._folders: list[Path] = []  # of --find-links

    def manifest(self, watch: Watch) -> Manifest:
        """Return everything read; with a hash on every line, pip installs only what is listed."""
        wanted = [entry for entry in self.entries if not entry.constraint]
        self._read_wheels(watch)
        for index in [fact for fact in self.facts if fact.key == "torch.cuda"]:
            self.facts += index_builds((entry.name for entry in wanted), index.source)
        self.facts += own_builds({entry.name for entry in wanted}, self.indexes)
        complete = bool(wanted) and self.hashed == len(wanted) and all(entry.version for entry in wanted)
        return Manifest(tuple(self.entries), tuple(self.facts), complete, "", tuple(self.notes))

    def _read_wheels(self, watch: Watch) -> None:
        """Add the facts of wheels that are files here."""
        wheels = list(self._wheels)
        for entry in self.entries if self._folders else ():
            if entry.version and entry.range and (found := found_in(self._folders, entry.name, entry.version)):
                wheels.append((found, entry.place))
        for item in wheel_facts(wheels, self.top, watch.packages) if wheels else ():
            if isinstance(item, str):
                self.notes.append(item)
            else:
                self.facts.append(item)

    def file(self, path: Path, text: str, behind: tuple[Path, ...], *, constraint: bool) -> None:
        """Read every line of a file; `behind` are the files that led here."""
        here = path.resolve()
        if (here, constraint) in self._read:
            return
        self._read.add((here, constraint))
        for number, raw, line in logical_lines(text):
            self.line(line, path, number, raw, (*behind, here), constraint=constraint)

    def line(
        self, line: str, path: Path, number: int, raw: str, behind: tuple[Path, ...] = (), *, constraint: bool = False
    ) -> None:
        """Read one logical line: an option, an address or a requirement."""
        if line.startswith("-"):
            self._option(line, path, number, behind)
            return
        trailing = _TRAILING.search(f" {line}")
        if trailing:
            line = line[: trailing.start(1) - 1].strip()
            self.hashed += int("--hash" in trailing[1] and not constraint)
            ignored = _IGNORED.search(trailing[1])
            if ignored:
                self.notes.append(f"{path}:{number}: pip ignores `{ignored[1]}` after a requirement")
        if _FOLDER.fullmatch(line) and not _FILE.search(line):
            self.notes.append(f"{path}:{number}: the requirements of the project in `{_safe(line)}` were not read")
            return
        if len(self.entries) >= MOST_ENTRIES:
            raise fault(path, number, f"more than {MOST_ENTRIES:,} requirements")
        self.entries.append(_entry(line, str(path), number, raw, constraint))
        address = line.partition("@")[2] if re.match(_NAMED, line) else line
        if ".whl" in address and (wheel := named_file(split_marker(address)[0], path.parent)):
            self._wheels.append((wheel, f"{path}:{number}"))

    def _option(self, line: str, path: Path, number: int, behind: tuple[Path, ...]) -> None:
        match = _OPTION.fullmatch(line)
        name, value = (match[1], match[2].strip()) if match else (line, "")
        if name[:2] in ("-r", "-c", "-e", "-i", "-f") and len(name) > 2 and not name.startswith("--"):
            name, value = name[:2], (name[2:] + value).strip()
        if name in ("-r", "--requirement", "-c", "--constraint"):
            self._include(value.strip("'\""), path, number, behind, constraint=name in ("-c", "--constraint"))
        elif name in ("-e", "--editable"):
            if not re.match(r"[a-z+]+://|git\+|.*egg=", value):
                self.notes.append(f"{path}:{number}: the requirements of the project in `{_safe(value)}` were not read")
                return
            self.entries.append(_entry(value, str(path), number, line, False))
        elif name in ("-i", "--index-url", "--extra-index-url"):
            self.indexes.append((f"{path}:{number}", value))
            cuda = cuda_of_index(value)
            if cuda:
                self.facts.append(Fact("torch.cuda", cuda, f"{path}:{number}"))
        elif name in ("-f", "--find-links"):
            if "://" not in value or value.startswith("file:"):
                self._folders.append(path.parent / value.strip("'\"").removeprefix("file:").removeprefix("//"))
        elif name not in _WITHOUT_EFFECT:
            raise fault(path, number, f"unknown option `{_safe(name)}`")

    def _include(self, name: str, path: Path, number: int, behind: tuple[Path, ...], *, constraint: bool) -> None:
        if not name:
            raise fault(path, number, "an include names no file")
        if re.match(r"[a-z]+://", name):
            self.notes.append(f"{path}:{number}: `{_safe(name)}` was not read: files are not downloaded")
            return
        target = path.parent / name
        try:
            resolved = target.resolve()
        except (OSError, ValueError, RuntimeError):
            raise fault(path, number, f"cannot read `{_safe(name)}`") from None
        if resolved in behind:
            ring = " -> ".join(item.name for item in (*behind[behind.index(resolved) :], resolved))
            raise fault(path, number, f"the files include each other: {ring}")
        if not resolved.is_relative_to(self.top):
            raise fault(path, number, f"`{_safe(name)}` is outside the project", "includes stay inside its folder")
        if len(self._read) >= MAX_FILES:
            raise fault(path, number, f"more than {MAX_FILES} files are included")
        try:
            text = read_text(target, "included file", MAX_BYTES)
        except DoctorError as problem:
            raise fault(path, number, problem.message, problem.hint) from None
        self.file(target, text, behind, constraint=constraint)


def logical_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (number of the first line, that line, the joined line without comment) of each non-empty line."""
    pending: list[str] = []
    first, raw = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if not pending:
            first, raw = number, line
        body = _COMMENT.sub("", line).rstrip()
        if line.rstrip().endswith("\\") and body == line.rstrip():
            pending.append(body[:-1].strip())
            continue
        joined = " ".join([*pending, body.strip()]).strip()
        pending = []
        if joined:
            yield first, raw, joined
    joined = " ".join(pending).strip()
    if joined:
        yield first, raw, joined


def _entry(text: str, file: str, number: int, raw: str, constraint: bool) -> DeclaredRequirement:
    """Return a requirement or an address."""
    if (bare := _PIN.fullmatch(text)) is not None:  # most lines of a long file
        return DeclaredRequirement(
            canonicalize_name(bare[1]), file, number, f"=={bare[2]}", bare[2], (), None, raw, constraint
        )
    if _ADDRESS.match(text):
        return _address(text, None, file, number, raw, constraint)
    found, marker = _parsed(text, file, number)
    if found.url:
        return _address(found.url, found.name, file, number, raw, constraint, tuple(sorted(found.extras)), marker)
    ranges = str(found.specifier)
    pin = pin_of(ranges, file, number)
    return DeclaredRequirement(
        canonicalize_name(found.name), file, number, ranges, pin, tuple(sorted(found.extras)), marker, raw, constraint
    )


def _parsed(text: str, file: str, number: int) -> tuple[Requirement, str | None]:
    """Return a requirement and its marker; an invalid marker stays as written, for `markers` to report."""
    try:
        found = parse_requirement(text)
    except InvalidRequirement:
        before, _, marker = text.partition(";")
        try:
            return parse_requirement(before), marker.strip()
        except InvalidRequirement:
            listed = re.match(r"Package\s+Version\b|\[(?:pip3?|conda)\]|PyTorch version", text)
            hint = "lists and reports of other programs are read with `--facts FILE`" if listed else None
            raise fault(file, number, f"`{_safe(text)}` is not a requirement", hint) from None
    return found, str(found.marker) if found.marker else None


def _address(
    url: str, name: str | None, file: str, number: int, raw: str, constraint: bool, extras: tuple[str, ...] = (),
    marker: str | None = None,
) -> DeclaredRequirement:  # fmt: skip
    """Return a wheel, source archive or repository; its version is in the file name or the tag."""
    url, condition = split_marker(url)
    bare, _, fragment = url.strip().partition("#")
    egg = re.search(r"egg=([A-Za-z0-9._-]+)", fragment)
    archive = unquote(bare).partition("?")[0]
    found = _WHEEL.fullmatch(archive) or _SDIST.fullmatch(archive)
    tag = _TAG.search(bare) if bare.startswith("git+") else None
    called = name or (egg[1] if egg else None) or (found["name"] if found else None) or _repository(bare)
    if called is None:
        hint = "`-r FILE` includes a file" if bare.endswith(".txt") else "write `name @ address`"
        raise fault(file, number, f"`{_safe(url)}` does not name its package", hint)
    version = found["version"].replace("_", "+", 1) if found else tag[1] if tag else None

    try:
        parse_version(version or "0")
    except InvalidVersion:
        version = None
    problem = None if version else f"`{_safe(url)}` does not give its version"
    return DeclaredRequirement(
        canonicalize_name(called), file, number, f"=={version}" if version else "", version, extras,
        marker or condition.strip() or None, raw, constraint, False, problem, bare.startswith("git+"),
    )  # fmt: skip


def address_entry(text: str, file: str, number: int) -> DeclaredRequirement | None:
    """Return the package of a line that is only an address, None where it does not name one."""
    if not _ADDRESS.match(text):
        return None
    try:
        return _address(text, None, file, number, text, False)
    except DoctorError:
        return None


def split_marker(address: str) -> tuple[str, str]:
    """Return (address, marker); `;` belongs to the address unless a space is next to it."""
    url, *rest = re.split(r"\s+;\s*|;\s+", address, maxsplit=1)
    return url, rest[0] if rest else ""


def version_of_address(url: str, name: str) -> str | None:
    """Return the version in the name of a wheel or source archive, or in a tag."""
    return _address(url, name, "", 0, url, False).version


def _repository(url: str) -> str | None:
    """Return the package name of a repository, by its last path component."""
    if not url.startswith("git+"):
        return None
    last = canonicalize_name(
        url.partition("://")[2].partition("@")[0].rstrip("/").rpartition("/")[2].removesuffix(".git")
    )
    return OTHER_NAMES.get(last, last) or None


def project_top(path: Path) -> Path:
    """Return the folder that includes must not leave: the checkout, else the project, else the file's folder."""
    folder = path.resolve().parent
    for marks in ((".git",), ("pyproject.toml", "setup.py", "setup.cfg")):
        for parent in (folder, *folder.parents):
            if any((parent / mark).exists() for mark in marks):
                return parent
    return folder


def _safe(text: str) -> str:
    """Return the text short and without the password of an address."""
    return shortened(re.sub(r"(://)[^/@\s]+@", r"\1…@", " ".join(text.split())), 80)
