"""Which files of a package name another one, found in their text: no file is parsed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .findings import Notice
from .sources import FILE_LIMIT, Environment, Package


def mentions(names: Iterable[str]) -> re.Pattern[bytes]:
    """Return a pattern that finds any of these import names as a whole word."""
    joined = b"|".join(sorted(re.escape(name.encode()) for name in names))
    return re.compile(rb"(?<!\w)(?:" + joined + rb")(?!\w)")


def imports(tops: Iterable[str], distributions: Iterable[str]) -> re.Pattern[bytes]:
    """Return a pattern that finds the ways in which a file reaches one of these packages; its groups name them."""
    top = b"|".join(sorted(re.escape(name.encode()) for name in tops))
    either = b"|".join(sorted(re.escape(name.encode()) for name in {*tops, *distributions}))
    listed = rb"(?:[\w.]+(?:[ \t]+as[ \t]+\w+)?[ \t]*,[ \t]*)*"
    statement = rb"^[ \t]*(?:from|import)[ \t]+" + listed + rb"(" + top + rb")(?!\w)"
    lookup = rb"(?:import_module|__import__|version|distribution|find_spec|modules)"
    by_text = lookup + rb"[(\[]\s*[\"'](" + either + rb")(?!\w)"
    custom_op = rb"torch\.ops\.(" + top + rb")(?!\w)"
    return re.compile(b"|".join((statement, by_text, custom_op)), re.M)


def importing_files(
    environment: Environment, caller: Package, callees: Sequence[Package], notices: list[Notice]
) -> Iterator[tuple[Path, frozenset[str]]]:
    """Yield each file of a caller that imports a callee or looks it up by name, with the import names of those.

    Files that are too large add to `notices`.
    """
    others = [item for item in callees if item is not caller]
    if not others:
        return
    distributions = {item.release.name for item in others}
    plain = [name.encode() for name in {*distributions, *(item.name for item in others)}]
    pattern = imports((item.name for item in others), distributions)
    for path in environment.files(caller):
        try:
            if path.stat().st_size > FILE_LIMIT:
                notices.append(Notice(str(path), f"skipped: larger than {FILE_LIMIT // 2**20} MiB"))
                continue
            data = path.read_bytes()
        except OSError:
            continue
        if not any(name in data for name in plain):
            continue
        found = {name.decode() for groups in pattern.findall(data) for name in groups if name}
        if found:
            yield path, frozenset(item.name for item in others if found & {item.name, item.release.name})


def reached_callees(environment: Environment, caller: Package, callees: Sequence[Package]) -> frozenset[str]:
    """Return the import names of the callees that some file of the caller imports or looks up by name."""
    return frozenset().union(*(names for _, names in importing_files(environment, caller, callees, [])))
