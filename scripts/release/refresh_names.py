"""Bring the record of package names and releases in install commands up to date.

    python scripts/release/refresh_names.py [--only NAME …] [--dry-run]

The names come from `require:` and from every `pip install` or `uv pip install` in the texts of rules/, README.md and
docs/. Names without a record are looked up with `pip index versions`, for two Pythons: pip shows the files of one only.
The record is `tests/data/registry_names.json`: the date, `releases` (the known releases of a registered name, which
rules/index/ need not hold), `unregistered` (names that the registry does not have) and `unchecked` (ranges that no
recorded release decides; a look-up of the name removes them). tests/rulebook/test_install_names.py compares the rules
with it, without a network.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import gzip
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from doctor.packages.index import load_index  # noqa: E402
from doctor.rulebook import tables  # noqa: E402

RECORD = ROOT / "tests" / "data" / "registry_names.json"
OLD_PYTHON = "3.8"
#: Texts of a rule that quote what others print, or that no user reads.
QUOTED = ("tests", "signatures", "references", "when", "confirm")
_INSTALL = re.compile(r"(?:\buv pip|\bpip3?)\s+(?:install|download|wheel(?= -))\s+((?:(?!&&|\|\|)[^`\n])*)")
_END = re.compile(r"&&|\|\||[;|>)]$|^[|;(&—–]|^\d*>")
_PATH = re.compile(r"^(?:[./~]|git\+|https?:|[A-Z]+\.whl|.*\.(?:whl|txt|tar\.gz)$)")
#: Options that take a value as the next word.
VALUED = {
    "-i",
    "-f",
    "-c",
    "-r",
    "-e",
    "--index-url",
    "--extra-index-url",
    "--find-links",
    "--index",
    "--config-settings",
    "--no-binary",
    "--only-binary",
    "--constraint",
    "--requirement",
    "--python",
    "--target",
    "-C",
    "--dest",
    "-d",
}
#: Words of a sentence: a command that runs into prose would be read as a list of packages.
PROSE = {
    "a",
    "an",
    "the",
    "this",
    "that",
    "of",
    "for",
    "from",
    "in",
    "with",
    "and",
    "or",
    "to",
    "is",
    "was",
    "no",
    "than",
    "none",
    "brings",
    "fails",
    "where",
    "whose",
    "keeps",
    "found",
    "its",
    "another",
    "other",
    "alone",
    "would",
}
#: A placeholder for a release in an example: VERSION, RELEASE_OF_X, <the release>, an ellipsis, a field of the log.
_OPEN = re.compile(r"(?:==|>=|<=|~=|<|>)?(?:\{[^}]*\}|<[^>]*>|[A-Z][A-Z_]{3,}|…|\.\.\.).*$")
#: Options that replace the usual registry.
OTHER_INDEX = ("-i", "-f", "--index-url", "--find-links")


#: The line of a name that may replace `{log.package}`.
IN_LOGS = "named by a log"


class Wanted(NamedTuple):
    """One requirement that a text or a fix names; `elsewhere` where the line names the index it comes from."""

    where: str
    name: str
    range: str
    elsewhere: bool = False
    line: str = ""


class Unreadable(NamedTuple):
    """A word of an install line that is neither an option, a path, an address nor a requirement."""

    where: str
    word: str
    line: str


def install_lines(text: str) -> Iterator[str]:
    """Yield what follows `pip install` in a text, each up to the end of its command."""
    for found in _INSTALL.finditer(text):
        yield found[1].strip()


def words_of(line: str) -> list[str]:
    """Return the words of one command; what follows it in the sentence is left out."""
    line = line.partition('"$(')[0]  # computed from what is installed
    try:
        parts = shlex.split(re.sub(r"(?<=\w)'(?=\w)", "", line), posix=False)
    except ValueError:
        parts = line.split()
    words = []
    for part in parts:
        if _END.search(part) and part[0] not in "'\"":
            if part[-1] in ";)":
                words.append(part.rstrip(";)"))
            break
        words.append(part.rstrip(",:.").strip("'\"") if part not in (".", "..") else part)
        if part[-1] in ",:":
            break
    return [word for word in words if word]


def wanted_of(line: str, where: str) -> Iterator[Wanted | Unreadable]:
    """Yield the requirements of one install line."""
    words = words_of(line)
    elsewhere = any(word.split("=")[0] in OTHER_INDEX for word in words)
    skip = False
    for word in words:
        if skip or word.startswith("-"):
            skip = not skip and word in VALUED
            continue
        if _PATH.search(word) or word.startswith("{log.") or re.search(r"@\s*(?:git\+|https?:)", word):
            continue
        try:
            found = Requirement(_OPEN.sub("", word) or "torch")  # PACKAGE means any
        except InvalidRequirement:
            yield Unreadable(where, word, line)
            continue
        if word in PROSE:
            yield Unreadable(where, word, line)
        elif found.url is None:
            yield Wanted(where, canonicalize_name(found.name), str(found.specifier), elsewhere, line)


def texts_of(node: Any, key: str = "") -> Iterator[str]:
    """Yield every text of a rule that a user may read."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            if name not in QUOTED or (name == "when" and key == "fix"):
                yield from texts_of(value, str(name))
    elif isinstance(node, list):
        for value in node:
            yield from texts_of(value, key)
    elif isinstance(node, str):
        yield node


