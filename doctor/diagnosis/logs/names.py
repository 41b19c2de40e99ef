"""In which releases of a package a name exists, from data that ships with the doctor."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from doctor.util.resources import rules_dir

FILE = "name_history.json.gz"


@dataclass(frozen=True)
class NameHistory:
    """The releases that have a name: of those that were read, the first and last with it and their neighbors."""

    package: str
    name: str
    first: str | None  # None: the oldest release has it
    last: str | None  # None: the newest release has it
    without: str | None  # the first release after `last`

    @property
    def specifier(self) -> str:
        """Return the range of releases that have the name."""
        bounds = (f">={self.first}" if self.first else "", f"<{self.without}" if self.without else "")
        return ",".join(bound for bound in bounds if bound)

    @property
    def sentence(self) -> str:
        """Return the range in words."""
        if self.last is None:
            return f"{self.package} has `{self.name}` from {self.first} on"
        since = f"from {self.first} " if self.first else ""
        return f"{self.package} has `{self.name}` {since}up to {self.last}, and no longer in {self.without}"


def history_of(package: str, name: str) -> NameHistory | None:
    """Return in which releases a package has a name; None for a name that no release has or that all have."""
    known = _load().get(package)
    span = known["names"].get(name) if known else None
    if known is None or span is None:
        return None
    releases, (first, last) = known["releases"], span
    newest = len(releases) - 1
    return NameHistory(
        package,
        name,
        releases[first] if first else None,
        releases[last] if last < newest else None,
        releases[last + 1] if last < newest else None,
    )


@cache
def _load() -> dict[str, Any]:
    path = rules_dir() / "index" / FILE
    if not path.is_file():
        return {}
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return dict(json.load(stream))
