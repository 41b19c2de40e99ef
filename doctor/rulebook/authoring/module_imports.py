"""What a module imports at its top whenever it is imported: not in a function, and behind no check of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from doctor.model import TORCH

_GATE = re.compile(r"_?is_(\w+?)_(?:available|installed|found)$")
#: Packages that are taken to be there where a gate names them, in addition to the one imported.
_USUAL = {TORCH, "transformers", "accelerate", "peft", "datasets", "numpy", "huggingface_hub"}
TYPE_CHECKING = "TYPE_CHECKING"


class Import(NamedTuple):
    """`from module import name`, or `import module` with an empty name; `gate`: the packages checked for before."""

    module: str
    name: str
    gate: str


def imports_of(body: Sequence[ast.stmt], gate: str = "") -> Iterator[Import]:
    """Yield the imports that always run; those in a `try` are left out, since the code handles their failure."""
    for item in body:
        match item:
            case ast.Import(names=aliases):
                yield from (Import(alias.name, "", gate) for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                yield from (Import("." * level + (module or ""), alias.name, gate) for alias in aliases)
            case ast.If(test=test, body=first, orelse=other):
                words = _gates(test)
                if words == [TYPE_CHECKING]:
                    yield from imports_of(other, gate)
                elif words:
                    yield from imports_of(first, ",".join(filter(None, [gate, *words])))
            case ast.ClassDef(body=first) | ast.With(body=first):
                yield from imports_of(first, gate)
            case _:
                pass


def _gates(test: ast.expr) -> list[str]:
    """Return the packages that a guard checks for; nothing where it checks anything else."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return [TYPE_CHECKING]
        case (
            ast.Call(func=ast.Name(id=name), args=[], keywords=[])
            | ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[])
        ):
            found = _GATE.match(name)
            return [found[1]] if found else []
        case ast.BoolOp(op=ast.And(), values=values):
            parts = [_gates(value) for value in values]
            return [word for part in parts for word in part] if all(parts) else []
        case _:
            return []


def usable(gate: str, package: str) -> bool:
    """Say whether the guards of an import hold wherever the imported package is installed."""
    own = package.replace("-", "_").partition(".")[0]
    return all(word in _USUAL or word == own for word in filter(None, gate.split(",")))


def imports_name(content: bytes, name: str, package: str) -> bool:
    """Say whether a module imports `module.name` of a package at its top; a file that is no Python does not."""
    try:
        found = imports_of(ast.parse(content).body)
    except (SyntaxError, ValueError):
        return False
    return any(
        usable(item.gate, package) and name in (f"{item.module}.{item.name}", item.module) for item in found
    )  # fmt: skip
