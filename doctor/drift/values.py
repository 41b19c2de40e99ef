"""The abstract values that the interpreter computes with."""

from __future__ import annotations

import ast
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field


class Value:
    """Base of all abstract values."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Unknown(Value):
    """A value that the analysis does not know.

    `environment` marks values that depend on the installation (a version, a device), not on the workload. A guard
    that depends on such a value makes the findings behind it uncertain.
    """

    reason: str = field(default="", compare=False)
    environment: bool = False


UNKNOWN = Unknown()
#: Unknown, and the same for every workload.
UNKNOWN_HERE = Unknown(environment=True)


@dataclass(frozen=True, slots=True)
class Const(Value):
    """A plain Python constant."""

    value: object
    of_version: str = field(default="", compare=False)
    """The distribution whose version was compared: a refusal that rests on it refuses that release."""

    def __hash__(self) -> int:
        return hash((type(self.value), repr(self.value)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and type(self.value) is type(other.value) and self.value == other.value


NONE = Const(None)
TRUE = Const(True)
FALSE = Const(False)


@dataclass(frozen=True, slots=True)
class VersionValue(Value):
    """A parsed version that compares as PEP 440 says; `of` names the distribution that has it."""

    text: str
    of: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Sequence(Value):
    """A tuple or list whose length is known."""

    items: tuple[Value, ...]
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Mapping(Value):
    """A dict with string keys: `entries` are surely there, `optional` may be, `open` means others may be too."""

    entries: tuple[tuple[str, Value], ...] = ()
    optional: frozenset[str] = frozenset()
    open: bool = False

    def get(self, key: str) -> Value | None:
        """Return the value of a key that is surely there."""
        return dict(self.entries).get(key)

    def with_item(self, key: str, value: Value) -> Mapping:
        """Return the dict after `d[key] = value`."""
        entries = dict(self.entries)
        entries[key] = value
        return Mapping(tuple(sorted(entries.items(), key=_first)), self.optional - {key}, self.open)

    def without(self, key: str) -> Mapping:
        """Return the dict after `del d[key]`."""
        return Mapping(tuple(item for item in self.entries if item[0] != key), self.optional - {key}, self.open)

    def updated(self, other: Mapping) -> Mapping:
        """Return the dict after `d.update(other)`."""
        entries = dict(self.entries) | dict(other.entries)
        optional = (self.optional | other.optional) - set(entries)
        return Mapping(tuple(sorted(entries.items(), key=_first)), optional, self.open or other.open)


def _first(item: tuple[str, Value]) -> str:
    return item[0]


@dataclass(frozen=True, slots=True)
class Slice(Value):
    """A slice with constant bounds."""

    start: int | None
    stop: int | None


@dataclass(frozen=True, slots=True)
class ModuleValue(Value):
    """A module whose source, or at least whose file, was found."""

    name: str


@dataclass(frozen=True, slots=True)
class External(Value):
    """Something of a package that is not read: the standard library, torch, a package without sources."""

    name: str


@dataclass(frozen=True, slots=True)
class Imported(Value):
    """A name of another module that is not resolved yet."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Function(Value):
    """A function with source."""

    module: str
    qualname: str
    line: int
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda = field(compare=False, repr=False)
    owner: ClassInfo | None = field(default=None, compare=False, repr=False)
    closure: MappingType[str, Value] | None = field(default=None, compare=False, repr=False)
    is_method: bool = field(default=False, compare=False)
    """Defined in the body of a class, whose instance it takes first; functions inside it are not."""

    @property
    def symbol(self) -> str:
        """Return the dotted name."""
        return f"{self.module}.{self.qualname}"

    @property
    def decorators(self) -> list[ast.expr]:
        """Return the decorator expressions, outermost first."""
        return [] if isinstance(self.node, ast.Lambda) else self.node.decorator_list


@dataclass(frozen=True, slots=True)
class Bound(Value):
    """A method with its first argument."""

    function: Function
    receiver: Value


@dataclass(frozen=True, slots=True)
class Partial(Value):
    """`functools.partial(target, *args, **keywords)`."""

    target: Value
    args: tuple[Value, ...] = ()
    keywords: Mapping = field(default_factory=Mapping)


@dataclass(eq=False, slots=True)
class ClassInfo:
    """A class object: one per definition, shared by all values, changed when its attributes are assigned."""

    module: str
    qualname: str
    line: int
    node: ast.ClassDef
    bases: tuple[Value, ...]
    attributes: dict[str, Value] = field(default_factory=dict)
    instance: dict[str, list[Value]] | None = None
    """Attributes of instances with the values assigned to them; None until the methods are read."""
    stored_at: set[int] = field(default_factory=set)
    """Lines at which an attribute of an instance was assigned on some path."""
    patched: set[str] = field(default_factory=set)
    """Attributes that code outside the class assigns."""
    refused: bool = False
    """The constructor always raises, ImportError among others: it needs another release, and no method runs."""
    dynamic: bool = False
    """A decorator or metaclass may add attributes."""

    @property
    def symbol(self) -> str:
        """Return the dotted name."""
        return f"{self.module}.{self.qualname}"


@dataclass(frozen=True, slots=True)
class ClassValue(Value):
    """A class with source."""

    info: ClassInfo


@dataclass(frozen=True, slots=True)
class Instance(Value):
    """An object of a class with source."""

    info: ClassInfo
    exact: bool = True
    """False where the object may be of a subclass."""


@dataclass(frozen=True, slots=True)
class Result(Value):
    """What a function of another package returned: `lengths` of its tuple, empty when unknown."""

    function: Function
    lengths: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Parameters(Value):
    """`inspect.signature(target)`, its `.parameters`, or `getfullargspec(target)`."""

    target: Value
    view: str = "signature"


@dataclass(frozen=True, slots=True)
class Choice(Value):
    """One of several values, depending on what the analysis does not know; `absent` when it may not exist."""

    values: tuple[Value, ...]
    absent: bool = False


def choice(values: list[Value]) -> Value:
    """Return the one value that may be any of these."""
    flat: list[Value] = []
    absent = False
    for value in values:
        for item in value.values if isinstance(value, Choice) else (value,):
            if item not in flat:
                flat.append(item)
        absent = absent or (isinstance(value, Choice) and value.absent)
    if len(flat) == 1 and not absent:
        return flat[0]
    if not flat or len(flat) > 6:
        return UNKNOWN
    unknown = [item for item in flat if isinstance(item, Unknown)]
    if unknown:
        return Unknown(unknown[0].reason, any(item.environment for item in unknown))
    if all(isinstance(item, Const) for item in flat) and not absent:
        return UNKNOWN
    return Choice(tuple(flat), absent)


def alternatives(value: Value) -> tuple[Value, ...]:
    """Return the values that this one may be."""
    return value.values if isinstance(value, Choice) else (value,)


def carries(value: Value, depth: int = 3) -> bool:
    """Return whether a value is worth keeping apart: functions, classes, modules, versions and what contains them."""
    kind = value.__class__
    if kind is Unknown or kind is Const:
        return False
    if isinstance(value, Sequence):
        return depth > 0 and any(carries(item, depth - 1) for item in value.items)
    return True
