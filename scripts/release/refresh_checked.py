"""Renew `rules/tables/checked.yaml`: releases of other packages that a release refuses when it runs.

    python scripts/release/refresh_checked.py [--only CALLER …]

The bounds are constants in the code of each release, fetched by pip as for `attn-doctor rules verify`. No metadata has
them, so pip installs such a pair. Each row says where its constant is and when the code compares it.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent))
from table_files import read_table, span_text, write_rows

from doctor.rulebook.authoring.release_files import Releases
from doctor.rulebook.authoring.verify import accepted_range
from doctor.rulebook.table_ranges import Span, capped, following
from doctor.rulebook.tables import RowKey


@dataclass(frozen=True)
class Check:
    """One constant of a row: `find` matches it in one of `files`; its group is the range that the code accepts,
    or its lowest release."""

    key: str
    row: Mapping[str, Any]

    @property
    def caller(self) -> str:
        """The package that compares."""
        return RowKey.of(self.key).caller

    @property
    def patterns(self) -> list[str]:
        """Paths that may have the constant, in the order in which they are searched."""
        return [f"**/{file}" for file in self.row["files"]]

    @property
    def oldest(self) -> Version:
        """The first release that the row is about."""
        return min(Version(str(Span.of(text).first)) for text in self.row if text[:1].isdigit())

    def bound(self, version: Version, files: Mapping[str, bytes]) -> str:
        """Return the range that a release accepts; empty where it has no such constant."""
        if version < Version(self.row.get("first", "0")):
            return ""
        found = accepted_range(files, self.patterns, self.row["find"])
        return found.range if found else ""

    @property
    def between(self) -> bool:
        """Whether the row is about development versions, by the releases before and after them."""
        return "between" in self.row


def bounds(caller: str, checks: Sequence[Check], releases: Releases) -> dict[Version, dict[str, str]]:
    """Return the bound of each check in each release, from the oldest one in the rows; "" where it has none."""
    oldest = min(check.oldest for check in checks)
    patterns = {pattern for check in checks for pattern in check.patterns}
    found: dict[Version, dict[str, str]] = {}
    for text in releases.known(caller):
        version = Version(text)
        if version.is_prerelease or version < oldest:
            continue
        files = releases.files(caller, text, patterns)
        found[version] = {check.key: check.bound(version, files) for check in checks}
    return found


def windows_of(per_release: Mapping[Version, str]) -> dict[str, str]:
    """Return the bound of each run of releases with the same one.

    Lower bounds stay: the last run is open. Releases to come may accept more than an upper bound says.
    """
    runs = [(bound, list(run)) for bound, run in groupby(sorted(per_release), key=lambda one: per_release[one])]
    found = {}
    for at, (bound, run) in enumerate(runs):
        if bound:
            later = runs[at + 1][1][0] if at + 1 < len(runs) else None
            open_end = later is None and not capped(bound)
            found[span_text(run[0], run[-1], later, open_end=open_end, to_later=True)] = bound
    return found


def between(per_release: Mapping[Version, str]) -> dict[str, str]:
    """Return the versions between two releases, each with the range that holds both of their ranges."""
    found = {}
    for before, after in pairwise(sorted(per_release)):
        if bound := _both(SpecifierSet(per_release[before]), SpecifierSet(per_release[after])):
            found |= {f"{name}.dev0 alone": bound for name in dict.fromkeys((following(before), str(after)))}
    return found


def _both(first: SpecifierSet, second: SpecifierSet) -> str:
    lower = [
        min((Version(one.version) for one in spec if one.operator == ">="), default=None) for spec in (first, second)
    ]
    upper = [
        min((Version(one.version) for one in spec if one.operator == "<"), default=None) for spec in (first, second)
    ]
    parts = [f">={min(map(Version, map(str, lower)))}"] if None not in lower else []
    if None not in upper:
        parts.append(f"<{max(map(Version, map(str, upper)))}")
    parts += sorted(str(one) for one in set(first) & set(second) if one.operator == "!=")
    return ",".join(parts)


def main() -> None:
    """Read the options, read the archives, write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows = read_table("checked")["rows"]
    grouped: dict[str, list[Check]] = defaultdict(list)
    for key, row in rows.items():
        grouped[RowKey.of(key).caller].append(Check(key, row))
    parser.add_argument("--only", nargs="*", default=list(grouped))
    options = parser.parse_args()
    releases = Releases(on_step=lambda text: print(text, file=sys.stderr))
    for caller in options.only:
        per_release = bounds(caller, grouped[caller], releases)
        for check in grouped[caller]:
            read = {version: found[check.key] for version, found in per_release.items()}
            windows = between(read) if check.between else windows_of(read)
            print(check.key, *(f"{span}: {bound};" for span, bound in windows.items()))
            if windows:
                stated = {name: value for name, value in check.row.items() if not name[:1].isdigit()}
                rows[check.key] = stated | windows
    write_rows("checked", rows)


if __name__ == "__main__":
    main()
