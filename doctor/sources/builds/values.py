"""Values of a set-up script that is followed without running it: known constants, and a mark for the rest."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Unknown:
    """A value that only a run of the script shows."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()


class PythonVersion(NamedTuple):
    """`sys.version_info`."""

    major: int
    minor: int
    micro: int = 0


@dataclass
class Module:
    """An imported module, or a class or function of one, by its full name."""

    name: str
    of_project: dict[str, Any] | None = None  # the names of a module of the project itself

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass
class Function:
    """A function of the script."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    bound: tuple[Any, ...] = ()

    def __hash__(self) -> int:
        return id(self)


@dataclass
class Bound:
    """A method of a known value, as `"a b".split`."""

    owner: Any
    name: str


@dataclass
class Scope:
    """Names of a block, and the blocks around it."""

    names: dict[str, Any] = field(default_factory=dict)
    outer: Scope | None = None
    doubtful: set[str] = field(default_factory=set)  # bound in one of two branches only

    def find(self, name: str) -> Scope | None:
        """Return the scope that binds a name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names or name in scope.doubtful:
                return scope
            scope = scope.outer
        return None

    @property
    def top(self) -> Scope:
        """The names of the module."""
        scope = self
        while scope.outer is not None:
            scope = scope.outer
        return scope


def is_known(value: Any) -> bool:
    """Return whether a value has no unknown part."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(is_known(item) for item in value)
    if isinstance(value, dict):
        return all(is_known(key) and is_known(item) for key, item in value.items())
    return not isinstance(value, (Unknown, Module, Function, Bound))


def copied(value: Any) -> Any:
    """Return a copy whose lists and tables can change apart from the original's."""
    if isinstance(value, list):
        return [copied(item) for item in value]
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return value
