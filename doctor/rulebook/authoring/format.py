"""The one YAML style of rule files: order of keys, quotes, line width; the content stays what it was.

A collection is written on one line where it fits and its place allows that, else one entry a line; one of scalars alone
is wrapped. `when`, `fix`, `references`, `signatures` and `tests` always take one entry a line. Anchors and comments
stay.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from doctor.errors import DoctorError
from doctor.rulebook.rule_fields import RULE
from doctor.rulebook.schema import LIBRARY
from doctor.rulebook.tables import TABLES
from doctor.util.atomic_write import write_atomically
from doctor.util.reading import read_text
from doctor.util.yaml_text import parse_yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
WIDTH = 120
MAX_BYTES = 1024 * 1024
ORDER = tuple(key for key in RULE if key != "tests")
#: Lists and mappings of a rule that take one entry a line, however short.
_ONE_A_LINE = ("when", "references", "proof", "signatures", "fix", "tests")
_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"
_AS_TEXT = ("tag:yaml.org,2002:str", _NULL)
_RESOLVED: Callable[[Any, str, tuple[bool, bool]], str] = yaml.SafeLoader("").resolve
_PLAIN = re.compile(r"[A-Za-z0-9_./(][^#:\[\]{},&*!|'\"%@`<>=\n\t\\]*")
_PROSE = re.compile(r"\S+(?: \S+)+")


def rule_files(paths: list[Path]) -> list[Path]:
    """Return the rule files among files and folders; DoctorError for a path without one."""
    found = []
    for path in paths:
        if path.is_dir():
            below = (file for file in path.rglob("*.yaml") if file.name != LIBRARY)
            found += sorted(file for file in below if file.parent.name != TABLES)
        elif path.is_file():
            found.append(path)
        else:
            raise DoctorError(f"`{path}` does not exist")
    if not found:
        raise DoctorError("there is no rule file", "name a rule or a folder of rules")
    return found


def format_file(path: Path, *, write: bool) -> bool:
    """Bring one file into the style; return whether it was in another. Without `write` nothing is changed."""
    text = read_text(path, "rule file", MAX_BYTES)
    new = formatted(text, str(path))
    if new == text:
        return False
    if write:
        write_atomically(path, new, like=path)
    return True


def formatted(text: str, origin: str = "rule") -> str:
    """Return a rule file in the one style; DoctorError where that would change its content."""
    content, _ = parse_yaml(text, origin)
    if not isinstance(content, dict):
        raise DoctorError(f"{origin}: a rule file needs a mapping")
    new = _Writer(text).document()
    try:
        yaml.compose(new, Loader=yaml.SafeLoader)  # stricter than libyaml, which reads it here
    except yaml.YAMLError as problem:
        raise DoctorError(f"{origin}: the style is not valid YAML: {problem}", "write it by hand") from None
    if parse_yaml(new, origin)[0] != content or formatted_comments(new) != formatted_comments(text):
        raise DoctorError(f"{origin}: the style cannot be applied without a change of content", "write it by hand")
    return new


def formatted_comments(text: str) -> list[str]:
    """Return the comments of a document, sorted."""
    return sorted(comment for found in _comments(text).values() for comment in found.texts)


@dataclass
class _Comment:
    """The comments of one line: those on lines of their own before it, and the one at its end."""

    above: list[str] = field(default_factory=list)
    behind: str = ""

    @property
    def texts(self) -> list[str]:
        return [*self.above, *([self.behind] if self.behind else [])]


class _Writer:
    """One document: its nodes, and the anchors and comments that PyYAML's nodes lack."""

    def __init__(self, text: str) -> None:
        self._root: Any = yaml.compose(text, Loader=_LOADER)
        self._anchors = _anchors(text)
        self._comments = _comments(text)
        self._written: set[int] = set()

    def document(self) -> str:
        """Return the whole document."""
        pairs = sorted(self._root.value, key=lambda pair: _rank(pair[0].value))
        lines: list[str] = []
        for key, value in pairs:
            lines += self._entry(key, value, 0, block=key.value in _ONE_A_LINE)
        return "\n".join([*lines, *self._left_over(), ""])

    def _left_over(self) -> list[str]:
        return [text for number in sorted(self._comments) for text in self._comments[number].texts]

    def _entry(self, key: Any, value: Any, indent: int, *, block: bool = False) -> list[str]:
        """Return the lines of `key: value`."""
        comment = self._taken(key.start_mark.line)
        pad = " " * indent
        head = f"{pad}{_scalar(key, flow=False)}:"
        lines = self._value(head, value, indent, block=block, name=key.value)
        return [*(f"{pad}{text}" for text in comment.above), _with_comment(lines[0], comment.behind), *lines[1:]]

    def _value(self, head: str, node: Any, indent: int, *, block: bool, name: str = "") -> list[str]:
        """Return the lines of a value behind `head`: on the same line where it fits, else below."""
        if id(node) in self._written and id(node) in self._named:
            return [f"{head} *{self._named[id(node)]}"]
        if isinstance(node, yaml.ScalarNode):
            return _long_scalar(head, node, indent, fold=name != "item of signatures")
        if not (block and node.value) and not self._has_comment(node):
            written = set(self._written)
            line = f"{head} {self._flow(node)}"
            if len(line) <= WIDTH or not node.value:
                return [line]
            self._written = written
            if all(isinstance(child, yaml.ScalarNode) for child in _children(node)):
                return self._wrapped(head, node, indent)
        anchor = self._anchor(node)
        head = f"{head} &{anchor}" if anchor else head
        if isinstance(node, yaml.SequenceNode):
            return [head, *self._items(node, indent + 2, name)]
        return [head, *self._entries(node, indent + 2)]

    def _wrapped(self, head: str, node: Any, indent: int) -> list[str]:
        """Return a collection of scalars in brackets, on as many lines as it takes."""
        anchor = self._anchor(node)
        head = f"{head} &{anchor}" if anchor else head
        opening, closing = "[]" if isinstance(node, yaml.SequenceNode) else "{}"
        parts = [self._flow(child) for child in node.value] if opening == "[" else [
            f"{_scalar(key, flow=True)}: {self._flow(value)}" for key, value in node.value
        ]  # fmt: skip
        line, lines = f"{head} {opening}{parts[0]}", []
        for part in parts[1:]:
            if len(line) + len(part) + 3 > WIDTH:
                lines.append(f"{line},")
                line = f"{' ' * (indent + 2)}{part}"
            else:
                line = f"{line}, {part}"
        return [*lines, f"{line}{closing}"]

    def _entries(self, node: Any, indent: int) -> list[str]:
        lines: list[str] = []
        for key, value in node.value:
            lines += self._entry(key, value, indent)
        return lines

    def _items(self, node: Any, indent: int, name: str) -> list[str]:
        """Return a list, one item a line; a mapping of `fix`, or one that fits no line, has one key a line."""
        pad = " " * indent
        lines: list[str] = []
        for item in node.value:
            if self._opens(item, indent, name):
                inner = self._entries(item, indent + 2)
                first = next(number for number, line in enumerate(inner) if not line.lstrip().startswith("#"))
                inner[first] = f"{pad}- {inner[first].lstrip()}"
                lines += inner
                continue
            comment = self._taken(item.start_mark.line)
            found = self._value(f"{pad}-", item, indent, block=False, name=f"item of {name}")
            lines += [*(f"{pad}{text}" for text in comment.above), _with_comment(found[0], comment.behind), *found[1:]]
        return lines

    def _opens(self, item: Any, indent: int, name: str) -> bool:
        """Whether a mapping in a list takes one key a line, the first behind the dash."""
        if not isinstance(item, yaml.MappingNode) or not item.value or id(item) in self._named:
            return False
        if name == "fix" or self._has_comment(item):
            return True
        written = set(self._written)
        fits = indent + 2 + len(self._flow(item)) <= WIDTH
        self._written = written
        return not fits

    def _flow(self, node: Any) -> str:
        """Return a node on one line."""
        if id(node) in self._named and id(node) in self._written:
            return f"*{self._named[id(node)]}"
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, flow=True)
        anchor = self._anchor(node)
        prefix = f"&{anchor} " if anchor else ""
        if isinstance(node, yaml.SequenceNode):
            return f"{prefix}[{', '.join(map(self._flow, node.value))}]"
        pairs = (f"{_scalar(key, flow=True)}: {self._flow(value)}" for key, value in node.value)
        return f"{prefix}{{{', '.join(pairs)}}}"

    @property
    def _named(self) -> Mapping[int, str]:
        """Return the anchor of each node that has one, by its identity."""
        found = self.__dict__.get("_by_identity")
        if found is None:
            places = self._anchors
            found = {
                id(node): places[node.start_mark.index] for node in _nodes(self._root)
                if node.start_mark.index in places and not isinstance(node, yaml.ScalarNode)
            }  # fmt: skip
            self.__dict__["_by_identity"] = found
        return found

    def _anchor(self, node: Any) -> str | None:
        self._written.add(id(node))
        return self._named.get(id(node))

    def _has_comment(self, node: Any) -> bool:
        first, last = node.start_mark.line, node.end_mark.line
        if id(node) in self._named and id(node) in self._written and not isinstance(node, yaml.ScalarNode):
            return False
        return any(first < number <= last for number in self._comments)

    def _taken(self, number: int) -> _Comment:
        return self._comments.pop(number, _Comment())


