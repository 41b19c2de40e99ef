"""The form of compiled rules: an index, the libraries, and one section of JSON for the rules of each library.

A section is parsed when one of its rules is needed. Rules that need a version of a library are in sections of their
own, which are not parsed where that library is not installed. Of a rule only what decides whether it applies is parsed
with its section; the parts for readers follow when they are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

Library = tuple[str, dict[str, Any]]  # name, content

#: Parts of a rule that do not decide whether it applies.
_DETAILS = frozenset(
    ("name", "summary", "why", "message", "references", "fix", "needs", "no_pin", "myth", "confirm", "category",
     "signatures", "packages")
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

    def __iter__(self) -> Iterator[str]:
        yield from self._head
        yield from self._details_of()

    def __len__(self) -> int:
        return len(self._head) + len(self._details_of())

    def _details_of(self) -> dict[str, Any]:
        if isinstance(self._details, bytes):
            self._details = dict(json.loads(self._details))
        return self._details


def _is_detail(key: str) -> bool:
    return key in _DETAILS or key.startswith("x-")


@dataclass(frozen=True)
class Section:
    """Rules of one library; `version_key`: the version that every one of them needs, or None."""

    library: str
    version_key: str | None
    ids: tuple[str, ...]
    content: bytes
    folder: str  # start of the path of each rule: the folder with its separator, or nothing

    @cached_property
    def rules(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return (path, content) of each rule, in the order of `ids`."""
        heads, _, details = self.content.partition(b"\n")
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
    ids = tuple(head["id"] for _, head, _ in heads)
    return Section(library, version_key, ids, b"\n".join((_json(heads), b"".join(details))), start)


class CompiledRules(NamedTuple):
    """All checked rule files: a digest of their content, the libraries, and the rules in sections."""

    version: str
    libraries: tuple[Library, ...]
    sections: tuple[Section, ...]


def to_bytes(compiled: CompiledRules) -> bytes:
    """Return what `from_bytes` reads; the paths in it are relative to the folder of rules."""
    index = [(item.library, item.version_key, item.ids, len(item.content)) for item in compiled.sections]
    parts = (_json(index), _json(compiled.libraries), b"".join(item.content for item in compiled.sections))
    return b"\n".join(parts)


def from_bytes(version: str, content: bytes, folder: str) -> CompiledRules:
    """Return what `to_bytes` wrote, for rules in this folder; ValueError, TypeError or KeyError for anything else."""
    index, libraries, rules = content.split(b"\n", 2)
    entries = json.loads(index)
    ends = list(accumulate((size for _, _, _, size in entries), initial=0))
    if ends[-1] != len(rules):
        raise ValueError("the sections have another size than the index says")
    sections = tuple(
        Section(str(library), key, tuple(ids), rules[start:end], _start(folder))
        for (library, key, ids, _), (start, end) in zip(entries, pairwise(ends), strict=True)
    )
    return CompiledRules(version, tuple((str(name), dict(body)) for name, body in json.loads(libraries)), sections)


def _start(folder: str) -> str:
    return f"{folder}{os.sep}" if folder else ""


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
