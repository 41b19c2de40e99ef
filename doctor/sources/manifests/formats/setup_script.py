"""What the text of a setup.py passes to `setup`: lists and tables of requirements, and files that it reads them from.

The script is parsed and never run. Its statements are followed in order; what a condition, a loop or the machine
decides is unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name

from doctor.errors import fault
from doctor.sources.manifests.base import MOST_ENTRIES
from doctor.util.reading import contained

from .requirements import project_top

BUILD_ONLY = "only the build knows the dependencies"
ADVICE = "name a requirements file"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LIST = re.compile(r"[\w./-]*requirements?[\w./-]*|[\w./-]+\.(?:txt|in)", re.IGNORECASE)


@dataclass(frozen=True)
class Text:
    """A text of the script and its line."""

    value: str
    line: int


@dataclass(frozen=True)
class File:
    """A requirements file that the script reads."""

    path: Path
    line: int


@dataclass
class Items:
    """A list of requirements; `known` is false once something unknown was added."""

    items: list[Text | File] = field(default_factory=list)
    known: bool = True


class _Unknown:
    """A value that only a run of the script knows."""


_Value = Text | File | Items | dict[str, "_Value"] | _Unknown
_UNKNOWN = _Unknown()


def requirements_file(path: Path, name: str, line: int) -> File | None:
    """Return the requirements file that a script names, None where it is none or not within the project."""
    if not _LIST.fullmatch(name) or name.endswith((".py", ".md", ".rst", ".toml")):
        return None
    target = path.parent / name
    return File(target, line) if contained(target, project_top(path)) and target.is_file() else None


def arguments_of(path: Path, text: str) -> tuple[Items, dict[str, Items]]:
    """Return the dependencies and the extras that the call of `setup` states."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError) as problem:
        line = getattr(problem, "lineno", None)
        raise fault(path, line, "not a Python script of this Python version") from None
    script = _Script(path, tree)
    script.run(tree.body)
    if script.call is None:
        raise fault(path, None, "it does not call `setup`", ADVICE)
    always = script.option("install_requires")
    extras = script.option("extras_require")
    if always is None and extras is None:
        return Items(), {}
    line = script.call.lineno
    items = Items() if always is None else _items(always)
    if items is None:
        raise fault(path, line, BUILD_ONLY, ADVICE)
    groups = {name: _items(value) for name, value in extras.items()} if isinstance(extras, dict) else {}
    return items, {name: group if group is not None else Items([], False) for name, group in groups.items()}


def _items(value: _Value) -> Items | None:
    """Return a value as a list of requirements, None where it is none or unknown."""
    if isinstance(value, Items):
        return value if value.known else None
    return Items([value]) if isinstance(value, Text | File) else None


