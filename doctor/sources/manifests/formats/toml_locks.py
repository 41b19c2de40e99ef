"""What the lock formats have in common: tables of packages, each with name, version and source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion

from doctor.errors import fault
from doctor.facts.vocabulary import parse_version
from doctor.model import Fact
from doctor.sources.manifests.base import DeclaredRequirement, Manifest, cuda_of_index, normalized
from doctor.util.toml_lines import Tables, tables, text_at

Table = dict[str, Any]


def read_lock(
    path: Path, text: str, content: Table, key: str, *, marker: Callable[[Table], str | None],
    index: Callable[[Table], str | None], skip: Callable[[Table], bool] = lambda table: False,
    requires_python: str = "",
) -> Manifest:  # fmt: skip
    """Every package of a lock file as an entry; `marker`, `index` and `skip` know what the format calls them."""

    places = Tables(text, key)
    entries: list[DeclaredRequirement] = []
    facts: list[Fact] = []
    for number, table in tables(path, content, key):
        line = places.line_of(number, "version")
        name, version = text_at(path, line, table, "name"), text_at(path, line, table, "version")
        if not name:
            raise fault(path, line, "a package has no `name`")
        if skip(table):
            continue
        if version is not None:
            try:
                parse_version(version)
            except InvalidVersion:
                raise fault(path, line, f"`{version[:60]}` is no version") from None
        problem = None if version else f"{path}:{line} gives no version"
        entries.append(
            DeclaredRequirement(
                normalized(name),
                str(path),
                line,
                f"=={version}" if version else "",
                version,
                (),
                marker(table),
                places.text_of(line),
                False,
                True,
                problem,
            )
        )
        cuda = cuda_of_index(index(table) or "")
        if normalized(name) == "torch" and cuda and version and "+" not in version:
            facts.append(Fact("torch.cuda", cuda, f"{path}:{line}"))
    if not entries:
        raise fault(path, None, f"no `[[{key}]]` in it: nothing is locked")
    return Manifest(tuple(entries), tuple(facts), True, requires_python)
