#!/usr/bin/env python3
"""Write `rules/tables/transformers_models.yaml`: the first and last transformers release that knows a model_type.

    python scripts/release/refresh_models.py --wheels FOLDER [--since 4.20.0] [--dry-run]

FOLDER keeps the wheels. Releases that are missing there are downloaded with pip, about 10 MB each. A release knows a
model_type if a `models/*/configuration_*.py` declares it or the table of `AutoConfig` names it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent))
from table_files import write_rows

_DECLARED = re.compile(r'^\s+model_type(?:\s*:\s*\w+)?\s*=\s*"([^"]+)"', re.MULTILINE)
_IN_TABLE = re.compile(r'\(\s*"([\w.-]+)",\s*"\w*Config\w*"')
_CONFIGURATION = re.compile(r"transformers/models/(?!auto/).*/configuration_\w+\.py")
_TABLES = ("transformers/models/auto/configuration_auto.py", "transformers/models/auto/auto_mappings.py")
_KEY = "workload.model_type"
#: release -> model type -> the folder that declares it
Known = Mapping[Version, Mapping[str, str]]


def released() -> list[Version]:
    """Return every final release that pip can install, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "transformers"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Available versions: (.*)", text)
    versions = [Version(item) for item in found[1].split(", ")] if found else []
    return sorted(version for version in versions if not version.is_prerelease)


def download(version: Version, folder: Path) -> Path:
    """Return the wheel of a release, downloaded where the folder lacks it."""
    path = folder / f"transformers-{version}-py3-none-any.whl"
    if not path.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", "3.12", "--dest", str(folder), f"transformers=={version}"]
        subprocess.run(command, check=True)
    return path


def types_in(wheel: Path) -> dict[str, str]:
    """Return the model types that a release knows, each with the folder that declares it (empty: the table alone)."""
    found: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name in _TABLES:
                for item in _IN_TABLE.findall(archive.read(name).decode()):
                    found.setdefault(item, "")
            elif _CONFIGURATION.fullmatch(name):
                folder = name.split("/")[-2]
                found.update(dict.fromkeys(_DECLARED.findall(archive.read(name).decode()), folder))
    return found


def spans(known: Known) -> tuple[dict[Version, list[str]], dict[tuple[Version, Version], list[str]]]:
    """Return (first release -> types it brought, (last release with, first without) -> types it dropped).

    A type counts as dropped only if the folder that declared it is gone: another spelling of the name is no removal.
    """
    order = sorted(known)
    first: dict[Version, list[str]] = defaultdict(list)
    dropped: dict[tuple[Version, Version], list[str]] = defaultdict(list)
    for name in sorted(set().union(*known.values())):
        having = [version for version in order if name in known[version]]
        later = [version for version in order if version > having[-1]]
        folder = known[having[-1]][name]
        if later and (not folder or folder in known[later[0]].values()):
            continue  # renamed: when a config of that name stops to load is not known
        first[having[0]].append(name)
        if later:
            dropped[having[-1], later[0]].append(name)
    return dict(first), dict(dropped)


def rows_of(known: Known) -> dict[str, Any]:
    """Return the rows of the table: the release that brought a type, and the last one before it went."""
    order = sorted(known)
    first, dropped = spans(known)
    brought = {}
    for release, names in sorted(first.items()):
        minor = Version(f"{release.major}.{release.minor}.0")
        # Development versions of a minor whose first release was withdrawn may know the type: 4.52.0.dev0.
        before = release if any(minor <= other < release for other in order) else minor
        brought[str(release) if before == release else f"{release} below {before}"] = sorted(names)
    gone = {f"{last} before {without}": sorted(names) for (last, without), names in sorted(dropped.items())}
    return {"newest": str(order[-1]), _KEY: {"brought": brought, "dropped": gone}}


def main() -> None:
    """Read the options, collect the types and write or print the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--since", type=Version, default=Version("4.20.0"))
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    options.wheels.mkdir(parents=True, exist_ok=True)
    releases = [version for version in released() if version >= options.since]
    known = {version: types_in(download(version, options.wheels)) for version in releases}
    rows = rows_of(known)
    if options.dry_run:
        json.dump(rows, sys.stdout, indent=1)
    else:
        write_rows("transformers_models", rows)


if __name__ == "__main__":
    main()
