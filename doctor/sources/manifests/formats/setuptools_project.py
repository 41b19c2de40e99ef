"""setup.py and setup.cfg: the packages of a plain install of a setuptools project, and of its extras.

setup.py is parsed and never run. Only what its text states counts: lists and dicts of requirements, their sums, the
files that they are read from, and a table of requirements from which entries are taken by name. Where a part depends on
the machine or on code, the file is refused: only the build knows the dependencies.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from doctor.errors import fault
from doctor.sources.manifests.base import (
    MAX_BYTES,
    DeclaredRequirement,
    Manifest,
    all_read,
    left_out,
    without_conflicts,
)
from doctor.sources.watch import Watch
from doctor.util.reading import read_text
from doctor.util.redact import shortened

from .requirements import Reader, project_top
from .setup_script import ADVICE, BUILD_ONLY, File, Items, Text, arguments_of, requirements_file

EVERYTHING = "*"
#: Lines that name no requirement: empty ones, comments, and options that name an index.
_SKIPPED = re.compile(r"\s*(#.*)?|--?(i|f|extra-index-url|index-url|find-links)\b.*")


def read(path: Path, text: str, watch: Watch) -> Manifest:
    """Return the packages of a plain install; DoctorError where only the build knows them."""
    return read_extras(path, text, watch, ())


def read_extras(path: Path, text: str, watch: Watch, chosen: Sequence[str]) -> Manifest:
    """Return the packages of an install with these extras; `*` means all of them.

    Where a plain install brings no library that rules know, every extra is read, as for pyproject.toml.
    """
    always, extras = _of_cfg(path, text) if path.name.lower() == "setup.cfg" else arguments_of(path, text)
    named = {canonicalize_name(name): name for name in extras}
    unknown = [name for name in chosen if name != EVERYTHING and canonicalize_name(name) not in named]
    if unknown:
        known = ", ".join(sorted(extras)) or "none"
        raise fault(path, None, f"it has no extra `{shortened(unknown[0], 40)}`", f"it has: {known}")
    notes: list[str] = []
    entries = _entries(path, always, notes)
    taken = list(extras) if EVERYTHING in chosen else [named[canonicalize_name(name)] for name in chosen]
    for name in taken:
        entries += _entries(path, extras[name], notes)
    left = [name for name in extras if name not in taken]
    if left and not chosen and not any(entry.name in watch.distributions for entry in entries):
        more = [entry for name in left if extras[name].known for entry in _entries(path, extras[name], notes)]
        if any(entry.name in watch.distributions for entry in more):
            entries += without_conflicts(more, "the extras of")
            notes.append(all_read(path, "extra"))
            left = []
    if left:
        notes.append(left_out(path, left, "extras"))
    return Manifest(tuple(entries), (), False, "", tuple(dict.fromkeys(notes)))


def _entries(path: Path, items: Items, notes: list[str]) -> list[DeclaredRequirement]:
    """Return the requirements of a list, with those of the files that it names."""
    if not items.known:
        raise fault(path, None, BUILD_ONLY, ADVICE)
    reader = Reader(project_top(path))
    for item in items.items:
        if isinstance(item, File):
            text = read_text(item.path, "requirements of the project", MAX_BYTES)
            reader.file(item.path, text, (path.resolve(),), constraint=False)
        else:
            for number, line in enumerate(item.value.split("\n"), item.line):
                if not _SKIPPED.fullmatch(line):
                    reader.line(re.sub(r"(^|\s)#.*", "", line).strip(), path, number, line.strip())
    notes += reader.notes
    return reader.entries


def _of_cfg(path: Path, text: str) -> tuple[Items, dict[str, Items]]:
    """Return the dependencies and the extras of setup.cfg."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as problem:
        raise fault(path, None, f"not a setup.cfg: {shortened(' '.join(str(problem).split()), 100)}") from None
    always = _cfg_items(path, text, parser.get("options", "install_requires", fallback=""))
    section = "options.extras_require"
    extras = parser.items(section) if parser.has_section(section) else []
    return always, {name: _cfg_items(path, text, value) for name, value in extras}


def _cfg_items(path: Path, text: str, value: str) -> Items:
    """Return the items of one option: a requirement in each line, or `file: NAME, NAME`."""
    if value.strip().startswith("file:"):
        files = [requirements_file(path, name.strip(), 1) for name in value.strip().removeprefix("file:").split(",")]
        return Items([item for item in files if item], all(files))
    lines = text.split("\n")
    items: list[Text | File] = []
    for part in filter(None, (line.strip() for line in value.split("\n"))):
        number = next((number for number, line in enumerate(lines, 1) if part in line), 1)
        items.append(Text(part, number))
    return Items(items)
