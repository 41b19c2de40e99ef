"""Check the proofs of rules: the releases on both sides of every bound, and one inside."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from doctor.errors import DoctorError
from doctor.rulebook.proofs import (
    ANY_RANGE,
    CONSTANT,
    IMPORT,
    LACKS,
    MEASURED,
    METADATA,
    NO_FILE,
    NOT_REQUIRED,
    NOT_SHOWN,
    PROVEN,
    REFUTED,
    STATED,
    UNPROVEN,
    WHEEL,
    Proof,
    Record,
)
from doctor.rulebook.rule import as_tuple
from doctor.rulebook.table_ranges import plain
from doctor.util.linear_regex import compiled
from doctor.util.redact import shortened

from .module_imports import imports_name
from .name_records import name_record
from .release_files import Releases, matches
from .requirements import required
from .wheel_records import recorded_releases, wheel_record

_NO_FILE = "has no such file"


class Check(NamedTuple):
    """One release that has to be read, and whether it is to show the claim."""

    version: str
    expected: bool


class Shown(NamedTuple):
    """What one release has: a digest of the lines that show the claim, empty where none does; and what was seen."""

    digest: str
    seen: str


def verify(proof: Proof, releases: Releases, captures: Path, date: str) -> Record:
    """Check one proof. A release that cannot be read makes it unproven, one that contradicts refuted."""
    if proof.kind == STATED:
        return Record(proof.statement, UNPROVEN, date, {}, "somebody says so; nothing can be checked")
    if proof.kind == MEASURED:
        return _verify_capture(proof, captures, date)
    try:
        checks = planned(proof, _known(proof, releases))
    except DoctorError as error:
        return Record(proof.statement, UNPROVEN, date, {}, _reason(error))
    found: dict[str, str] = {}
    unread = ""
    for check in checks:
        try:
            shown = _shown(proof, check.version, releases)
        except DoctorError as error:
            unread = unread or f"{proof.origin} {check.version}: {_reason(error)}"
            continue
        found[check.version] = shown.digest or (NO_FILE if shown.seen == _NO_FILE else NOT_SHOWN)
        if proof.kind == IMPORT and not check.expected:
            continue  # it may import the name where the other package has it
        if bool(shown.digest) != check.expected:
            place = "is in the range" if check.expected else "is outside the range"
            why = f"{proof.origin} {check.version} {place}, and {shown.seen}"
            return Record(proof.statement, REFUTED, date, found, why)
    return Record(proof.statement, UNPROVEN if unread else PROVEN, date, found, unread)


def _known(proof: Proof, releases: Releases) -> Sequence[str]:
    """Return the releases that a proof can be checked in: those of a record where the record is what it is about."""
    if proof.kind == LACKS:
        return name_record(proof.origin).releases
    return recorded_releases(proof.origin) if proof.kind == WHEEL else releases.known(proof.origin)


def planned(proof: Proof, known: Sequence[str]) -> list[Check]:
    """Return the first, a middle and the last release of each range, and those next to it; DoctorError without any."""
    final = [version for version in known if not Version(version).is_prerelease]
    named = any(bound.is_prerelease for bound in proof.bounds)
    listed = list(known) if named or not final else final
    inside = [any(one.contains(version) for one in proof.ranges) for version in listed]
    if not any(inside):
        raise DoctorError(f"no release of `{proof.origin}` is in the range")
    places: dict[int, bool] = {}
    for _, group in groupby(enumerate(inside), key=lambda item: item[1]):
        run = [place for place, _ in group]
        if inside[run[0]]:
            places |= dict.fromkeys((run[0], run[len(run) // 2], run[-1]), True)
            places |= {place: False for place in (run[0] - 1, run[-1] + 1) if 0 <= place < len(listed)}
    return [Check(listed[place], places[place]) for place in sorted(places)]


def shows(proof: Proof, version: str, releases: Releases) -> bool:
    """Whether a release has what a proof states; DoctorError where it cannot be read."""
    return bool(_shown(proof, version, releases).digest)


def _shown(proof: Proof, version: str, releases: Releases) -> Shown:
    package = proof.origin
    if proof.kind == METADATA:
        return _required(proof.body, releases.requirements(package, version, extras="extras" in proof.body))
    if proof.kind == LACKS:
        name = proof.body["name"]
        if name_record(package).has(name, version):
            return Shown("", f"has `{name}`")
        return Shown(hashlib.sha256(name.encode()).hexdigest()[:12], f"lacks `{name}`")
    if proof.kind == WHEEL:
        record = {f"{package} {version}": wheel_record(package, version)}
        return shown_in(record, proof.body["shows"], proof.body.get("hides"))
    files = releases.files(package, version, proof.files)
    if proof.kind == IMPORT:
        return _imported(proof, files)
    if proof.kind == CONSTANT:
        return _compared(proof, files)
    return shown_in(files, proof.body["shows"], proof.body.get("hides"))


def shown_in(files: Mapping[str, bytes], shows: str, hides: str | None) -> Shown:
    """Return whether one of the files matches `shows`, and not `hides`."""
    if not files:
        return Shown("", _NO_FILE)
    reason = "no file shows it"
    lines: list[bytes] = []
    for path in sorted(files):
        matched = list(_lines(files[path], shows))
        hiding = next(_lines(files[path], hides), None) if matched and hides is not None else None
        if hiding is not None:
            reason = f"`{path}` has what hides it: `{_short(hiding)}`"
            continue
        if matched:
            lines += [path.encode(), *matched]
    if not lines:
        return Shown("", reason)
    seen = f"`{lines[0].decode()}` shows `{_short(lines[1])}`"
    return Shown(hashlib.sha256(b"\n".join(lines)).hexdigest()[:12], seen)


def _imported(proof: Proof, files: Mapping[str, bytes]) -> Shown:
    """Say whether one of the files imports the name at its top."""
    name = proof.body["name"]
    path = next((path for path in sorted(files) if imports_name(files[path], name, proof.body["from"])), None)
    if path is None:
        return Shown("", f"no file imports `{name}` at its top" if files else _NO_FILE)
    return Shown(hashlib.sha256(f"{path} {name}".encode()).hexdigest()[:12], f"`{path}` imports `{name}` at its top")


def _compared(proof: Proof, files: Mapping[str, bytes]) -> Shown:
    """Compare the range that code accepts with the stated one."""
    found = accepted_range(files, proof.files, proof.body["find"])
    if found is None:
        return Shown("", "no file shows it" if files else _NO_FILE)
    seen = f"`{found.path}` accepts `{found.range}`"
    if found.range != plain(SpecifierSet(proof.body["range"])):
        return Shown("", seen)
    return Shown(hashlib.sha256(seen.encode()).hexdigest()[:12], seen)


class Accepted(NamedTuple):
    """The range that a file compares a release with."""

    path: str
    range: str


def accepted_range(files: Mapping[str, bytes], patterns: Sequence[str], find: str) -> Accepted | None:
    """Return the group of the first match in the first file, in the order of their patterns: a range or its start."""
    for path in (path for pattern in patterns for path in sorted(files) if matches(path, pattern)):
        match = compiled(find).search(files[path])
        if match is not None:
            text = match[1].decode("utf-8", "replace")
            return Accepted(path, plain(SpecifierSet(text if text[0] in "<>=!~" else f">={text}")))
    return None


def _lines(content: bytes, pattern: str) -> Iterator[bytes]:
    """Yield each match, as whole lines."""
    for found in compiled(pattern).finditer(content):
        start = content.rfind(b"\n", 0, found.start()) + 1
        end = content.find(b"\n", found.end())
        yield content[start : len(content) if end < 0 else end].strip()


def _short(line: bytes) -> str:
    return shortened(" ".join(line.decode("utf-8", "replace").split()), 100)


def _required(body: Mapping[str, str], lines: Sequence[str]) -> Shown:
    """Compare the range that metadata requires of a package with the stated one."""
    wanted = canonicalize_name(body["requires"])
    found = required(lines, {extra: (wanted,) for extra in as_tuple(body.get("extras"))}).get(wanted)
    seen = f"requires `{wanted}{found}`" if found is not None else f"does not require `{wanted}`"
    stated = body["range"]
    admitted = {NOT_REQUIRED: None, ANY_RANGE: ""}
    shown = plain(found) if found is not None else None
    if shown != (admitted[stated] if stated in admitted else plain(SpecifierSet(stated))):
        return Shown("", seen)
    return Shown(hashlib.sha256(seen.encode()).hexdigest()[:12], seen)


def _verify_capture(proof: Proof, captures: Path, date: str) -> Record:
    path = captures / proof.body["capture"]
    if not path.is_file():
        return Record(proof.statement, UNPROVEN, date, {}, f"there is no capture `{proof.body['capture']}` here")
    shown = shown_in({path.name: path.read_bytes()}, proof.body["shows"], None)
    if not shown.digest:
        return Record(proof.statement, REFUTED, date, {path.name: NOT_SHOWN}, f"no line of `{path.name}` shows it")
    return Record(proof.statement, PROVEN, date, {path.name: shown.digest})


def _reason(error: DoctorError) -> str:
    return re.sub(r"\s+", " ", f"{error.message} ({error.hint})" if error.hint else error.message)
