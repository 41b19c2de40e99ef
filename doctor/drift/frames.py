"""Where the interpreter is, and what it reports to."""

from __future__ import annotations

import ast
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .findings import Kind, Release
from .program import Record
from .signatures import Arguments
from .sources import Package, SourceFile
from .state import State
from .values import ClassInfo, Function, Mapping, Value

_CATCHES = {
    "ImportError": {"ImportError", "ModuleNotFoundError", "PackageNotFoundError"},
    "ModuleNotFoundError": {"ModuleNotFoundError", "PackageNotFoundError"},
    "PackageNotFoundError": {"PackageNotFoundError"},
    "LookupError": {"KeyError", "IndexError"},
    "DistributionNotFound": {"PackageNotFoundError"},
}


@dataclass
class Frame:
    """The function, or module body, that is being run."""

    record: Record
    scope: str = ""
    owner: ClassInfo | None = None
    closure: MappingType[str, Value] | None = None
    is_module: bool = False
    is_class_body: bool = False
    local_names: frozenset[str] = frozenset()
    """Names that the function binds somewhere: before that they are unbound, whatever the module has."""
    context: str = ""
    """The functions that led here, outermost first."""
    declared_global: set[str] = field(default_factory=set)

    @staticmethod
    def nowhere() -> Frame:
        """Return the frame before anything is run."""
        nothing = Package("", Path(), Path(), Release(""))
        return Frame(Record("", SourceFile("", Path(), False), nothing))


@dataclass(frozen=True)
class Violation:
    """A use that its target does not answer."""

    kind: Kind
    symbol: str
    name: str
    message: str
    module: str
    """Module of the target, which names the callee."""
    line: int = 0
    signature: str = ""


class Sink(Protocol):
    """What is reported of uses and violations."""

    def violation(self, frame: Frame, node: ast.AST, state: State, violation: Violation) -> None:
        """Record a use that fails."""

    def fits(self, frame: Frame, node: ast.AST, symbol: str) -> None:
        """Note a path on which a call fits its target, or an attribute is there."""

    def use(self, frame: Frame, node: ast.AST, module: str, known: bool) -> None:
        """Count a use of something of `module`; `known` says whether it could be checked."""


class Call:
    """The arguments of a call, evaluated."""

    def __init__(self, line: int = 0) -> None:
        self.line = line
        self.positional: list[Value] = []
        self.star = False
        self.keywords = Mapping()

    def arguments(self) -> Arguments:
        """Return the shape of the call."""
        names = frozenset(key for key, _ in self.keywords.entries)
        return Arguments(len(self.positional), self.star, names, self.keywords.optional, self.keywords.open)


def catches(handler: frozenset[str], exception: str) -> bool:
    """Return whether an `except` clause with these names catches an exception."""
    for name in handler:
        if name in ("", "Exception", "BaseException", exception) or exception in _CATCHES.get(name, ()):
            return True
    return False


def exception_of(kind: Kind) -> str:
    """Return the exception that a violation raises at run time."""
    if kind is Kind.MISSING_MODULE:
        return "ModuleNotFoundError"
    if kind is Kind.MISSING_NAME:
        return "ImportError"
    if kind is Kind.MISSING_ATTRIBUTE:
        return "AttributeError"
    if kind is Kind.UNPACK_LENGTH:
        return "ValueError"
    if kind is Kind.INDEX_RANGE:
        return "IndexError"
    if kind is Kind.VERSION_REFUSED:
        return "AssertionError"
    return "TypeError"


def qualified(frame: Frame, name: str) -> str:
    """Return the qualified name of something defined in a frame."""
    return f"{frame.scope}.{name}" if frame.scope else name


def function_value(frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, state: State) -> Function:
    """Make the value of a definition."""
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    closure = frame.closure
    if not frame.is_module and not frame.is_class_body:
        closure = dict(frame.closure or {}) | state.variables
    method = frame.is_class_body
    return Function(frame.record.name, qualified(frame, name), node.lineno, node, frame.owner, closure, method)
