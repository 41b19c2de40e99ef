"""Evaluate the expressions of a set-up script as far as they are known; nothing of it runs."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from packaging.version import Version

from .machine import BuildMachine
from .scenario import Failed
from .values import UNKNOWN, Bound, Function, Module, PythonVersion, Scope, Unknown, is_known

_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda one, other: one in other, ast.NotIn: lambda one, other: one not in other,
}  # fmt: skip
_COMBINE: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip
_BUILTINS: Mapping[str, Callable[..., Any]] = {
    "len": len, "int": int, "str": str, "bool": bool, "float": float, "list": list, "tuple": tuple, "set": set,
    "dict": dict, "sorted": sorted, "any": any, "all": all, "min": min, "max": max, "range": range, "round": round,
    "abs": abs, "sum": sum, "repr": repr, "zip": lambda *parts: list(zip(*parts)), "enumerate": lambda x: list(enumerate(x)),  # noqa: B905, E501
    "reversed": lambda x: list(reversed(x)),
}  # fmt: skip
#: Methods that change a list or table in place or read a text, of values of these types alone.
_METHODS = re.compile(
    r"append|extend|insert|copy|update|get|setdefault|pop|keys|values|items|split|rsplit|splitlines|strip|lstrip|rstrip"
    r"|lower|upper|replace|startswith|endswith|index|find|count|partition|rpartition|join|format|removesuffix|isdigit"
    r"|removeprefix|add|union|title|discard|remove|isnumeric"
)
_OF_ERRORS = {  # what a value error of the followed script is called
    TypeError: "TypeError", ValueError: "ValueError", KeyError: "KeyError", IndexError: "IndexError",
    AttributeError: "AttributeError", ZeroDivisionError: "ZeroDivisionError",
}  # fmt: skip
ANY_KEY = object()  # in a table that may hold any other key
_MOST = 10_000  # characters or items of a value


class Followed(Protocol):
    """The script whose expressions are evaluated."""

    machine: BuildMachine
    assigned: frozenset[str]
    builtin_names: frozenset[str]
    open_names: bool

    def see(self, text: str) -> None:
        """Note a flag for a compiler."""

    def note(self, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Note a call of another module's function."""

    def perhaps(self, node: ast.expr, scope: Scope) -> Any:
        """Evaluate what may not be evaluated at all."""

    def call(self, function: Function, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Return what a function of the script returns."""

    def bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Bind the names of an assignment's target."""


class Expressions:
    """Evaluates expressions in a scope of a script."""

    def __init__(self, script: Followed) -> None:
        self.script = script

    def value(self, node: ast.expr | None, scope: Scope) -> Any:
        """Return the value of an expression; `Failed` where its evaluation certainly raises."""
        if node is None:
            return None
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        return UNKNOWN if method is None else method(node, scope)

    def _constant(self, node: ast.Constant, scope: Scope) -> Any:
        if isinstance(node.value, str):
            self.script.see(node.value)
        return node.value

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        holder = scope.find(node.id)
        if holder is not None:
            return holder.names.get(node.id, UNKNOWN)
        if node.id in _BUILTINS or node.id in self.script.builtin_names:
            return Module(f"builtins.{node.id}")
        if node.id in self.script.assigned and not self.script.open_names:
            raise Failed("NameError", f"name '{node.id}' is not defined")
        return UNKNOWN

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        owner = self.value(node.value, scope)
        if isinstance(owner, Module):
            if owner.of_project is not None:
                return owner.of_project.get(node.attr, UNKNOWN)
            return self.script.machine.attribute(f"{owner.name}.{node.attr}")
        if isinstance(owner, (Version, PythonVersion)):
            return getattr(owner, node.attr, UNKNOWN)
        if owner is None:
            raise Failed("AttributeError", f"'NoneType' object has no attribute '{node.attr}'")
        if isinstance(owner, (str, list, dict, set, tuple)):
            return Bound(owner, node.attr)
        return UNKNOWN

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        owner, key = self.value(node.value, scope), self._key(node.slice, scope)
        if isinstance(owner, (Unknown, Module, Function, Bound)) or not is_known(key):
            return UNKNOWN
        if owner is None:
            raise Failed("TypeError", "'NoneType' object is not subscriptable")
        if owner is self.script.machine.environ and key not in owner:
            raise Failed("KeyError", repr(key))
        if isinstance(owner, dict) and ANY_KEY in owner and key not in owner:
            return UNKNOWN
        return self._guarded(lambda: owner[key])

    def _key(self, node: ast.expr, scope: Scope) -> Any:
        if isinstance(node, ast.Slice):
            parts = [self.value(part, scope) for part in (node.lower, node.upper, node.step)]
            return slice(*parts) if is_known(parts) else UNKNOWN
        return self.value(node, scope)

    def _list(self, node: ast.List, scope: Scope) -> Any:
        return self._items(node.elts, scope)

    def _tuple(self, node: ast.Tuple, scope: Scope) -> Any:
        return tuple(self._items(node.elts, scope))

    def _set(self, node: ast.Set, scope: Scope) -> Any:
        items = self._items(node.elts, scope)
        return set(items) if is_known(items) else UNKNOWN

    def _items(self, nodes: Iterable[ast.expr], scope: Scope) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                more = self.value(node.value, scope)
                found += list(more) if isinstance(more, (list, tuple)) else [UNKNOWN]
            else:
                found.append(self.value(node, scope))
        return found

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        found: dict[Any, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.value(item, scope)
            if key is None:
                found.update(value if isinstance(value, dict) else {})
                continue
            name = self.value(key, scope)
            if isinstance(name, (str, int, tuple)) and is_known(name):
                found[name] = value
        return found

    def _joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Any:
        parts = [self.value(part, scope) for part in node.values]
        if any(isinstance(part, Unknown) for part in parts):
            self.script.see("".join(part if isinstance(part, str) else "\0" for part in parts))
            return UNKNOWN
        text = "".join(str(part) for part in parts)
        self.script.see(text)
        return text

    def _formattedvalue(self, node: ast.FormattedValue, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        return str(value) if is_known(value) and node.format_spec is None else UNKNOWN

    def _boolop(self, node: ast.BoolOp, scope: Scope) -> Any:
        is_and, doubt = isinstance(node.op, ast.And), False
        value: Any = UNKNOWN
        for part in node.values:
            value = self.script.perhaps(part, scope) if doubt else self.value(part, scope)
            truth = self.truth(value)
            if truth is None:
                doubt = True
            elif truth is not is_and:
                return UNKNOWN if doubt and not isinstance(value, bool) else value
        return UNKNOWN if doubt else value

    def _unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return UNKNOWN if truth is None else not truth
        return -value if isinstance(node.op, ast.USub) and isinstance(value, (int, float)) else UNKNOWN

    def _binop(self, node: ast.BinOp, scope: Scope) -> Any:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        function = _COMBINE.get(type(node.op))
        if isinstance(left, list) and isinstance(node.op, ast.Add):
            return left + (right if isinstance(right, list) else [UNKNOWN])
        if isinstance(right, list) and isinstance(node.op, ast.Add):
            return [UNKNOWN, *right]
        known = not isinstance(left, (Unknown, Module, Function)) and not isinstance(right, (Unknown, Module, Function))
        if function is None or not known or not (is_known(left) and is_known(right)) or _grows(node.op, left, right):
            return UNKNOWN
        return self._guarded(lambda: function(left, right))

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left, result = self.value(node.left, scope), True
        for kind, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, scope)
            truth = self._compared(kind, left, right)
            if truth is None:
                return UNKNOWN
            result, left = result and truth, right
        return result

    def _compared(self, kind: ast.cmpop, left: Any, right: Any) -> bool | None:
        if isinstance(kind, (ast.Is, ast.IsNot)):
            if isinstance(left, Unknown) or isinstance(right, Unknown):
                return None
            same = left is right if None in (left, right) or isinstance(left, bool) else None
            return None if same is None else same is isinstance(kind, ast.Is)
        if not (is_known(left) and is_known(right)):
            return None
        return bool(self._guarded(lambda: _COMPARE[type(kind)](left, right)))

    def _ifexp(self, node: ast.IfExp, scope: Scope) -> Any:
        truth = self.truth(self.value(node.test, scope))
        if truth is None:
            self.script.perhaps(node.body, scope)
            self.script.perhaps(node.orelse, scope)
            return UNKNOWN
        return self.value(node.body if truth else node.orelse, scope)

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return Function(node, scope)

    def _listcomp(self, node: ast.ListComp, scope: Scope) -> Any:
        return self._comprehended(node, node.elt, scope)

    def _generatorexp(self, node: ast.GeneratorExp, scope: Scope) -> Any:
        return self._comprehended(node, node.elt, scope)

    def _setcomp(self, node: ast.SetComp, scope: Scope) -> Any:
        return self._comprehended(node, node.elt, scope)

    def _comprehended(
        self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, element: ast.expr, scope: Scope
    ) -> Any:
        if len(node.generators) != 1:
            return UNKNOWN
        generator = node.generators[0]
        source = self.value(generator.iter, scope)
        inner = Scope({}, scope)
        if not isinstance(source, (list, tuple, range)) or len(source) > _MOST:
            self.script.bind(generator.target, UNKNOWN, inner)
            self.script.perhaps(element, inner)
            return UNKNOWN
        found = []
        for item in source:
            self.script.bind(generator.target, item, inner)
            truths = [self.truth(self.value(test, inner)) for test in generator.ifs]
            if None in truths:
                return UNKNOWN
            if all(truths):
                found.append(self.value(element, inner))
        return found

    def _namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        self.script.bind(node.target, value, scope)
        return value

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        function = self.value(node.func, scope)
        arguments = self._items(node.args, scope)
        keywords = {word.arg: self.value(word.value, scope) for word in node.keywords if word.arg is not None}
        if isinstance(function, Function):
            return self.script.call(function, arguments, keywords)
        if isinstance(function, Bound):
            return self._method(function, arguments, keywords)
        if not isinstance(function, Module):
            return UNKNOWN
        name = function.name
        if name.startswith("builtins."):
            return self._builtin(name.removeprefix("builtins."), arguments, keywords)
        self.script.note(name, arguments, keywords)
        return self.script.machine.call(name, arguments, keywords)

    def _builtin(self, name: str, arguments: list[Any], keywords: Mapping[str, Any]) -> Any:
        if name == "isinstance" and arguments and is_known(arguments[0]):
            return UNKNOWN
        function = _BUILTINS.get(name)
        if name in ("exit", "quit"):
            raise Failed("SystemExit", "")
        if name in ("exec", "eval"):  # it may bind any name
            self.script.open_names = True
            for table in (one for one in arguments if isinstance(one, dict)):
                table[ANY_KEY] = UNKNOWN
            return UNKNOWN
        long = any(isinstance(one, range) and len(one) > _MOST for one in arguments)
        if function is None or not all(map(is_known, arguments)) or keywords or (long and name != "len"):
            return UNKNOWN
        return self._guarded(lambda: function(*arguments))

    def _method(self, method: Bound, arguments: list[Any], keywords: Mapping[str, Any]) -> Any:
        owner, name = method.owner, method.name
        if owner is self.script.machine.environ:
            if name == "get":
                return self.script.machine.call("os.getenv", arguments, {})
            return UNKNOWN
        if _METHODS.fullmatch(name) is None:
            return UNKNOWN
        if isinstance(owner, list) and name in ("append", "extend", "insert"):
            return self._added(owner, name, arguments)
        if not (all(map(is_known, arguments)) and all(map(is_known, keywords.values())) and hasattr(owner, name)):
            return UNKNOWN
        if name == "format" and _WIDE.search(owner):
            return UNKNOWN
        return self._guarded(lambda: getattr(owner, name)(*arguments, **keywords))

    @staticmethod
    def _added(owner: list[Any], name: str, arguments: list[Any]) -> None:
        item = arguments[-1] if arguments else UNKNOWN
        if name == "extend":
            owner.extend(item if isinstance(item, (list, tuple)) else [UNKNOWN])
        else:
            owner.append(item)

    def truth(self, value: Any) -> bool | None:
        """Return the truth of a value; None where it is not known."""
        if isinstance(value, Unknown):
            return None
        if isinstance(value, (Module, Function, Bound)):
            return True
        return bool(value)

    @staticmethod
    def _guarded(compute: Callable[[], Any]) -> Any:
        """Return what a computation gives; `Failed` where Python raises an exception, unknown where it is too large."""
        try:
            found = compute()
        except tuple(_OF_ERRORS) as problem:
            raise Failed(_OF_ERRORS[type(problem)], str(problem)) from None
        except Exception:
            return UNKNOWN
        return UNKNOWN if isinstance(found, (str, list, tuple, range)) and len(found) > _MOST else found


_WIDE = re.compile(r"\d{4,}|\*")  # a width in a format, which a value may be filled up to


def _grows(kind: ast.operator, left: Any, right: Any) -> bool:
    """Return whether an operation could make a value that is too large to make."""
    if isinstance(kind, ast.Mult):
        sizes = [
            abs(one) if isinstance(one, int) else len(one)
            for one in (left, right)
            if isinstance(one, (int, str, list, tuple))
        ]
        numbers = all(isinstance(one, (int, float)) for one in (left, right))
        return not numbers and any(size > _MOST for size in sizes)
    return isinstance(kind, ast.Mod) and isinstance(left, str) and _WIDE.search(left) is not None
