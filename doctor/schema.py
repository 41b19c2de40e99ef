"""What a rule file and a library file may say; a fault is told with file, line and the nearest known key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .conditions import parse_conditions
from .errors import DoctorError
from .model import SEVERITIES
from .vocabulary import nearest
from .yamltext import Lines, parse_yaml, read_text

RULE_KEYS = (
    "id", "name", "since", "severity", "summary", "why", "references", "when", "disables", "fails_at_run",
    "import_error", "stage", "weight", "message", "needs", "signatures", "category", "confirm", "fix", "no_pin",
    "myth", "tests",
)  # fmt: skip
RULE_NEEDED = ("id", "name", "summary", "references", "when")
FIX_KEYS = ("require", "set_env", "unset_env", "config", "call", "note", "safe", "index_url")
LIBRARY_KEYS = (
    "name", "title", "distributions", "import_name", "environment", "references", "releases", "applies", "backends",
    "preference", "variants", "stages", "implies", "gpus",
    "cuda_drivers",
)  # fmt: skip
TEST_KEYS = ("given", "expect", "missing", "message")


@dataclass(frozen=True)
class Source:
    """One file of the rulebook as its author sees it: content, and the line of every part of it."""

    kind: str  # library | rule
    library: str
    path: str
    content: dict[str, Any]
    lines: Lines

    def line(self, *at: str) -> int:
        """The line of a part, or of the nearest part around it."""
        return next((self.lines[at[:end]] for end in range(len(at), -1, -1) if at[:end] in self.lines), 1)


def read_file(path: Path) -> tuple[str, str, str, dict[str, Any]]:
    """One file, checked: (library | rule, library name, path, content)."""
    source = read_source(path)
    return source.kind, source.library, source.path, source.content


def read_source(path: Path) -> Source:
    """One file, checked, with the lines of its parts."""
    content, lines = parse_yaml(read_text(path, "rule file"), str(path))
    if not isinstance(content, dict):
        raise DoctorError(f"{path}:1: a rule file needs a mapping")
    if path.name == "library.yaml":
        _known_keys(path, lines, content, LIBRARY_KEYS, ())
        if "name" not in content:
            raise DoctorError(f"{path}:1: `name` is missing")
        _check_library(path, lines, content)
        return Source("library", str(content["name"]), str(path), content, lines)
    check_rule(path, lines, content)
    return Source("rule", path.parent.name, str(path), content, lines)


def check_rule(path: Path, lines: Lines, content: dict[str, Any]) -> None:
    """DoctorError for the first thing in a rule that does not fit the format."""
    _known_keys(path, lines, content, RULE_KEYS, ())
    for key in RULE_NEEDED:
        if not content.get(key):
            raise DoctorError(f"{path}:1: `{key}` is missing")
    severity = content.get("severity")
    if severity is not None and severity not in SEVERITIES:
        raise _fault(path, lines, ("severity",), f"`severity` needs one of {', '.join(SEVERITIES)}, found `{severity}`")
    if severity is None and not (content.get("disables") or content.get("import_error") or content.get("fails_at_run")):
        raise DoctorError(f"{path}:1: `severity` is missing, and the rule disables no backend either")
    _check_condition(path, lines, content["when"], ("when",))
    for index, item in enumerate(content.get("fix") or ()):
        if not isinstance(item, dict):
            raise _fault(path, lines, ("fix", str(index)), "a fix needs a mapping")
        _known_keys(path, lines, item, FIX_KEYS, ("fix", str(index)))
    for name, test in (content.get("tests") or {}).items():
        if not isinstance(test, dict) or "given" not in test or "expect" not in test:
            raise _fault(path, lines, ("tests", name), f"test `{name}` needs `given` and `expect`")
        _known_keys(path, lines, test, TEST_KEYS, ("tests", name))


def _check_condition(path: Path, lines: Lines, when: Any, at: tuple[str, ...]) -> None:
    if not isinstance(when, dict):
        raise _fault(path, lines, at, "a condition needs a mapping of fact keys")
    for key, wanted in when.items():
        here = (*at, key)
        if key in ("all", "any") and isinstance(wanted, list):
            for index, item in enumerate(wanted):
                _check_condition(path, lines, item, (*here, str(index)))
        elif key == "not":
            _check_condition(path, lines, wanted, here)
        else:
            try:
                parse_conditions({key: wanted})
            except DoctorError as problem:
                raise _fault(path, lines, here, problem.message, problem.hint) from None


def _check_library(path: Path, lines: Lines, content: dict[str, Any]) -> None:
    backends = [item.get("id") for item in content.get("backends") or ()]
    variants = content.get("variants") or {}
    orders = [("preference",), *(("variants", backend) for backend in variants)]
    for at in orders:
        items = content.get("preference") if at == ("preference",) else variants[at[1]]
        for index, item in enumerate(items or ()):
            if item.get("when"):
                _check_condition(path, lines, item["when"], (*at, str(index), "when"))
            for name in item.get("order") or ():
                if name not in backends:
                    raise _fault(path, lines, (*at, str(index)), f"unknown backend `{name}`", nearest(name, backends))
    for key in ("implies", "stages"):
        for index, item in enumerate(content.get(key) or ()):
            if isinstance(item, dict) and item.get("when"):
                _check_condition(path, lines, item["when"], (key, str(index), "when"))
    if content.get("applies"):
        _check_condition(path, lines, content["applies"], ("applies",))


def _known_keys(path: Path, lines: Lines, content: dict[str, Any], known: tuple[str, ...], at: tuple[str, ...]) -> None:
    for key in content:
        if key not in known and not key.startswith("x-"):  # x-…: anchors for the tests
            raise _fault(path, lines, (*at, key), f"unknown key `{key}`", nearest(key, known))


def _fault(path: Path, lines: Lines, at: tuple[str, ...], message: str, hint: str | None = None) -> DoctorError:
    line = next((lines[at[:end]] for end in range(len(at), -1, -1) if at[:end] in lines), 1)
    return DoctorError(f"{path}:{line}: {message}", hint)
