"""Write rules/index/known_names.json.xz: every name that a release of these packages had, beyond the name history.

    python scripts/release/make_known_names.py [--only PACKAGE ...]

`explain` then knows whether a name that a message misses was ever there. `rules/index/names` (make_name_history.py) has
the names that came or went; here is what that record leaves out: members and arguments of all models, and what all
releases have. The packages are in Python alone, so that their sources name everything. The sources are read by lines:
to parse a hundred releases would take hours.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent))
import make_name_history
import surfaces

from doctor.diagnosis.logs.names import recorded

OUT = make_name_history.OUT.parent / "known_names.json.xz"
PACKAGES = ("transformers", "trl", "peft", "accelerate")
#: Files whose names other code does not use: tests, converters, and what other files are generated from.
_OTHERS = re.compile(r"(?:^|/)(?:tests?|benchmarks?|examples?)/|/(?:convert|modular)_\w+\.py$")
_NO_NAME = re.compile(r"__|\d+$|\w+_DOCSTRING$")
#: Where a source names what others may use: definitions, members, attributes of objects and their other spellings.
_NAMED = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^\s*(?:async )?(?:def|class) (\w+)",
        r"^(\w+)\s*(?::[^=\n]+)?=",
        r"^    (\w+): ",
        r"\bself\.(\w+)\s*(?::[^=\n]+)?=[^=]",
        r"(?:register_buffer|register_parameter|add_module|setattr)\(\s*(?:\w+,\s*)?[\"'](\w+)[\"']",
    )
)
_ARGUMENTS = re.compile(r"\bdef \w+\(((?:[^()]|\([^()]*\))*)\)")
_ARGUMENT = re.compile(r"(?:^|,)\s*\*{0,2}(\w+)")
_IMPORTED = re.compile(r"^\s*from [\w.]+ import (?:\(([^)]*)\)|(.*))", re.MULTILINE)
_MAPPED = re.compile(r"attribute_map\s*=\s*\{([^}]*)\}")
_CLASS_BODY = re.compile(r"^class [^\n]*(?:\n(?: {4}[^\n]*)?)*", re.MULTILINE)
_MEMBER = re.compile(r"^    (\w+)\s*=", re.MULTILINE)
_WORD = re.compile(r"\w+")


def names_of(package: str) -> set[str]:
    """Return the names of all minor versions of a package."""
    roots, since, _ = make_name_history.PACKAGES[package]
    items = surfaces.releases_of(package, since)
    minors: dict[tuple[int, ...], Version] = {version.release[:2]: version for version in sorted(items)}
    found: set[str] = set()
    seen: set[bytes] = set()
    for version in sorted(minors.values()):
        for path, content in surfaces.python_files(items[version], lambda path: path.startswith(f"{roots[0]}/")):
            digest = hashlib.sha1(content).digest()
            if digest not in seen and not _OTHERS.search(path):
                seen.add(digest)
                found.update(names_in(content.decode("utf-8", "replace")), path.removesuffix(".py").split("/"))
        print(f"{package} {version}: {len(found)} names", flush=True)
    return {name for name in found if len(name) >= make_name_history.SHORTEST and not _NO_NAME.match(name)}


def names_in(source: str) -> Iterator[str]:
    """Yield the names that a source file gives to what others may use."""
    for pattern in _NAMED:
        yield from pattern.findall(source)
    for body in _CLASS_BODY.findall(source):
        yield from _MEMBER.findall(body)
    for arguments in _ARGUMENTS.findall(source):
        yield from _ARGUMENT.findall(arguments)
    for listed in (*_MAPPED.findall(source), *("".join(parts) for parts in _IMPORTED.findall(source))):
        yield from _WORD.findall(listed)


def main() -> None:
    """Read the releases of all packages and write what their history leaves out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=list(PACKAGES))
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    content = json.loads(lzma.decompress(given.out.read_bytes())) if given.out.is_file() else {}
    for package in given.only:
        content[package] = sorted(names_of(package) - recorded(package))
    given.out.write_bytes(lzma.compress(json.dumps(content, separators=(",", ":"), sort_keys=True).encode()))
    print({package: len(names) for package, names in content.items()}, given.out.stat().st_size)


if __name__ == "__main__":
    main()