class _Script:
    """The values of names that the text of a setup.py states, and the arguments of its call of `setup`."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self.names: dict[str, _Value] = {}
        self.functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        self._ends = {name for name, node in self.functions.items() if any(map(_calls_setup, ast.walk(node)))}
        #: A function -> the files that it names, unless they depend on the machine.
        self._files_of: dict[str, list[File] | None] = {}
        self.call: ast.Call | None = None
        self._arguments: dict[str, _Value] = {}

    def option(self, name: str) -> _Value | None:
        """Return an argument of `setup`, None where it is not given."""
        return self._arguments.get(name)

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Follow statements in order; what a condition or a loop changes is unknown afterwards."""
        for node in body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, self._value(node.value))
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(node.target, self._value(node.value))
            elif isinstance(node, ast.AugAssign):
                self._extend(node.target, self._value(node.value))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                self._expression(node.value)
            elif isinstance(node, ast.With):
                for item in node.items:
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, self._value(item.context_expr))
                self.run(node.body)
            elif isinstance(node, ast.Try) or (isinstance(node, ast.If) and _is_main(node.test)):
                self.run(node.body)
            elif isinstance(node, ast.If | ast.For | ast.While):
                self._forget(node)
                self._find_call(node)

    def _expression(self, node: ast.Call) -> None:
        """Follow `setup(…)`, `x.append(…)`, `x.extend(…)`, and a call of a function that calls `setup`."""
        called = node.func
        if _name_of(called) in ("setup", "setuptools.setup"):
            self._call(node)
        elif isinstance(called, ast.Attribute) and called.attr in ("append", "extend") and node.args:
            self._extend(called.value, self._value(node.args[0]))
        elif isinstance(called, ast.Attribute) and called.attr in ("update", "insert", "remove", "pop"):
            self._assign(called.value, _UNKNOWN)
        elif isinstance(called, ast.Name) and called.id in self._ends:
            self._ends.remove(called.id)
            self.run(self.functions[called.id].body)

    def _call(self, node: ast.Call) -> None:
        self.call = node
        for keyword in node.keywords:
            value = self._value(keyword.value)
            if keyword.arg is not None:
                self._arguments[keyword.arg] = value
            elif isinstance(value, dict):
                self._arguments.update(value)
            elif any(name not in self._arguments for name in ("install_requires", "extras_require")):
                self._arguments.setdefault("install_requires", _UNKNOWN)

    def _find_call(self, node: ast.stmt) -> None:
        call = next((inner for inner in ast.walk(node) if _calls_setup(inner)), None)
        if isinstance(call, ast.Call) and self.call is None:
            self._call(call)

    def _forget(self, node: ast.stmt) -> None:
        """Make unknown what the statement assigns or changes."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For):
                targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                for target in targets:
                    self._assign(target, _UNKNOWN)
            elif (
                isinstance(inner, ast.Call)
                and isinstance(inner.func, ast.Attribute)
                and inner.func.attr in ("append", "extend", "insert", "remove", "update", "pop")
            ):
                self._extend(inner.func.value, _UNKNOWN)

    def _assign(self, target: ast.expr, value: _Value) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            table = self.names.get(target.value.id)
            key = self._value(target.slice)
            if isinstance(table, dict) and isinstance(key, Text):
                table[key.value] = value
            elif isinstance(table, dict):
                self.names[target.value.id] = _UNKNOWN
        elif isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self._assign(part, _UNKNOWN)

    def _extend(self, target: ast.expr, value: _Value) -> None:
        """Add to a list that a name or an entry of a dict holds."""
        before, added = self._value(target), _items(value)
        if isinstance(before, Items):
            self._assign(target, _sum(before, added) if added else Items(before.items, False))
        else:
            self._assign(target, _UNKNOWN)

    def _value(self, node: ast.expr) -> _Value:
        """Return what an expression states."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return Text(node.value, node.lineno)
        if isinstance(node, ast.Name):
            return self.names.get(node.id, _UNKNOWN)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return self._listed(node.elts)
        if isinstance(node, ast.Dict):
            return self._table(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = (_items(self._value(side)) for side in (node.left, node.right))
            return _sum(left, right) if left and right else _UNKNOWN
        if isinstance(node, ast.Subscript):
            return self._taken(node)
        if isinstance(node, ast.ListComp):
            return self._comprehension(node)
        return self._called(node) if isinstance(node, ast.Call) else _UNKNOWN

    def _listed(self, nodes: Sequence[ast.expr]) -> _Value:
        items: list[Text | File] = []
        for node in nodes:
            value = self._value(node.value if isinstance(node, ast.Starred) else node)
            part = _items(value)
            if part is None:
                return Items(items, False)
            items += part.items
        return Items(items)

    def _table(self, node: ast.Dict) -> _Value:
        table: dict[str, _Value] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            name, held = (self._value(key) if key is not None else None), self._value(value)
            if isinstance(name, Text):
                table[name.value] = held
            elif name is None and isinstance(held, dict):
                table.update(held)
            else:
                return _UNKNOWN
        return table

    def _taken(self, node: ast.Subscript) -> _Value:
        """Return an entry of a dict, or of a table of requirements by the name of a package."""
        table, key = self._value(node.value), self._value(node.slice)
        if not isinstance(key, Text):
            return _UNKNOWN
        if isinstance(table, dict):
            return table.get(key.value, _UNKNOWN)
        return self._from_tables(key.value)

    def _from_tables(self, name: str) -> _Value:
        """Return the requirement of a package from the lists of requirements that the script holds.

        transformers, diffusers and their relatives keep one list and take entries by name.
        """
        wanted = canonicalize_name(name)
        for value in self.names.values():
            for item in value.items if isinstance(value, Items) else ():
                found = _NAME.match(item.value) if isinstance(item, Text) else None
                if found is not None and canonicalize_name(found[0].rstrip(".-_")) == wanted:
                    return item
        return _UNKNOWN

    def _comprehension(self, node: ast.ListComp) -> _Value:
        """Return what a comprehension goes through, where it keeps each line that holds a requirement."""
        loop = node.generators[0]
        if len(node.generators) > 1 or not isinstance(loop.target, ast.Name) or not _keeps(node.elt, loop.target.id):
            return _UNKNOWN
        texts = [
            inner.value
            for test in loop.ifs
            for inner in ast.walk(test)
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
        ]
        return self._value(loop.iter) if all(re.fullmatch(r"[#\s-]*", text) for text in texts) else _UNKNOWN

    def _called(self, node: ast.Call) -> _Value:
        """Return what a call gives: a copy, the lines of a text, the requirements of a file, entries by name."""
        called = node.func
        if isinstance(called, ast.Name) and called.id in ("list", "sorted", "tuple", "set", "str") and node.args:
            return self._value(node.args[0])
        if _name_of(called) in ("dict",) and not node.args:
            pairs = {word.arg: self._value(word.value) for word in node.keywords if word.arg is not None}
            return pairs if len(pairs) == len(node.keywords) else _UNKNOWN
        if isinstance(called, ast.Attribute):
            held = self._value(called.value)
            if called.attr in ("copy", "read", "readlines", "splitlines", "split", "strip", "read_text", "rstrip"):
                return held if not isinstance(held, _Unknown) else self._named_file(node)
            return self._named_file(node)
        if isinstance(called, ast.Name) and called.id in self.functions and node.args and not node.keywords:
            names = [value.value for value in map(self._value, node.args) if isinstance(value, Text)]
            found = [self._from_tables(name) for name in names]
            if len(names) == len(node.args) and all(isinstance(item, Text) for item in found):
                return Items([item for item in found if isinstance(item, Text)])
        return self._named_file(node)

    def _named_file(self, node: ast.Call) -> _Value:
        """Return the one requirements file that a call names, or that the called function of the script names."""
        found: list[File] | None = list(_files(self.path, node))
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            of_function = self._of_function(node.func.id)
            found = None if of_function is None else found or of_function
        return found[0] if found and len({item.path for item in found}) == 1 else _UNKNOWN

    def _of_function(self, name: str) -> list[File] | None:
        """Return the files that a function of the script names, None where they depend on the machine."""
        if name not in self._files_of:
            function = self.functions[name]
            tests = (inner.test for inner in ast.walk(function) if isinstance(inner, ast.If | ast.IfExp))
            self._files_of[name] = None if any(map(_depends_on_machine, tests)) else list(_files(self.path, function))
        return self._files_of[name]


def _sum(left: Items, right: Items) -> Items:
    items = [*left.items, *right.items]
    return Items(items, left.known and right.known) if len(items) <= MOST_ENTRIES else Items([], False)


def _files(path: Path, node: ast.AST) -> Iterator[File]:
    constants = (inner for inner in ast.walk(node) if isinstance(inner, ast.Constant))
    for inner in constants:
        found = requirements_file(path, inner.value, inner.lineno) if isinstance(inner.value, str) else None
        if found is not None:
            yield found


def _keeps(node: ast.expr, name: str) -> bool:
    """Return whether an element is the loop's own value, apart from white space."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
        return node.func.attr in ("strip", "rstrip", "lstrip") and _keeps(node.func.value, name)
    return (isinstance(node, ast.Name) and node.id == name) or (
        isinstance(node, ast.Call) and _name_of(node.func) == "str" and _keeps(node.args[0], name)
    )


#: Words of a condition that depends on where the script runs.
_MACHINE = re.compile(r"cuda|hip|rocm|neuron|tpu|platform|environ|getenv|machine|is_available|_xpu|_cpu", re.IGNORECASE)


def _depends_on_machine(node: ast.expr) -> bool:
    return bool(_MACHINE.search(ast.unparse(node)))


def _calls_setup(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name_of(node.func) in ("setup", "setuptools.setup")


def _is_main(node: ast.expr) -> bool:
    return isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id == "__name__"


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
