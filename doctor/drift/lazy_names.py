"""Names that an object in place of a module works out: `T5TokenizerFast` of transformers 5 is `T5Tokenizer`.

Only what `__getattr__` of its class decides by the ending of a name is followed.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from .trees import walk
from .values import ClassInfo


class ComputedNames(NamedTuple):
    """What `__getattr__` of a module's class does with a name that is not listed."""

    endings: tuple[str, ...] = ()  # of the names that it treats
    cuts: frozenset[int] = frozenset()  # letters that it removes from the end, to look up the rest
    imports: tuple[tuple[str | None, int], ...] = ()  # modules with further names, relative to that of the class

    def shorter(self, name: str) -> tuple[str, ...]:
        """Return the names that are looked up in place of `name`, none where its ending is not treated."""
        if not name.endswith(self.endings or ("\0",)):
            return ()
        return tuple(name[:-cut] for cut in sorted(self.cuts) if len(name) > cut)


def computed_names(info: ClassInfo) -> ComputedNames:
    """Read `__getattr__` of the class of an object that replaces a module."""
    method = next((node for node in info.node.body if _is_getattr(node)), None)
    if not isinstance(method, ast.FunctionDef) or len(method.args.args) != 2:
        return ComputedNames()
    name = method.args.args[1].arg
    endings: list[str] = []
    cuts: set[int] = set()
    imports: list[tuple[str | None, int]] = []
    for node in walk(method):
        if isinstance(node, ast.Call) and _is_method_of(node.func, name, "endswith"):
            constants = (item for argument in node.args for item in ast.walk(argument))
            endings += [item.value for item in constants if isinstance(item, ast.Constant) and type(item.value) is str]
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == name:
            cuts |= _removed_at_the_end(node.slice)
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.module, node.level))
    return ComputedNames(tuple(dict.fromkeys(endings)), frozenset(cuts), tuple(dict.fromkeys(imports)))


def _is_getattr(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"


def _is_method_of(function: ast.expr, name: str, method: str) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr == method
        and isinstance(function.value, ast.Name)
        and function.value.id == name
    )


def _removed_at_the_end(part: ast.expr) -> set[int]:
    """Return {4} for the slice of `name[:-4]`."""
    upper = part.upper if isinstance(part, ast.Slice) and part.lower is None and part.step is None else None
    if isinstance(upper, ast.UnaryOp) and isinstance(upper.op, ast.USub) and isinstance(upper.operand, ast.Constant):
        return {upper.operand.value} if type(upper.operand.value) is int and upper.operand.value > 0 else set()
    return set()
