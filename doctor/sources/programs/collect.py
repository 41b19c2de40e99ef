"""Collect names, calls and options of a program from its syntax tree."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from doctor.errors import DoctorError, fault

from .values import Names, Scope

MOST_CHARACTERS = 1 << 20
_STATEMENTS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FIELDS = ("field", "Field", "Option", "Argument")  # of dataclasses, pydantic and typer: what their first default is
_SWITCHES = {"store_true": False, "store_false": True}


class Test(NamedTuple):
    """The test of a branch, and whether the branch needs it to hold."""

    node: ast.expr
    holds: bool
    scope: Scope


class Call(NamedTuple):
    """One call, or a decorator without arguments, and the function around it."""

    node: ast.Call
    scope: Scope
    tests: tuple[Test, ...] = ()  # of the branches around it


def parse(path: Path, text: str) -> ast.Module:
    """Return the tree of a program or notebook; DoctorError names file and line of what is no Python."""
    if len(text) > MOST_CHARACTERS:
        raise DoctorError(f"`{path}` is larger than {MOST_CHARACTERS >> 20} MiB, too much for a program")
    if path.suffix == ".ipynb":
        text = _cells(path, text)
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as problem:
        why = "not Python that this Python version reads"
        raise fault(path, getattr(problem, "lineno", None), why) from None


def _cells(path: Path, text: str) -> str:
    """Return the code of a notebook, without the lines of its shell and magic commands."""
    try:
        cells = json.loads(text)["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        code = ["".join(source) if isinstance(source, list) else str(source) for source in sources]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise fault(path, None, "not a notebook") from None
    lines = [line for cell in code if not cell.lstrip().startswith("%%") for line in cell.split("\n")]
    return "\n".join("" if line.lstrip()[:1] in ("!", "%") else line for line in lines)


class Collector:
    """The names of a program and its calls, in the order of the text."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.calls: list[Call] = []
        self.named: list[Call] = []  # classes and functions that are named and not called here, as calls
        self._tests: tuple[Test, ...] = ()
        self.set: list[tuple[ast.expr, ast.expr, int]] = []  # os.environ[key] = value, and the line

    def module(self, tree: ast.Module) -> None:
        """Collect from a whole program."""
        self._body(tree.body, 0)

    def _body(self, body: list[ast.stmt], scope: Scope) -> None:
        for node in body:
            self._statement(node, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self.names.imported.update(_imported(node))
        elif isinstance(node, _STATEMENTS):
            self._function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self._class(node, scope)
        elif isinstance(node, ast.If):
            self._branch(node, scope)
        else:
            self._assignment(node, scope)
            for child in ast.iter_child_nodes(node):
                self._child(child, scope)

    def _branch(self, node: ast.If, scope: Scope) -> None:
        self._expression(node.test, scope)
        around = self._tests
        for body, holds in ((node.body, True), (node.orelse, False)):
            self._tests = (*around, Test(node.test, holds, scope))
            self._body(body, scope)
        self._tests = around

    def _child(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.stmt):
            self._statement(node, scope)
        elif isinstance(node, ast.expr):
            self._expression(node, scope)
        else:  # handlers, items of `with`, cases of `match`
            for child in ast.iter_child_nodes(node):
                self._child(child, scope)

    def _expression(self, node: ast.expr, scope: Scope) -> None:
        called = set()
        for inner in ast.walk(node):  # a call comes before what it calls
            if isinstance(inner, ast.Attribute) and inner not in called:
                made = ast.copy_location(ast.Call(inner, [], []), inner)
                self.named.append(Call(made, scope, self._tests))
            if isinstance(inner, ast.Call):
                called.add(inner.func)
                self.calls.append(Call(inner, scope, self._tests))
                self._argument(inner)
            elif isinstance(inner, ast.NamedExpr) and isinstance(inner.target, ast.Name):
                self._assign(inner.target.id, inner.value, scope)

    def _function(self, node: Any, scope: Scope) -> None:
        own = id(node)
        self.names.parents[own] = scope
        every = [*node.args.posonlyargs, *node.args.args]
        pairs = [
            *zip(every[len(every) - len(node.args.defaults) :], node.args.defaults, strict=True),
            *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
        ]
        known = {argument.arg: default for argument, default in pairs}
        for argument in (*every, *node.args.kwonlyargs):
            if argument.arg not in ("self", "cls"):
                self.names.defaults[own, argument.arg] = _declared(known.get(argument.arg))
        for decorator in node.decorator_list:
            self._decorator(decorator, scope)
        self._body(node.body, own)

    def _decorator(self, node: ast.expr, scope: Scope) -> None:
        if isinstance(node, ast.Call):
            self._expression(node, scope)
        else:
            bare = ast.copy_location(ast.Call(node, [], []), node)
            self.calls.append(Call(bare, scope, self._tests))

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                self.names.options.setdefault(item.target.id, _declared(item.value))
        self._bases(node, scope)
        self._body(node.body, scope)

    def _bases(self, node: ast.ClassDef, scope: Scope) -> None:
        """Take a base class as a call, with the arguments that the class's own `__init__` gives it."""
        own = next((item for item in node.body if isinstance(item, _STATEMENTS) and item.name == "__init__"), None)
        given = next((call for call in ast.walk(own) if _is_of_base(call)), None) if own is not None else None
        for base in node.bases:
            arguments, keywords = (given.args, given.keywords) if isinstance(given, ast.Call) else ([], [])
            made = ast.copy_location(ast.Call(base, arguments, keywords), node)
            inner = id(own) if own is not None and given is not None else scope
            self.calls.append(Call(made, inner, self._tests))

    def _assignment(self, node: ast.stmt, scope: Scope) -> None:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        elif isinstance(node, (ast.AugAssign, ast.For, ast.AsyncFor)):
            if isinstance(node.target, ast.Name):  # what a loop or a sum makes of it is not known
                self._assign(node.target.id, ast.Tuple([ast.Starred(ast.Name("_"))]), scope)
            return
        else:
            return
        for target in targets:
            if isinstance(target, ast.Name):
                self._assign(target.id, value, scope)
            elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                for name, item in zip(target.elts, value.elts, strict=True):
                    if isinstance(name, ast.Name):
                        self._assign(name.id, item, scope)
            elif isinstance(target, ast.Subscript):
                self._entry(target, value, scope)
            elif isinstance(target, ast.Attribute):
                self._attribute(target, value, scope)

    def _attribute(self, target: ast.Attribute, value: ast.expr, scope: Scope) -> None:
        names = [target.attr]
        inner = target.value
        while isinstance(inner, ast.Attribute):
            names.insert(0, inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            self.names.attributes.setdefault(".".join(names), []).append((scope, value))

    def _entry(self, target: ast.Subscript, value: ast.expr, scope: Scope) -> None:
        if self.names.path(target.value, scope) == "os.environ":
            self.set.append((target.slice, value, target.lineno))
        elif isinstance(target.value, ast.Name):
            self.names.entries.setdefault((scope, target.value.id), []).append((target.slice, value))

    def _assign(self, name: str, value: ast.expr, scope: Scope) -> None:
        self.names.assigned.setdefault((scope, name), []).append(value)

    def _argument(self, node: ast.Call) -> None:
        """Take an option of argparse (`add_argument`) or click (`option`)."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name not in ("add_argument", "option"):
            return
        words = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        keywords = {item.arg: item.value for item in node.keywords if item.arg}
        named = keywords.get("dest")
        long = next((word for word in words if word.startswith("--")), words[0] if words else "")
        key = named.value if isinstance(named, ast.Constant) else long.lstrip("-").replace("-", "_").partition("/")[0]
        action = keywords.get("action")
        switch = action.value if isinstance(action, ast.Constant) else None
        if isinstance(key, str) and key:
            given = not long.startswith("-") or getattr(keywords.get("required"), "value", False)  # there is no default
            usual = ast.Constant(_SWITCHES.get(str(switch)))
            self.names.options[key] = keywords.get("default", None if given else usual)


def _is_of_base(node: ast.AST) -> bool:
    """Return whether an expression is `super().__init__(…)`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__"):
        return False
    owner = node.func.value
    return isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        for item in node.names:
            yield (item.asname, item.name) if item.asname else ((root := item.name.partition(".")[0]), root)
        return
    module = "." * node.level + (node.module or "")
    for item in node.names:
        yield item.asname or item.name, f"{module}.{item.name}" if not module.endswith(".") else f"{module}{item.name}"


def _declared(node: ast.expr | None) -> ast.expr | None:
    """Return the default of `field(default=…)`, `Field(…)` or `typer.Option(…)`, else the expression itself."""
    if not isinstance(node, ast.Call):
        return node
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name not in _FIELDS:
        return node
    default = next((item.value for item in node.keywords if item.arg == "default"), None)
    return default if default is not None else node.args[0] if node.args else None
