"""Check methods that override those of another package against the calls that package makes."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .classes import class_attribute, dotted, is_class_method, is_property, is_static, lineage
from .findings import Kind
from .frames import Frame, Violation
from .machine import Machine
from .program import Record
from .signatures import Arguments, misfits
from .state import State
from .trees import walk
from .values import ClassInfo, Function


def check_overrides(machine: Machine, records: Iterable[Record]) -> None:
    """Report overriding methods that a call `self.method(...)` of the base class does not fit."""
    for record in list(records):
        for info in list(record.classes.values()):
            for name, value in list(info.attributes.items()):
                if isinstance(value, Function) and value.owner is info and not name.startswith("__"):
                    _check(machine, record, info, name, value)


def _check(machine: Machine, record: Record, info: ClassInfo, name: str, method: Function) -> None:
    program = machine.program
    order, closed, _ = lineage(program, info)
    base = next((item for item in order[1:] if name in item.attributes), None)
    if base is None or not closed or program.package(base.module) is record.package:
        return
    inherited = class_attribute(program, base, name)
    if not isinstance(inherited, Function):
        return
    if any(is_property(item) or is_static(item) or is_class_method(item) for item in (inherited, method)):
        return
    mine, theirs = machine.checker.function_signature(method), machine.checker.function_signature(inherited)
    if mine is None or theirs is None or mine.text == theirs.text:
        return
    bound, inherited_bound = mine.without_first(), theirs.without_first()
    for call in _calls(
        order[1:], name, {item.module for item in order if program.package(item.module) is record.package}
    ):
        shape = _shape(call)
        if misfits(inherited_bound, shape):
            continue
        found = misfits(bound, shape)
        if found:
            symbol = f"{base.symbol}.{name}"
            message = (
                f"`{base.qualname}` calls `self.{name}(...)` so that the override does not bind: {found[0].message}"
            )
            violation = Violation(
                Kind.INCOMPATIBLE_OVERRIDE, symbol, found[0].name, message, base.module, inherited.line, theirs.text
            )
            machine.sink.violation(Frame(record, info.qualname), method.node, State(), violation)
            return


def _calls(order: list[ClassInfo], name: str, own: set[str]) -> Iterable[ast.Call]:
    for info in order:
        if info.module in own:
            continue
        for node in walk(info.node):
            if isinstance(node, ast.Call) and dotted(node.func) == f"self.{name}":
                yield node


def _shape(call: ast.Call) -> Arguments:
    star = any(isinstance(item, ast.Starred) for item in call.args)
    keywords = frozenset(item.arg for item in call.keywords if item.arg is not None)
    return Arguments(
        sum(1 for item in call.args if not isinstance(item, ast.Starred)), star, keywords, frozenset(),
        any(item.arg is None for item in call.keywords),
    )  # fmt: skip
