"""Read YAML and JSON as text, mappings and lists, with line numbers and limits.

Scalars stay text, because plain YAML reads `2.10` as 2.1. Tags, huge files and documents that grow by aliases are
refused: files are untrusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from doctor.errors import DoctorError

MAX_NODES = 200_000
MAX_DEPTH = 60

#: Tags that plain YAML resolves to; any other is refused.
_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "null", "bool", "int", "float", "timestamp", "merge", "value", "seq", "map")
)

Lines = dict[tuple[str, ...], int]


def parse_yaml(text: str, origin: str) -> tuple[Any, Lines]:
    """Return the document as str, None, list and dict, and the line of every mapping key and list item by path."""
    import yaml  # most checks read JSON only

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if len(text) >= 100_000 or sum(map(text.count, ("[", "{", "- ", "? "))) >= 1000:  # else it cannot nest deeply
            _refuse_depth(yaml.parse(text, Loader=loader), origin)
        node = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 1
        why = problem.problem or "not YAML"
        if "nesting depth" in why:  # newer builds of libyaml have a limit of their own
            why = f"nested deeper than {MAX_DEPTH} levels"
        raise DoctorError(f"{origin}:{line}: {why}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as problem:
        first = str(problem).splitlines()[0] if str(problem) else "nested too deeply"
        raise DoctorError(f"{origin}: not YAML: {first}") from None
    lines: Lines = {}
    if node is None:
        return None, lines
    return _Builder(origin, lines).build(node, ()), lines


def parse_document(text: str, origin: str) -> tuple[Any, Lines]:
    """Return a document with the lines of its keys: parse YAML, or JSON with tabs, which YAML refuses."""
    try:
        return parse_yaml(text, origin)
    except DoctorError:
        if not text.lstrip().startswith("{"):
            raise
        try:
            return json.loads(text), {}
        except (ValueError, RecursionError):
            pass
        raise


def _refuse_depth(events: Iterable[Any], origin: str) -> None:
    """Raise DoctorError for a document nested so deeply that libyaml's recursive composer would crash."""
    depth = 0
    for event in events:
        kind = type(event).__name__
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            depth += 1
            if depth > MAX_DEPTH + 1:
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise DoctorError(f"{origin}:{line}: nested deeper than {MAX_DEPTH} levels")
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            depth -= 1


class _Builder:
    def __init__(self, origin: str, lines: Lines) -> None:
        self.origin, self.lines, self.count = origin, lines, 0

    def fail(self, node: Any, why: str) -> DoctorError:
        return DoctorError(f"{self.origin}:{node.start_mark.line + 1}: {why}")

    def build(self, node: Any, path: tuple[str, ...]) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise self.fail(node, "the document is too large (aliases of aliases?)")
        if len(path) > MAX_DEPTH:
            raise self.fail(node, f"nested deeper than {MAX_DEPTH} levels")
        self.lines[path] = node.start_mark.line + 1
        if node.tag and node.tag not in _TAGS:
            raise self.fail(node, f"the tag `{node.tag}` is not accepted")
        if node.id == "scalar":
            if node.tag == "tag:yaml.org,2002:null":
                return None
            return node.value
        if node.id == "sequence":
            return [self.build(child, (*path, str(index))) for index, child in enumerate(node.value)]
        return self.mapping(node, path)

    def mapping(self, node: Any, path: tuple[str, ...]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar":
                raise self.fail(key_node, "a key needs to be plain text")
            if key_node.tag == "tag:yaml.org,2002:merge":
                for part in value_node.value if value_node.id == "sequence" else [value_node]:
                    built = self.build(part, (*path, "<<"))
                    if not isinstance(built, dict):
                        raise self.fail(part, "`<<` needs a mapping")
                    merged = {**built, **merged}  # of several, the first wins
                continue
            if key_node.value in own:
                raise self.fail(key_node, f"`{key_node.value}` is given twice")
            here = (*path, key_node.value)
            own[key_node.value] = self.build(value_node, here)
            self.lines[here] = key_node.start_mark.line + 1
        return {**merged, **own}