def _with_comment(line: str, comment: str) -> str:
    return f"{line} {comment}" if comment else line


def _rank(key: str) -> tuple[int, int]:
    if key in ORDER:
        return 0, ORDER.index(key)
    return (1, 0) if key.startswith("x-") else (2, 0) if key == "tests" else (0, len(ORDER))


def _children(node: Any) -> Iterator[Any]:
    """Yield the values of a collection; an alias of a merge counts as one that fits a line."""
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    else:
        yield from (key if key.tag == _MERGE else value for key, value in node.value)


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from (key, *_nodes(value))
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _nodes(item)


def _anchors(text: str) -> dict[int, str]:
    """Return the anchor of the node that begins at each place."""
    found = {}
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent) and event.anchor and event.start_mark:
            found[event.start_mark.index] = str(event.anchor)
    return found


def _comments(text: str) -> dict[int, _Comment]:
    """Return the comments by the line to which they belong."""
    ends: dict[int, int] = {}
    inside: set[int] = set()
    lines = text.splitlines()
    for token in yaml.scan(text, Loader=_LOADER):
        first, last = token.start_mark, token.end_mark
        if isinstance(token, yaml.ScalarToken) and token.style in ("|", ">"):
            inside.update(range(first.line + 1, last.line + (last.column > 0)))
            continue  # the header may have a comment; none is written here
        inside.update(range(first.line, last.line) if isinstance(token, yaml.ScalarToken) else ())
        if last.index > first.index:
            ends[last.line] = max(ends.get(last.line, 0), last.column)
    found: dict[int, _Comment] = {}
    above: list[str] = []
    for number, line in enumerate(lines):
        if number in inside and number not in ends:
            continue
        rest = line[ends.get(number, 0) :].strip()
        if number not in ends and rest.startswith("#"):
            above.append(rest)
        elif number in ends and (above or rest.startswith("#")):
            found[number] = _Comment(above, rest if rest.startswith("#") else "")
            above = []
    if above:
        found[len(lines)] = _Comment(above)
    return found


