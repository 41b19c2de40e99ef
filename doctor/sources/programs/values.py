"""Constants of a Python program: names, tables and options with defaults, as far as the syntax tree shows them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_DEEPEST = 24  # names, tables and calls followed for one value
_SUPPORTED = ("is_bf16_supported", "is_available")  # of torch.cuda: usual on the GPUs that are examined
_ENVIRONMENT = ("os.environ.get", "os.getenv")


class Dotted(str):
    """A name with its module, as the imports of the program resolve it: `torch.bfloat16`."""

    __slots__ = ()


class _Unknown:
    """A value that only a run of the program knows."""


UNKNOWN = _Unknown()


class Value(NamedTuple):
    """A constant, `Dotted`, list or table; `assumed` where the command line may replace it."""

    value: Any
    assumed: bool = False

    @property
    def known(self) -> bool:
        """Return whether the tree shows the value."""
        return self.value is not UNKNOWN


_NO_VALUE = Value(UNKNOWN)
Scope = int  # id of the function around a name; 0 for the module


@dataclass
class Names:
    """What the names of a program mean; `given` are the options of the command that starts it."""

    given: Mapping[str, Any] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)  # name -> its path with the module
    assigned: dict[tuple[Scope, str], list[ast.expr]] = field(default_factory=dict)
    entries: dict[tuple[Scope, str], list[tuple[ast.expr, ast.expr]]] = field(default_factory=dict)  # name[key] = value
    defaults: dict[tuple[Scope, str], ast.expr | None] = field(default_factory=dict)  # of parameters
    options: dict[str, ast.expr | None] = field(default_factory=dict)  # of its parser and its classes of arguments
    parents: dict[Scope, Scope] = field(default_factory=dict)
    attributes: dict[str, list[tuple[Scope, ast.expr]]] = field(
        default_factory=dict
    )  # `model.dtype` of `cfg.model.dtype`

    def path(self, node: ast.expr, scope: Scope = 0) -> str | None:
        """Return the path of a name, `?.method` for a method of an object; None for other expressions."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            root = self.imported.get(node.id)
            if root is not None and not self._is_assigned(node.id, scope):
                return ".".join((root, *reversed(parts)))
            return f"?.{parts[0]}" if parts else node.id
        return f"?.{parts[0]}" if parts else None

    def _is_assigned(self, name: str, scope: Scope) -> bool:
        return any((level, name) in self.assigned for level in self._levels(scope))

    def _levels(self, scope: Scope) -> Iterator[Scope]:
        while scope:
            yield scope
            scope = self.parents.get(scope, 0)
        yield 0

    def value(self, node: ast.expr | None, scope: Scope = 0, depth: int = 0) -> Value:
        """Return the value of an expression."""
        if node is None or depth > _DEEPEST:
            return _NO_VALUE
        if isinstance(node, ast.Constant):
            return Value(node.value)
        if isinstance(node, ast.Name):
            return self._name(node.id, scope, depth)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, scope, depth)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return self._items(node.elts, scope, depth)
        if isinstance(node, ast.Dict):
            return self._table(node, scope, depth)
        if isinstance(node, ast.Call):
            return self._call(node, scope, depth)
        if isinstance(node, ast.IfExp):
            return self._choice(node, scope, depth)
        if isinstance(node, ast.Subscript):
            return self._entry(node, scope, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
            inner = self.value(node.operand, scope, depth + 1)
            if isinstance(node.op, ast.Not) and isinstance(inner.value, bool):
                return inner._replace(value=not inner.value)
            if isinstance(node.op, ast.USub) and isinstance(inner.value, (int, float)):
                return inner._replace(value=-inner.value)
        if isinstance(node, ast.BoolOp):
            return self._all_or_any(node, scope, depth)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node, scope, depth)
        return _NO_VALUE

    def _all_or_any(self, node: ast.BoolOp, scope: Scope, depth: int) -> Value:
        """Return the value of `and` and `or`, as far as one item decides it."""
        found = [self.value(item, scope, depth + 1) for item in node.values]
        ends = isinstance(node.op, ast.Or)
        decides = next((item for item in found if _is_plain(item) and bool(item.value) is ends), None)
        if decides is not None:
            return decides
        return found[-1] if all(map(_is_plain, found)) else _NO_VALUE

    def _compared(self, node: ast.Compare, scope: Scope, depth: int) -> Value:
        left, right = (self.value(item, scope, depth + 1) for item in (node.left, node.comparators[0]))
        if not (_is_plain(left) and _is_plain(right)) or not isinstance(
            node.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)
        ):
            return _NO_VALUE
        equal = left.value == right.value
        return Value(equal is isinstance(node.ops[0], (ast.Eq, ast.Is)), left.assumed or right.assumed)

    def _name(self, name: str, scope: Scope, depth: int) -> Value:
        for level in self._levels(scope):
            if (level, name) in self.assigned:
                found = [self.value(node, level, depth + 1) for node in self.assigned[level, name]]
                return self._with_entries(_same(found), (level, name), depth)
            if (level, name) in self.defaults:
                if name in self.given:
                    return Value(self.given[name])
                default = self.value(self.defaults[level, name], level, depth + 1)
                return Value(default.value, assumed=True)
        return Value(Dotted(self.imported[name])) if name in self.imported else _NO_VALUE

    def _with_entries(self, table: Value, name: tuple[Scope, str], depth: int) -> Value:
        if not isinstance(table.value, dict):
            return table
        made = dict(table.value)
        for key, value in self.entries.get(name, ()):
            word = self.value(key, name[0], depth + 1)
            if isinstance(word.value, str):
                found = self.value(value, name[0], depth + 1)
                made[word.value] = _same([made[word.value], found]) if word.value in made else found
        return Value(made, table.assumed)

    def _attribute(self, node: ast.Attribute, scope: Scope, depth: int) -> Value:
        path = self.path(node, scope)
        if path is not None and not path.startswith("?."):
            return Value(Dotted(path))
        return self._option(node.attr, depth)

    def _option(self, name: str, depth: int) -> Value:
        """Return the value of an option of the program: as the command gives it, else its default."""
        if name in self.given:
            return Value(self.given[name])
        if name not in self.options:
            return _NO_VALUE
        return Value(self.value(self.options[name], 0, depth + 1).value, assumed=True)

    def _items(self, nodes: list[ast.expr], scope: Scope, depth: int) -> Value:
        found = [self.value(node, scope, depth + 1) for node in nodes]
        if not all(item.known for item in found):
            return _NO_VALUE
        return Value([item.value for item in found], any(item.assumed for item in found))

    def _table(self, node: ast.Dict, scope: Scope, depth: int) -> Value:
        made: dict[str, Value] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            found = self.value(value, scope, depth + 1)
            if key is None:  # **other
                made.update(found.value if isinstance(found.value, dict) else {})
            elif isinstance(word := self.value(key, scope, depth + 1).value, str):
                made[word] = found
        return Value(made)

    def _call(self, node: ast.Call, scope: Scope, depth: int) -> Value:
        path = self.path(node.func, scope) or ""
        if path == "dict":
            return Value(self.arguments(node, scope, depth + 1))
        if path == "getattr" and len(node.args) >= 2:
            base, name = (self.value(item, scope, depth + 1).value for item in node.args[:2])
            if isinstance(base, Dotted) and isinstance(name, str):
                return Value(Dotted(f"{base}.{name}"))
            return self._option(name, depth) if isinstance(name, str) else _NO_VALUE
        if path in _ENVIRONMENT and len(node.args) == 2:
            return Value(self.value(node.args[1], scope, depth + 1).value, assumed=True)
        if path == "?.get" and isinstance(node.func, ast.Attribute) and node.args:
            table, key = (self.value(item, scope, depth + 1).value for item in (node.func.value, node.args[0]))
            if isinstance(table, dict) and isinstance(key, str):
                found = table.get(key)
                if isinstance(found, Value):
                    return found
                return self.value(node.args[1] if len(node.args) > 1 else None, scope, depth + 1)
        return _NO_VALUE

    def _choice(self, node: ast.IfExp, scope: Scope, depth: int) -> Value:
        test = self.value(node.test, scope, depth + 1)
        called = self.path(node.test.func, scope) if isinstance(node.test, ast.Call) else None
        if called is not None and called.startswith("torch.") and called.rpartition(".")[2] in _SUPPORTED:
            test = Value(True, assumed=True)
        if test.known and (test.value is None or isinstance(test.value, (bool, int, str))):
            chosen = self.value(node.body if test.value else node.orelse, scope, depth + 1)
            return Value(chosen.value, chosen.assumed or test.assumed)
        return _same([self.value(item, scope, depth + 1) for item in (node.body, node.orelse)])

    def set_attributes(self) -> dict[str, Value]:
        """Return what the program assigns to attributes of its objects; unknown where two assignments differ."""
        return {
            name: _same([self.value(node, scope) for scope, node in found]) for name, found in self.attributes.items()
        }

    def _entry(self, node: ast.Subscript, scope: Scope, depth: int) -> Value:
        key = self.value(node.slice, scope, depth + 1).value
        table = self.value(node.value, scope, depth + 1).value
        if isinstance(table, dict) and isinstance(key, str):
            found = table.get(key)
            return found if isinstance(found, Value) else _NO_VALUE
        if isinstance(key, str) and not isinstance(table, Dotted):
            return self._option(key, depth)
        return _NO_VALUE

    def arguments(self, node: ast.Call, scope: Scope, depth: int = 0) -> dict[str, Value]:
        """Return the keyword arguments of a call, those of `**table` included."""
        made: dict[str, Value] = {}
        for keyword in node.keywords:
            found = self.value(keyword.value, scope, depth)
            if keyword.arg is not None:
                made[keyword.arg] = found
            elif isinstance(found.value, dict):
                made.update({str(name): value for name, value in found.value.items() if name not in made})
        return made


def _is_plain(found: Value) -> bool:
    return found.value is None or (isinstance(found.value, (bool, int, str)) and not isinstance(found.value, Dotted))


def _same(found: list[Value]) -> Value:
    """Return the one value of several assignments; unknown where they differ."""
    first = found[0] if found else _NO_VALUE
    if all(item.value == first.value and type(item.value) is type(first.value) for item in found):
        return Value(first.value, any(item.assumed for item in found))
    tables = [item.value for item in found if isinstance(item.value, dict)]
    if len(tables) == len(found):
        names = dict.fromkeys(name for table in tables for name in table)
        return Value({name: _same([table[name] for table in tables if name in table]) for name in names})
    return _NO_VALUE
