"""Follow a set-up script statement by statement, without running it: where it stops, and what it compiles for.

Conditions that the scenario decides are decided; of others both branches are followed, and what fails in one of them
alone is no failure. A script that is too long or nested too deeply is unknown, not wrong.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .expressions import Expressions
from .machine import BuildMachine
from .scenario import Failed, Read, Scenario
from .values import UNKNOWN, Function, Module, Scope, Unknown, copied

_MOST_STEPS, _DEEPEST = 40_000, 24
_SEEN = re.compile(r"(?:compute|sm)_\d+|-?-std[=:]|/std:|arch=|\.whl$")
_HIERARCHY = {
    "ModuleNotFoundError": ("ImportError",), "FileNotFoundError": ("OSError", "IOError", "EnvironmentError"),
    "OSError": ("IOError", "EnvironmentError"), "KeyError": ("LookupError",), "IndexError": ("LookupError",),
    "InvalidVersion": ("ValueError",), "NameError": (), "UnboundLocalError": ("NameError",),
}  # fmt: skip


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _Stop(Exception):
    """A loop is left, or its next round begins."""


class TooLong(Exception):
    """The script takes more steps than are followed."""


class Script:
    """One run of a script in a scenario; `read` returns the text of the project's other files."""

    def __init__(self, text: str, scenario: Scenario, read: Read) -> None:
        self.tree = ast.parse(text)
        self.scope = Scope({"__name__": "__main__", "__file__": "setup.py", "__doc__": None})
        self.scenario, self.read = scenario, read
        self.machine = BuildMachine(scenario)
        self.expressions = Expressions(self)
        self.assigned = _assigned(self.tree)
        self.open_names = False  # an import of all names, or exec: any name may exist
        self.builtin_names = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)
        self.seen: dict[str, bool] = {}  # flags of compilers -> whether it is certain that they are passed
        self.extensions: list[str] = []
        self.imports: dict[str, bool] = {}  # modules of others -> whether they are imported in any case
        self._doubt = self._depth = self._steps = 0
        self._path_changed = scenario.top_on_path
        self._modules: dict[str, Module] = {}

    def run(self) -> Failed | None:
        """Follow the script; return why it stops, None where it reaches its end or that is not known."""
        try:
            self.block(self.tree.body, self.scope)
        except Failed as problem:
            return problem
        except (_Return, _Stop, TooLong, RecursionError):
            return None
        return None

    def see(self, text: str) -> None:
        """Note a flag for a compiler."""
        if _SEEN.search(text):
            self.seen[text] = self.seen.get(text, False) or self._doubt == 0

    def note(self, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Note a call that defines an extension, or changes where modules are found."""
        last = name.rpartition(".")[2]
        if last.endswith("Extension") and last != "BuildExtension":
            self.extensions.append(last)
        elif name.startswith("sys.path."):
            self._path_changed = True

    def block(self, statements: Iterable[ast.stmt], scope: Scope) -> None:
        """Follow statements in order."""
        for statement in statements:
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise TooLong
            method = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if method is not None:
                method(statement, scope)

    def perhaps(self, node: ast.expr, scope: Scope) -> Any:
        """Evaluate what may not be evaluated at all: a failure there is none of the script."""
        self._doubt += 1
        try:
            return self.expressions.value(node, scope)
        except Failed:
            return UNKNOWN
        finally:
            self._doubt -= 1

    def call(self, function: Function, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Return what a function of the script returns."""
        if self._depth >= _DEEPEST:
            return UNKNOWN
        inner = Scope(_bound(self, function, arguments, keywords), function.scope)
        node = function.node
        self._depth += 1
        try:
            if isinstance(node, ast.Lambda):
                return self.expressions.value(node.body, inner)
            self.block(node.body, inner)
        except _Return as answer:
            return answer.value
        finally:
            self._depth -= 1
        return None

    def bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Bind the names of an assignment's target."""
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
            scope.doubtful.discard(target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            plain = not any(isinstance(one, ast.Starred) for one in target.elts)
            whole = isinstance(value, (list, tuple)) and plain and len(value) == len(target.elts)
            for number, one in enumerate(target.elts):
                self.bind(
                    one.value if isinstance(one, ast.Starred) else one, value[number] if whole else UNKNOWN, scope
                )
        elif isinstance(target, ast.Subscript):
            owner, key = self.expressions.value(target.value, scope), self.expressions.value(target.slice, scope)
            if isinstance(owner, dict) and isinstance(key, (str, int)):
                owner[key] = value
        elif isinstance(target, ast.Attribute):
            self.expressions.value(target.value, scope)

    def _expr(self, node: ast.Expr, scope: Scope) -> None:
        self.expressions.value(node.value, scope)

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.expressions.value(node.value, scope)
        for target in node.targets:
            self.bind(target, value, scope)

    def _annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.bind(node.target, self.expressions.value(node.value, scope), scope)

    def _augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        if isinstance(node.target, (ast.Name, ast.Subscript, ast.Attribute)):
            load = ast.copy_location(ast.BinOp(_loaded(node.target), node.op, node.value), node)
            self.bind(node.target, self.expressions.value(load, scope), scope)

    def _functiondef(self, node: ast.FunctionDef, scope: Scope) -> None:
        scope.names[node.name] = UNKNOWN if node.decorator_list else Function(node, scope)

    def _classdef(self, node: ast.ClassDef, scope: Scope) -> None:
        for base in node.bases:
            self.expressions.value(base, scope)
        scope.names[node.name] = Module(f"project.{node.name}")

    def _return(self, node: ast.Return, scope: Scope) -> None:
        value = self.expressions.value(node.value, scope)
        raise _Return(value)

    def _raise(self, node: ast.Raise, scope: Scope) -> None:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        name = raised.id if isinstance(raised, ast.Name) else raised.attr if isinstance(raised, ast.Attribute) else ""
        message = ""
        if isinstance(node.exc, ast.Call) and node.exc.args:
            found = self.perhaps(node.exc.args[0], scope)
            message = found if isinstance(found, str) else ""
        raise Failed(name or "Exception", message)

    def _assert(self, node: ast.Assert, scope: Scope) -> None:
        if self.expressions.truth(self.expressions.value(node.test, scope)) is False:
            raise Failed("AssertionError", "")

    def _if(self, node: ast.If, scope: Scope) -> None:
        truth = self.expressions.truth(self.expressions.value(node.test, scope))
        if truth is not None:
            self.block(node.body if truth else node.orelse, scope)
        else:
            self._either([node.body, node.orelse], scope)

    def _either(self, branches: Sequence[Sequence[ast.stmt]], scope: Scope) -> None:
        """Follow branches of which one is taken: it stops only where each of them does."""
        before = {name: copied(value) for name, value in scope.names.items()}
        ends: list[dict[str, Any]] = []
        stops: list[Exception] = []
        self._doubt += 1
        try:
            for branch in branches:
                scope.names = {name: copied(value) for name, value in before.items()}
                try:
                    self.block(branch, scope)
                    ends.append(scope.names)
                except (Failed, _Return, _Stop) as stop:
                    stops.append(stop)
        finally:
            self._doubt -= 1
        if not ends:
            failures = [stop for stop in stops if isinstance(stop, Failed)]
            raise failures[0] if len(failures) == len(stops) else stops[0] if not failures else _Return(UNKNOWN)
        scope.names = ends[0] if len(ends) == 1 else _merged(ends, scope)
        if stops and any(isinstance(stop, _Return) for stop in stops) and not isinstance(stops[0], Failed):
            return

    def _for(self, node: ast.For, scope: Scope) -> None:
        source = self.expressions.value(node.iter, scope)
        if not isinstance(source, (list, tuple, range)) or len(source) > 500:
            self.bind(node.target, UNKNOWN, scope)
            self._either([node.body, []], scope)
            return
        for item in list(source):
            self.bind(node.target, item, scope)
            try:
                self.block(node.body, scope)
            except _Stop as stop:
                if stop.args == ("break",):
                    return
        self.block(node.orelse, scope)

    def _while(self, node: ast.While, scope: Scope) -> None:
        if self.expressions.truth(self.expressions.value(node.test, scope)) is not False:
            self._either([node.body, []], scope)

    def _break(self, node: ast.Break, scope: Scope) -> None:
        raise _Stop("break")

    def _continue(self, node: ast.Continue, scope: Scope) -> None:
        raise _Stop("continue")

    def _with(self, node: ast.With, scope: Scope) -> None:
        for item in node.items:
            value = self.expressions.value(item.context_expr, scope)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, UNKNOWN if isinstance(value, Module) else value, scope)
        self.block(node.body, scope)

    def _try(self, node: ast.Try, scope: Scope) -> None:
        try:
            self.block(node.body, scope)
            self.block(node.orelse, scope)
        except Failed as problem:
            handler = next((one for one in node.handlers if _catches(one, problem)), None)
            if handler is None:
                raise
            if handler.name:
                scope.names[handler.name] = UNKNOWN
            try:
                self.block(handler.body, scope)
            except Failed as again:
                raise (problem if again.kind == "Exception" and not again.message else again) from None
        finally:
            self.block(node.finalbody, scope)

    def _import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            module = self._imported(alias.name)
            bound = alias.asname or alias.name.partition(".")[0]
            whole = module if alias.asname or "." not in alias.name else Module(bound)
            scope.names[bound] = whole

    def _importfrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        name = _absolute(node, str(scope.top.names.get("__name__", "")), str(scope.top.names.get("__file__", "")))
        if name in ("__future__", ""):
            for alias in node.names:
                scope.names[alias.asname or alias.name] = UNKNOWN
            return
        module = self._imported(name)
        for alias in node.names:
            if alias.name == "*":
                self.open_names = True
                scope.names.update(module.of_project or {})
                continue
            if module.of_project is not None:
                value = module.of_project.get(alias.name, UNKNOWN)
            else:
                value = self.machine.attribute(f"{name}.{alias.name}")
            scope.names[alias.asname or alias.name] = value

    def _imported(self, name: str) -> Module:
        """Return a module; `Failed` where it cannot be imported."""
        own = self._own_file(name)
        if own is not None and self._path_changed:
            return self._of_project(name, *own)
        top = name.partition(".")[0]
        if not self.machine.importable(name):
            self.imports.setdefault(top, self._doubt == 0)
            raise Failed("ModuleNotFoundError", f"No module named '{top}'", top)
        self.imports[top] = self.imports.get(top, False) or self._doubt == 0
        return Module(name)

    def _own_file(self, name: str) -> tuple[str, str] | None:
        path = name.replace(".", "/")
        for file in (f"{path}.py", f"{path}/__init__.py"):
            text = self.read(file)
            if text is not None:
                return file, text
        return None

    def _of_project(self, name: str, file: str, text: str) -> Module:
        known = self._modules.get(name)
        if known is not None:
            return known
        scope = Scope({"__name__": name, "__file__": file, "__doc__": None})
        module = self._modules[name] = Module(name, scope.names)
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return module
        outer, self.assigned = self.assigned, self.assigned | _assigned(tree)
        try:
            self.block(tree.body, scope)
        finally:
            self.assigned = outer
            module.of_project = scope.names
        return module


def _absolute(node: ast.ImportFrom, importer: str, file: str) -> str:
    """Return the full name of the module of a `from` import."""
    if not node.level:
        return node.module or ""
    parts = importer.split(".") if importer != "__main__" else []
    parts = parts[: len(parts) - node.level + file.endswith("__init__.py")]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _assigned(tree: ast.AST) -> frozenset[str]:
    """Return the names that some statement of a script assigns."""
    return frozenset(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


def _loaded(target: ast.Name | ast.Subscript | ast.Attribute) -> ast.expr:
    found = ast.parse(ast.unparse(target), mode="eval").body
    return ast.copy_location(found, target)


def _bound(script: Script, function: Function, given: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of a function's arguments."""
    arguments = function.node.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    values: dict[str, Any] = dict.fromkeys([*names, *(one.arg for one in arguments.kwonlyargs)], UNKNOWN)
    defaults = zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True)
    for name, node in (
        *defaults,
        *((a.arg, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)),
    ):
        values[name] = UNKNOWN if node is None else script.perhaps(node, function.scope)
    values.update(zip(names, given, strict=False))
    values.update({name: value for name, value in keywords.items() if name in values})
    for more in (arguments.vararg, arguments.kwarg):
        if more is not None:
            values[more.arg] = UNKNOWN
    return values


def _merged(ends: Sequence[dict[str, Any]], scope: Scope) -> dict[str, Any]:
    """Return the names after two branches: what differs is unknown, what one of them binds alone may exist."""
    names: dict[str, Any] = {}
    for name in dict.fromkeys(name for end in ends for name in end):
        values = [end[name] for end in ends if name in end]
        if len(values) < len(ends):
            scope.doubtful.add(name)
            continue
        first = values[0]
        names[name] = first if all(_alike(first, other) for other in values[1:]) else _joined(values)
    return names


def _joined(values: Sequence[Any]) -> Any:
    """Return a list that holds what either branch put in; unknown for other values."""
    if all(isinstance(value, list) for value in values):
        return [*max(values, key=len), UNKNOWN]
    return UNKNOWN


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Unknown) or isinstance(other, Unknown):
        return one is other
    try:
        return one is other or bool(type(one) is type(other) and one == other)
    except Exception:
        return False


def _catches(handler: ast.ExceptHandler, problem: Failed) -> bool:
    if handler.type is None:
        return True
    nodes = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {node.id if isinstance(node, ast.Name) else getattr(node, "attr", "") for node in nodes}
    kinds = {problem.kind, *_HIERARCHY.get(problem.kind, ())}
    if problem.kind != "SystemExit":
        kinds |= {"Exception"}
    return bool(names & (kinds | {"BaseException"}))