def _scalar(node: Any, *, flow: bool) -> str:
    """Return a scalar on one line: plain where that is its text, else in double quotes, in single ones with either."""
    value: str = node.value
    if node.tag == _NULL:
        return "null"
    if node.tag == _MERGE:
        return "<<"
    if _is_plain(value, flow=flow) and not _needs_quotes(node):
        return value
    if '"' not in value and "\\" not in value and value.isprintable():
        return f'"{value}"'
    if value.isprintable():
        quoted = value.replace("'", "''")
        return f"'{quoted}'"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _needs_quotes(node: Any) -> bool:
    """Whether a reader of YAML with types takes a text for something else: `2.10` for 2.1, `no` for false.

    A number that stays what it is has quotes only where its author wrote them.
    """
    if _RESOLVED(yaml.ScalarNode, node.value, (True, False)) in _AS_TEXT:
        return False
    return node.style in ("'", '"') or _is_changed(node.value)


@functools.cache
def _is_changed(value: str) -> bool:
    return str(yaml.safe_load(value)) not in (value, value.title())


def _is_plain(value: str, *, flow: bool) -> bool:
    """Whether a text may be written without quotes, here and for any reader of YAML that resolves nothing but null."""
    if not value or value != value.strip() or value.lower() in ("null", "~") or not value.isprintable():
        return False
    if _PLAIN.fullmatch(value):
        return True
    if value[0] in "-?:,[]{}#&*!|>'\"%@`<=~" or ": " in value or " #" in value or value.endswith(":"):
        return False
    return not (flow and re.search(r"[,\[\]{}?]|:(?!//)", value))


def _long_scalar(head: str, node: Any, indent: int, *, fold: bool) -> list[str]:
    """Return a scalar behind `head`; prose of several lines as a block, a longer line folded."""
    value: str = node.value
    pad = " " * (indent + 2)
    if "\n" in value and _is_block(value):
        style = "|" if value.endswith("\n") else "|-"
        return [f"{head} {style}", *(f"{pad}{line}" if line else "" for line in value.rstrip("\n").split("\n"))]
    line = f"{head} {_scalar(node, flow=False)}"
    if len(line) <= WIDTH or not fold or not _PROSE.fullmatch(value) or node.tag == _NULL:
        return [line]
    return [f"{head} >-", *(f"{pad}{text}" for text in _wrapped(value, WIDTH - len(pad)))]


def _is_block(value: str) -> bool:
    body = value.rstrip("\n")
    ends_well = value == body or value == f"{body}\n"
    return ends_well and all(line == line.rstrip() and line.isprintable() for line in body.split("\n")) and (
        not body.startswith((" ", "\n"))
    )  # fmt: skip


def _wrapped(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line
