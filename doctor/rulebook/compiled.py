"""The form of compiled rules: an index, the libraries, and one section of JSON for the rules of each library.

A section is parsed when one of its rules is needed. Rules that need a version of a library are in sections of their
own, which are not parsed where that library is not installed. Of a rule only what decides whether it applies is parsed
with its section; the parts for readers follow when they are read. A long table of a library is parsed when it is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from doctor.util.cache_file import CacheFile, digest_of

from .effects import Effects

Library = tuple[str, Mapping[str, Any], Effects]  # name, content, what follows from it

#: Bytes of JSON up to which a part of a library is parsed at every start; a job reads few of the longer ones.
_SHORT = 400

#: Parts of a rule that do not decide whether it applies.
_DETAILS = frozenset(
    ("name", "summary", "why", "message", "references", "fix", "needs", "no_pin", "myth", "confirm", "category",
     "signatures", "packages", "proof")
)  # fmt: skip


class CompiledBody(Mapping[str, Any]):
    """What a rule file says, except its tests; the details are parsed when the first of them is read."""

    __slots__ = ("_details", "_head")

    def __init__(self, head: dict[str, Any], details: bytes) -> None:
        self._head = head
        self._details: bytes | dict[str, Any] = details

    def __getitem__(self, key: str) -> Any:
        return self._details_of()[key] if _is_detail(key) else self._head[key]

    def __contains__(self, key: object) -> bool:
        return key in (self._details_of() if _is_detail(str(key)) else self._head)

    def get(self, key: str, default: Any = None) -> Any:
        """Return one part, or the default; faster than what Mapping makes of `__getitem__`."""
        found = self._head.get(key)
        if found is not None:
            return found
        return self._details_of().get(key, default) if _is_detail(key) else default

    def __iter__(self) -> Iterator[str]:
        yield from self._head
        yield from self._details_of()

    def __len__(self) -> int:
        return len(self._head) + len(self._details_of())

    def _details_of(self) -> dict[str, Any]:
        if isinstance(self._details, bytes):
            self._details = dict(json.loads(self._details))
        return self._details


class CompiledLibrary(Mapping[str, Any]):
    """What a library file says; a long part is parsed when it is read."""

    __slots__ = ("_parsed", "_parts")

    def __init__(self, parsed: dict[str, Any], parts: dict[str, bytes]) -> None:
        self._parsed, self._parts = parsed, parts

    def __getitem__(self, key: str) -> Any:
        part = self._parts.pop(key, None)
        if part is not None:
            self._parsed[key] = json.loads(part)
        return self._parsed[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Return one part, or the default; faster than what Mapping makes of `__getitem__`."""
        return self[key] if key in self._parts else self._parsed.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._parsed or key in self._parts

    def __iter__(self) -> Iterator[str]:
        yield from (*self._parsed, *self._parts)

    def __len__(self) -> int:
        return len(self._parsed) + len(self._parts)


def _is_detail(key: str) -> bool:
    return key in _DETAILS or key.startswith("x-")


@dataclass(frozen=True)
class Section:
    """Rules of one library; `version_key`: the version that every one of them needs, or None."""

    library: str
    version_key: str | None
    ids: tuple[str, ...]
    digest: str  # of the content
    folder: str  # start of the path of each rule: the folder with its separator, or nothing
    read: Callable[[], bytes] = field(compare=False, repr=False)

    @cached_property
    def rules(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return (path, content) of each rule, in the order of `ids`."""
        heads, _, details = self.read().partition(b"\n")
        rules = json.loads(heads)
        ends = accumulate((size for _, _, size in rules), initial=0)
        return [
            (self.folder + path, CompiledBody(head, details[start:end]))
            for (path, head, _), (start, end) in zip(rules, pairwise(ends), strict=True)
        ]


def section_of(
    library: str, version_key: str | None, rules: Iterable[tuple[str, Mapping[str, Any]]], folder: str = ""
) -> Section:
    """Return the section of these rules: (path, content) of each, the path relative to `folder` if that is given."""
    start = _start(folder)
    heads: list[tuple[str, dict[str, Any], int]] = []
    details: list[bytes] = []
    for path, body in rules:
        kept = {key: value for key, value in body.items() if key != "tests"}
        details.append(_json({key: value for key, value in kept.items() if _is_detail(key)}))
        head = {key: value for key, value in kept.items() if not _is_detail(key)}
        heads.append((path.removeprefix(start), head, len(details[-1])))
    content = b"\n".join((_json(heads), b"".join(details)))
    ids = tuple(head["id"] for _, head, _ in heads)
    return Section(library, version_key, ids, digest_of(content), start, lambda: content)


class CompiledRules(NamedTuple):
    """All checked rule files: a digest of their content, the libraries, and the rules in sections."""

    version: str
    libraries: tuple[Library, ...]
    sections: tuple[Section, ...]


def to_bytes(compiled: CompiledRules) -> tuple[bytes, bytes]:
    """Return (what is read at every start, the sections); the paths in them are relative to the folder of rules."""
    contents = [item.read() for item in compiled.sections]
    index = [
        (item.library, item.version_key, item.ids, item.digest, len(content))
        for item, content in zip(compiled.sections, contents, strict=True)
    ]
    heads: list[tuple[str, dict[str, Any], Effects, dict[str, int]]] = []
    tables: list[bytes] = []
    for name, body, effects in compiled.libraries:
        parts = {key: _json(value) for key, value in body.items()}
        long = {key: part for key, part in parts.items() if len(part) > _SHORT}
        short = {key: value for key, value in body.items() if key not in long}
        heads.append((name, short, effects, {key: len(part) for key, part in long.items()}))
        tables += long.values()
    return b"\n".join((_json(index), _json(heads), b"".join(tables))), b"".join(contents)


def from_bytes(
    file: CacheFile, content: bytes, folder: str, compile_again: Callable[[], CompiledRules]
) -> CompiledRules:
    """Return what `to_bytes` wrote, for rules in this folder; ValueError, TypeError or KeyError for anything else.

    A section is read from the file when it is needed; `compile_again` is called where it is damaged.
    """
    index, libraries, tables = content.split(b"\n", 2)
    sections: list[Section] = []
    start = 0
    for number, (library, version_key, ids, digest, size) in enumerate(json.loads(index)):

        def read(number: int = number, start: int = start, size: int = size, digest: str = digest) -> bytes:
            found = file.part(start, size, digest)
            return compile_again().sections[number].read() if found is None else found

        sections.append(Section(str(library), version_key, tuple(ids), str(digest), _start(folder), read))
        start += int(size)
    return CompiledRules(str(file.header["version"]), _libraries(json.loads(libraries), tables), tuple(sections))


def _libraries(heads: list[tuple[str, dict[str, Any], Any, dict[str, int]]], tables: bytes) -> tuple[Library, ...]:
    start = 0
    found: list[Library] = []
    for name, short, effects, sizes in heads:
        parts = {}
        for key, size in sizes.items():
            parts[key] = tables[start : start + size]
            start += size
        found.append((name, CompiledLibrary(short, parts), Effects(*effects)))
    return tuple(found)


def _start(folder: str) -> str:
    return f"{folder}{os.sep}" if folder else ""


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
