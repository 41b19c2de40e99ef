"""Find the class that a function's `self` is of, where a function becomes the method of another package's class."""

from __future__ import annotations

import ast
import re

from packaging.version import InvalidVersion, Version

from .containers import truth
from .machine import Machine
from .program import Record
from .sources import Package
from .trees import walk
from .values import ClassInfo, ClassValue, Function, Imported, Mapping, VersionValue

CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9]+")
DISPATCH_STEPS = 30_000
_STEM = re.compile(r"([A-Z]\w*?)(?:For[A-Z]\w*|Model)$")


def typed_functions(
    machine: Machine, records: list[Record], callees: list[Package]
) -> list[tuple[Function, ClassInfo]]:
    """Return functions with the classes that they become methods of, from tables and tests by class name.

    Three forms are understood: a dict from class names to functions; `if type(m).__name__ == "X": m.forward =
    MethodType(f, m)`; and `X.forward = f`, which the interpreter has noted already.
    """
    wanted: list[tuple[Function, str]] = []
    refused = Minimum(machine, callees)
    for record in records:
        if record.tree is None:
            continue
        refused.read(record)
        wanted += _from_tables(machine, record)
        if b"MethodType" in (machine.program.text(record.name) or b""):
            wanted += _from_tests(machine, record)
    found: list[tuple[Function, ClassInfo]] = []
    replaced = {name for record in records for name in _replaced_classes(machine, record)}
    index = ClassIndex(machine, callees, {name for _, name in wanted} | replaced)
    for name in replaced:
        other = index.find(name)
        if other is not None:
            other.patched.add("forward")
    for function, name in wanted:
        info = index.find(name)
        if info is not None and not refused.refuses(name) and (function, info) not in found:
            found.append((function, info))
    for info, _, function in machine.checker.patches:
        if (function, info) not in found:
            found.append((function, info))
    return [item for item in found if _takes_self(item[0])]


def _replaced_classes(machine: Machine, record: Record) -> list[str]:
    """Return class names that a table of the caller maps to classes of its own, which take their place."""
    found = []
    for value in list(record.namespace.values()):
        if not isinstance(value, Mapping):
            continue
        for key, item in value.entries:
            if CLASS_NAME.fullmatch(key) and isinstance(item, (Imported, ClassValue)):
                own = machine.program.force(item)
                if isinstance(own, ClassValue) and machine.program.package(own.info.module) is record.package:
                    found.append(key)
    return found


def _takes_self(function: Function) -> bool:
    arguments = function.node.args
    names = [item.arg for item in [*arguments.posonlyargs, *arguments.args]]
    return bool(names) and names[0] == "self" and function.owner is None


def _from_tables(machine: Machine, record: Record) -> list[tuple[Function, str]]:
    tables: dict[str, dict[str, Function]] = {}
    for name, value in list(record.namespace.items()):
        if not isinstance(value, Mapping) or not value.entries:
            continue
        entries = {}
        for key, item in value.entries:
            function = machine.program.force(item) if CLASS_NAME.fullmatch(key) else None
            if isinstance(function, Function):
                entries[key] = function
        if entries:
            tables[name] = entries
    if not tables:
        return []
    overridden, disabled = _conditions_of_tables(machine, record, set(tables))
    return [
        (function, key)
        for name, entries in tables.items() if name not in disabled
        for key, function in entries.items()
        if not any(key in tables[other] for other in overridden.get(name, ()))
    ]  # fmt: skip


def _conditions_of_tables(machine: Machine, record: Record, tables: set[str]) -> tuple[dict[str, set[str]], set[str]]:
    """Return which tables take precedence over which others, and which are never used with these versions."""
    overridden: dict[str, set[str]] = {}
    uses: dict[str, list[bool]] = {}
    assert record.tree is not None
    for node in walk(record.tree):
        if not isinstance(node, ast.If):
            continue
        table = _tested_table(node.test, tables)
        if table is None:
            continue
        others = [item for item in node.test.values if _tested_table(item, tables) is None] \
            if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) else []  # fmt: skip
        known = [machine.evaluate_in(record, item) for item in others]
        usable = not any(truth(item) is False for item in known)
        uses.setdefault(table, []).append(usable)
        certain = all(truth(item) is True for item in known)
        if usable and certain:
            for following in node.orelse:
                if isinstance(following, ast.If) and (other := _tested_table(following.test, tables)) is not None:
                    overridden.setdefault(other, set()).add(table)
    return overridden, {name for name, usable in uses.items() if not any(usable)}


def _tested_table(test: ast.expr, tables: set[str]) -> str | None:
    """Return the table that a condition looks a name up in."""
    for node in walk(test):
        if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.In):
            continue
        container = node.comparators[0]
        if isinstance(container, ast.Name) and container.id in tables:
            return container.id
    return None


def _from_tests(machine: Machine, record: Record) -> list[tuple[Function, str]]:
    """Run the functions that bind methods to objects of unknown classes, and return what each class name gets."""
    machine.checker.dispatched.clear()
    for function in list(machine.functions.get(record.name, {}).values()):
        if b"MethodType" in machine.program.lines(record.name, function.node):
            machine.calls.run_alone(function, DISPATCH_STEPS)
    return list(dict.fromkeys(machine.checker.dispatched))


class Minimum:
    """Tables of minimum versions per model, which a caller checks before it touches a model."""

    def __init__(self, machine: Machine, callees: list[Package]) -> None:
        """Compare with the installed versions of `callees`."""
        self.versions: dict[str, str] = {}
        self.installed = [item.release.version for item in callees if item.release.version]
        self.machine = machine

    def read(self, record: Record) -> None:
        """Take the tables of a module."""
        for value in record.namespace.values():
            if not isinstance(value, Mapping) or len(value.entries) < 2:
                continue
            versions = {key: item.text for key, item in value.entries if isinstance(item, VersionValue)}
            if len(versions) == len(value.entries):
                self.versions |= versions

    def refuses(self, name: str) -> bool:
        """Return whether a class belongs to a model whose minimum version is not met by the only callee."""
        stems = {match.group(1): text for key, text in self.versions.items() if (match := _STEM.match(key))}
        fitting = [stem for stem in stems if name.startswith(stem)]
        if not fitting or not self.installed:
            return False
        try:
            least = Version(stems[max(fitting, key=len)])
            return all(Version(item) < least for item in self.installed)
        except InvalidVersion:
            return False


class ClassIndex:
    """The classes of other packages, by their bare names."""

    def __init__(self, machine: Machine, callees: list[Package], names: set[str]) -> None:
        """Search the sources of `callees` for the classes in `names`."""
        self.machine = machine
        self.modules: dict[str, list[str]] = {}
        if not names:
            return
        pattern = re.compile(
            rb"^class (" + b"|".join(sorted(map(re.escape, (n.encode() for n in names)))) + rb")\b", re.M
        )
        environment = machine.program.environment
        for callee in callees:
            for path in environment.files(callee):
                data = environment.peek(path)
                for match in pattern.finditer(data):
                    module = environment.module_name(callee, path)
                    self.modules.setdefault(match.group(1).decode(), []).append(module)

    def find(self, name: str) -> ClassInfo | None:
        """Return the only class of a name; None where there is none or several."""
        modules = self.modules.get(name, [])
        if len(modules) > 1:
            modules = [item for item in modules if "modular_" not in item]
        if len(modules) != 1:
            return None
        value = self.machine.program.member(modules[0], name)
        value = self.machine.program.force(value) if value is not None else None
        return value.info if isinstance(value, ClassValue) else None