def required_by(node: Any, where: str) -> Iterator[Wanted]:
    """Yield what the `require:` of a rule's fixes name."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            if name == "require" and isinstance(value, Mapping):
                elsewhere = "index_url" in node
                yield from (Wanted(where, package, str(text), elsewhere) for package, text in value.items())
            elif name not in QUOTED:
                yield from required_by(value, where)
    elif isinstance(node, list):
        for value in node:
            yield from required_by(value, where)


def all_wanted(root: Path = ROOT) -> Iterator[Wanted | Unreadable]:
    """Yield every requirement that rules, documents and program texts name."""
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    for path in sorted((root / "rules").rglob("*.yaml")):
        where = path.relative_to(root).as_posix()
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
        for one in [made.body for made in tables.expanded(content)] if tables.is_table(content) else [content]:
            yield from wanted_in(one, where, is_library=path.name == "library.yaml")
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        for line in install_lines(path.read_text(encoding="utf-8")):
            yield from wanted_of(line, path.relative_to(root).as_posix())


def wanted_in(content: Any, where: str, *, is_library: bool) -> Iterator[Wanted | Unreadable]:
    """Yield every requirement that one rule or library names."""
    yield from required_by(content, where)
    if is_library:
        yield from (Wanted(where, canonicalize_name(name), "", line=IN_LOGS) for name in in_logs(content))
    for text in texts_of(content):
        for line in install_lines(text):
            for one in expanded(line, content):
                yield from wanted_of(one, where)


def in_logs(library: Mapping[str, Any]) -> set[str]:
    """Return the distributions of a library that the line of a log may bring into a command."""
    return {*library.get("distributions", ()), *library.get("modules", {}).values()} - {
        *library.get("unregistered", ())
    }


def expanded(line: str, rule: Mapping[str, Any]) -> list[str]:
    """Return the line with every value of the groups in it that a signature lists: `(?P<part>nccl|cublas)`."""
    lines = [line]
    for name in set(re.findall(r"-\{log\.(\w+)\}|-cu\{log\.(\w+)\}", line)):
        group = "".join(name)
        values = re.findall(rf"\(\?P<{group}>([\w|]+)\)", json.dumps(rule.get("signatures", ())))
        words = {word for value in values for word in value.split("|")}
        lines = [text.replace(f"{{log.{group}}}", word) for text in lines for word in sorted(words)] or lines
    return lines


def versions_of(name: str) -> tuple[str, ...] | None:
    """Return every release that pip finds, oldest first; None for a name that the registry does not have."""
    found: set[str] = set()
    pip = [sys.executable, "-m", "pip", "index", "versions", name, "--pre", "--ignore-requires-python"]
    for options in ((), ("--only-binary=:all:", "--python-version", OLD_PYTHON)):
        answer = subprocess.run([*pip, *options], capture_output=True, text=True, check=False)
        if answer.returncode and "No matching distribution" not in answer.stderr:
            raise SystemExit(f"{name}: pip has no answer: {answer.stderr.strip().splitlines()[-1:]}")
        line = re.search(r"^Available versions: (.*)$", answer.stdout, re.M)
        found.update(line[1].split(", ") if line else ())
    return tuple(sorted(filter(is_version, found), key=Version)) if found else None


def is_version(text: str) -> bool:
    """Whether a text is a version; names of old files are not always one."""
    try:
        return bool(Version(text))
    except InvalidVersion:
        return False


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """Return the record; empty where there is none yet."""
    empty: dict[str, Any] = {"date": "", "releases": {}, "unregistered": [], "unchecked": {}}
    return {**empty, **(json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {})}


@functools.cache
def releases_of(name: str) -> tuple[str, ...]:
    """Return every release of a package that some record holds."""
    history = ROOT / "rules" / "index" / "names" / f"{name}.json.gz"
    of_history = json.loads(gzip.decompress(history.read_bytes()))["releases"] if history.is_file() else ()
    return (*load_index().releases(name), *read_record()["releases"].get(name, "").split(), *of_history)


@functools.cache
def has_release(name: str, wanted: str) -> bool | None:
    """Return whether a recorded release is in the range; None where the record decides nothing."""
    specifiers = SpecifierSet(re.sub(r"\+[\w.]+", "", wanted))  # a build of that release from another index
    if any(specifiers.contains(text, prereleases=True) for text in releases_of(name) if is_version(text)):
        return True
    known = name in load_index() or len(read_record()["releases"].get(name, "").split()) > 1
    return False if known and wanted not in read_record()["unchecked"].get(name, ()) else None


def write_record(record: Mapping[str, Any], path: Path = RECORD) -> None:
    """Write the record with one package a line."""
    parts = []
    for key, content in record.items():
        if isinstance(content, Mapping):
            rows = (f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(content.items()))
            parts.append(f'  "{key}": {{\n' + ",\n".join(rows) + "\n  }")
        else:
            parts.append(f'  "{key}": {json.dumps(content)}')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def main() -> int:
    """Refresh the record and print what changed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="look up these (default: names without a record)")
    parser.add_argument("--dry-run", action="store_true", help="print the names that would be looked up")
    arguments = parser.parse_args()
    record, index = read_record(), load_index()
    known = {*record["releases"], *record["unregistered"], *index.packages}
    names = arguments.only or sorted({item.name for item in all_wanted() if isinstance(item, Wanted)} - known)
    print("looked up:", ", ".join(names) or "none")
    for name in () if arguments.dry_run else names:
        versions = versions_of(name)
        record["unregistered"] = sorted({*record["unregistered"], name} - ({name} if versions else set()))
        record["releases"].pop(name, None)
        if versions:
            record["releases"][name] = " ".join(versions)
            record["unchecked"].pop(name, None)
        print(f"{name}: {len(versions or ())} releases")
    if names and not arguments.dry_run:
        record["date"] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        write_record(record)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
