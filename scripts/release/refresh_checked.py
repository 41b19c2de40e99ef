"""Renew `rules/tables/checked.yaml`: releases of other packages that a release refuses when it runs.

    python scripts/release/refresh_checked.py --cache DIR [--only CALLER …]

The bounds are constants in the code of each release, read from its archive in the package index. No metadata has them,
so pip installs such a pair. Each row says where its constant is and when the code compares it; the releases are new.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent))
import refresh_index
from surfaces import python_files, releases_of
from table_files import read_table, span_text, write_rows

from doctor.rulebook.table_ranges import capped, following, plain
from doctor.rulebook.tables import RowKey

SINCE = "2023-06"


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
    def files(self) -> list[str]:
        """Paths that may have the constant, in the order in which they are searched."""
        return list(self.row["files"])

    @property
    def between(self) -> bool:
        """Whether the row is about development versions, by the releases before and after them."""
        return "between" in self.row


def bounds(caller: str, checks: Sequence[Check], cache: Path) -> dict[Version, dict[str, str]]:
    """Return the bound of each check in each release; "" where the release has none."""
    path = cache / f"{caller}.checked.json"
    known: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.is_file() else {}
    files = {file for check in checks for file in check.files}
    found: dict[str, dict[str, str]] = {}
    for version, item in releases_of(caller, SINCE).items():
        texts = known.get(str(version), {})
        if not files <= texts.keys():
            print(caller, version, file=sys.stderr)
            read = dict(_contents(item, files))
            texts = texts | {file: read.get(file, "") for file in files}
        found[str(version)] = texts
        path.write_text(json.dumps(known | found))
    return {
        Version(text): {
            check.key: _bound(check, texts) if Version(text) >= Version(check.row.get("first", "0")) else ""
            for check in checks
        }
        for text, texts in found.items()
    }


def _contents(item: dict[str, Any], files: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield the files of one archive; a wheel is read by ranges."""
    if item["filename"].endswith(".whl") and item.get("size"):
        with zipfile.ZipFile(refresh_index.RangeFile(item["url"], item["size"])) as archive:
            for name in set(archive.namelist()) & set(files):
                yield name, archive.read(name).decode()
        return
    for name, content in python_files(item, lambda path: path in files):
        yield name, content.decode()


def _bound(check: Check, texts: Mapping[str, str]) -> str:
    for file in check.files:
        if match := re.search(check.row["find"], texts.get(file, ""), re.MULTILINE):
            return plain(SpecifierSet(match[1] if match[1][0] in "<>=!~" else f">={match[1]}"))
    return ""


def windows_of(per_release: Mapping[Version, str]) -> dict[str, str]:
    """Return the bound of each run of releases with the same one.

    Lower bounds stay: the last run is open. Releases to come may accept more than an upper bound says.
    """
    runs = [(bound, list(run)) for bound, run in groupby(sorted(per_release), key=lambda one: per_release[one])]
    found = {}
    for at, (bound, run) in enumerate(runs):
        if bound:
            later = runs[at + 1][1][0] if at + 1 < len(runs) else None
            found[span_text(run[0], run[-1], later, open_end=later is None and not capped(bound))] = bound
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
    parser.add_argument("--cache", type=Path, required=True)
    rows = read_table("checked")["rows"]
    grouped: dict[str, list[Check]] = defaultdict(list)
    for key, row in rows.items():
        grouped[RowKey.of(key).caller].append(Check(key, row))
    parser.add_argument("--only", nargs="*", default=list(grouped))
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    for caller in options.only:
        per_release = bounds(caller, grouped[caller], options.cache)
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
