"""Read rule and library files; a fault is reported with file, line and the nearest known key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from doctor.errors import DoctorError
from doctor.facts.derived.registry import TEMPLATES, declare_facts_of
from doctor.facts.libraries.frameworks import declare_dependent_facts, declare_frameworks
from doctor.util.reading import read_text
from doctor.util.yaml_text import Lines, parse_yaml

from .fields import DISTRIBUTION
from .library_fields import FRAMEWORKS_KIND, LIBRARY_KIND
from .rule_fields import RULE_KIND
from .shape import Shape
from .tables import TableFault, expanded, is_table

LIBRARY = "library.yaml"  # the file that describes the library of a folder
MAX_BYTES = 1024 * 1024  # of one rule file


class Source(NamedTuple):
    """One rule or library as its author sees it: content, and the line of every part of it; of a row, its own."""

    kind: str  # library | rule
    library: str
    path: str
    content: dict[str, Any]
    lines: Lines
    in_table: bool = False

    def line(self, *at: str) -> int:
        """The line of a part, or of the nearest part around it."""
        return Shape(self.path, self.lines).line(at)


def read_sources(path: Path) -> list[Source]:
    """Return the rule or the library in a file, or all that a table holds; checked, with their lines."""
    return checked_sources(path, *parsed_file(path))


def parsed_file(path: Path) -> tuple[Shape, Any]:
    """Return the content of a rule file, and the lines of its parts."""
    content, lines = parse_yaml(read_text(path, "rule file", MAX_BYTES), str(path))
    return Shape(str(path), lines), content


def checked_sources(path: Path, shape: Shape, content: Any) -> list[Source]:
    """Return what a file states, as `read_sources`; its content is parsed already."""
    if is_table(content):
        return _rows(shape, content)
    if path.name == LIBRARY:
        declare_words(shape, content)
        check_library(shape, content)
        return [Source("library", content["name"], str(path), content, shape.lines)]
    check_rule(shape, content)
    return [Source("rule", path.parent.name, str(path), content, shape.lines)]


def _rows(shape: Shape, content: dict[str, Any]) -> list[Source]:
    """Return the rules and libraries of a table; a fault in one is reported at its row."""
    found = []
    try:
        for kind, library, body, at in expanded(content):
            row = Shape(shape.path, {(): shape.line(at)})
            (check_library if kind == "library" else check_rule)(row, body)
            found.append(Source(kind, library, shape.path, body, row.lines, in_table=True))
    except TableFault as fault:
        raise shape.fault(fault.at, fault.message) from None
    return found


def read_source(path: Path) -> Source:
    """Return the one rule or library in a file, with the lines of its parts."""
    first, *more = read_sources(path)
    if more:
        raise DoctorError(f"{path}:1: this is a table of {len(more) + 1} rules", "name one of them by its id")
    return first


def check_rule(shape: Shape, content: Any) -> None:
    """DoctorError for the first thing in a rule that does not fit the format."""
    RULE_KIND.check(shape, content, ())


def check_library(shape: Shape, content: Any) -> None:
    """DoctorError for the first thing in a library file that does not fit the format."""
    LIBRARY_KIND.check(shape, content, ())


def declare_words(shape: Shape, content: Any) -> None:
    """Add the words of a library to the vocabulary; DoctorError for a faulty one. Conditions may name them then."""
    if not isinstance(content, dict):
        return
    _declare_facts(shape, content.get("packages"))
    rows = content.get("frameworks")
    if rows is None:
        return
    FRAMEWORKS_KIND.check(shape, rows, ("frameworks",))
    try:
        declare_frameworks(str(content.get("name")), rows)
        declare_dependent_facts()
    except DoctorError as problem:
        raise shape.fault(("frameworks",), problem.message, problem.hint) from None


def _declare_facts(shape: Shape, packages: Any) -> None:
    for package, row in packages.items() if isinstance(packages, dict) else ():
        if isinstance(row, dict) and "facts" in row:
            at = ("packages", str(package))
            DISTRIBUTION.check(shape, package, at)
            shape.items(shape.choice(TEMPLATES))(row["facts"], (*at, "facts"))
            declare_facts_of(package, row["facts"])
