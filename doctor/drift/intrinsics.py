"""What builtins and the standard library return for abstract values: versions, signatures, containers, look-ups."""

from __future__ import annotations

import ast
import sys
from typing import Protocol, cast

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from .classes import lineage
from .containers import CONTAINER, compare, pairs, truth
from .frames import Call
from .program import Program
from .signatures import Signature
from .sources import Environment
from .state import State
from .values import (
    FALSE,
    NONE,
    TRUE,
    UNKNOWN,
    Bound,
    ClassValue,
    Const,
    External,
    Function,
    Imported,
    Instance,
    Mapping,
    Parameters,
    Partial,
    Result,
    Sequence,
    Unknown,
    Value,
    VersionValue,
)

#: What a machine for attention kernels has. A guard on a device is no guard on a version.
DEVICE: dict[str, Value] = {
    "torch.version.hip": NONE,
    "sys.platform": Const("linux"),
    "os.name": Const("posix"),
    "typing.TYPE_CHECKING": FALSE,
    "typing_extensions.TYPE_CHECKING": FALSE,
    "sys.version_info": Sequence(tuple(Const(item) for item in sys.version_info[:3])),
}
DEVICE_CALLS: dict[str, Value] = {
    "torch.cuda.is_available": TRUE,
    "torch.distributed.is_available": TRUE,
    "torch.backends.mps.is_available": FALSE,
    "torch.xpu.is_available": FALSE,
    "torch.mlu.is_available": FALSE,
    "torch.npu.is_available": FALSE,
    "torch.musa.is_available": FALSE,
    "platform.system": Const("Linux"),
}
PARSERS = frozenset({"parse", "Version", "PkgVersion", "LooseVersion", "StrictVersion", "digit_version",
                     "parse_version", "LegacyVersion", "TorchVersion"})  # fmt: skip
OPERATORS: dict[str, ast.cmpop] = {
    "operator.lt": ast.Lt(), "operator.le": ast.LtE(), "operator.eq": ast.Eq(), "operator.ne": ast.NotEq(),
    "operator.ge": ast.GtE(), "operator.gt": ast.Gt(),
}  # fmt: skip
_TYPES = {f"builtins.{kind.__name__}": kind for kind in (str, int, float, bool, bytes, tuple)}
_METADATA = ("importlib.metadata.", "importlib_metadata.", "pkg_resources.")


class Context(Protocol):
    """What the functions here need of the interpreter."""

    program: Program

    def attribute(self, base: Value, name: str, node: ast.AST, state: State, checked: bool = True) -> Value:
        """Return an attribute, reported when missing."""

    def has_attribute(self, base: Value, name: str, state: State, node: ast.AST) -> bool | None:
        """Return whether a value has an attribute; None when unknown."""

    def set_attribute(self, base: Value, name: str, value: Value, state: State) -> None:
        """Assign an attribute."""

    def call(self, function: Value, call: Call, node: ast.Call, state: State) -> Value:
        """Call a value."""

    def import_module(self, module: str, node: ast.AST, state: State) -> Value:
        """Return a module, reported when missing."""

    def signature_of(self, value: Value) -> Signature | None:
        """Return the signature of a callable."""

    def raise_if_caught(self, exception: str) -> None:
        """Raise an exception of the examined code if a handler catches it."""

    def open_namespace(self) -> None:
        """Note that the module may bind names in ways that are not followed."""


def external_value(name: str, environment: Environment) -> Value:
    """Return what is known of a name in a package that is not read."""
    if name in DEVICE:
        return DEVICE[name]
    if name.startswith("distribution:") and name.endswith(".version"):
        distribution = name[len("distribution:") : -len(".version")]
        version = environment.version_of(distribution)
        return Const(version, distribution) if version else Unknown("version", True)
    if name.endswith(".__version__"):
        top = name.partition(".")[0]
        package = environment.packages.get(top)
        version = environment.version_of(package.release.name if package is not None else top)
        if name.count(".") == 1 and version:
            return Const(version, top)
        return Unknown(f"version of {top}", True)
    return External(name)


def _version_of(context: Context, call: Call) -> Value:
    name = call.positional[0] if call.positional else UNKNOWN
    if not isinstance(name, Const) or not isinstance(name.value, str):
        return Unknown("version", True)
    version = context.program.environment.version_of(name.value)
    if version:
        return Const(version, name.value)
    if context.program.is_distribution_absent(name.value):
        context.raise_if_caught("PackageNotFoundError")
    return Unknown(f"version of {name.value}", True)


def parse_version(value: Value) -> Value:
    """Return the parsed version of a constant."""
    if isinstance(value, VersionValue):
        return value
    if isinstance(value, Const) and isinstance(value.value, str):
        try:
            return VersionValue(str(Version(value.value)), value.of_version)
        except InvalidVersion:
            return Unknown("version", True)
    return Unknown("version", isinstance(value, Unknown) and value.environment)


def builtin_call(context: Context, name: str, call: Call, node: ast.Call, state: State) -> Value:
    """Return the result of calling something of a package that is not read."""
    if name in DEVICE_CALLS:
        return DEVICE_CALLS[name]
    last = name.rpartition(".")[2]
    first = call.positional[0] if call.positional else None
    if last in PARSERS and len(call.positional) == 1 and first is not None and not name.startswith(("ast.", "json.")):
        return parse_version(first)
    if name.startswith(_METADATA):
        return _metadata_call(context, last, call)
    if name.startswith("builtins."):
        return _builtin(context, last, call, node, state)
    if name in OPERATORS and len(call.positional) == 2:
        return compare(OPERATORS[name], call.positional[0], call.positional[1], context.signature_of)
    if name == "functools.partial" and first is not None:
        return Partial(first, tuple(call.positional[1:]), call.keywords)
    if name in ("inspect.signature", "inspect.getfullargspec", "inspect.getargspec") and first is not None:
        if isinstance(first, (Function, ClassValue, Bound, Partial, Instance)):
            return Parameters(first, "signature" if last == "signature" else "spec")
        assumed = isinstance(first, External) and context.program.is_assumed(first.name)
        return Unknown("signature", not assumed)
    if name in ("inspect.isfunction", "inspect.isclass", "inspect.ismethod", "inspect.isroutine"):
        if isinstance(first, (Function, ClassValue, Bound)):
            wanted = {"isfunction": Function, "isclass": ClassValue, "ismethod": Bound}.get(last)
            return Const(wanted is None or isinstance(first, wanted))
        return UNKNOWN
    if name in ("importlib.import_module", "builtins.__import__") and isinstance(first, Const):
        return context.import_module(str(first.value), node, state)
    if name == "importlib.util.find_spec" and isinstance(first, Const):
        return _find_spec(context.program, str(first.value))
    if name in ("types.MethodType",) and isinstance(first, Function) and len(call.positional) == 2:
        return Bound(first, call.positional[1])
    if name == "typing.cast" and len(call.positional) == 2:
        return call.positional[1]
    if name in ("copy.copy", "copy.deepcopy") and first is not None:
        return first
    if name == "functools.wraps":
        return External("functools.wraps(...)")  # which returns the function that it is applied to
    if name.startswith("functools.") and isinstance(first, Function):
        return first
    if name.startswith("torch.") and last in ("disable", "compile", "script", "ignore", "export", "allow_in_graph"):
        return first if isinstance(first, Function) else UNKNOWN
    if name.startswith("torch.ops."):
        return UNKNOWN
    if last.startswith("is_") and last.endswith("_available"):
        return Unknown("availability", True)
    texts = [item.value for item in call.positional if isinstance(item, Const) and isinstance(item.value, str)]
    if "Lazy" in last and len(texts) == 2 and context.program.environment.find(texts[0]) is not None:
        return Imported(texts[0], texts[1])  # an object that imports a name on first use
    return UNKNOWN


def refuses_release(function: Value, call: Call, environment: Environment) -> bool:
    """Return whether a call of a function `require_version` raises: it names the releases that it wants."""
    name = ""
    if isinstance(function, (Function, External)):
        name = function.qualname if isinstance(function, Function) else function.name
    text = call.positional[0] if call.positional else UNKNOWN
    if name.rpartition(".")[2] != "require_version" or not isinstance(text, Const) or not isinstance(text.value, str):
        return False
    try:
        requirement = Requirement(text.value)
        version = environment.version_of(requirement.name)
        return version is not None and not requirement.specifier.contains(version, prereleases=True)
    except (InvalidRequirement, InvalidVersion):
        return False


def _find_spec(program: Program, module: str) -> Value:
    top = module.partition(".")[0]
    if program.package(module) is not None:
        return External("found:spec") if program.environment.find(module) is not None else NONE
    if program.is_absent(module):
        return NONE
    return External("found:spec") if top == module else Unknown("module", True)


def _metadata_call(context: Context, last: str, call: Call) -> Value:
    if last == "version":
        return _version_of(context, call)
    if last in ("distribution", "get_distribution") and call.positional and isinstance(call.positional[0], Const):
        found = _version_of(context, call)
        name = str(call.positional[0].value)
        return External(f"distribution:{name}") if isinstance(found, Const) else Unknown("version", True)
    if last == "parse_version" and call.positional:
        return parse_version(call.positional[0])
    if last == "packages_distributions":
        environment = context.program.environment
        known = {top: package.release.name for top, package in environment.packages.items()}
        entries = tuple(sorted((top, Sequence((Const(name),), True)) for top, name in known.items()))
        return Mapping(entries, frozenset(), False) if len(entries) < 4000 else Unknown("distributions", True)
    return Unknown("metadata", True)


#: Builtins whose result is as unknown as their arguments.
_PURE = frozenset({"int", "float", "str", "bool", "max", "min", "any", "all", "len", "sum", "abs", "tuple", "list"})


def _builtin(context: Context, name: str, call: Call, node: ast.Call, state: State) -> Value:
    value = _builtin_result(context, name, call, node, state)
    if isinstance(value, Unknown) and name in _PURE and any(_of_environment(item) for item in call.positional):
        return Unknown(value.reason, True)
    return value


def _of_environment(value: Value) -> bool:
    return isinstance(value, Unknown) and value.environment


def _builtin_result(context: Context, name: str, call: Call, node: ast.Call, state: State) -> Value:
    args = call.positional
    first = args[0] if args else None
    if name in ("hasattr", "getattr") and len(args) >= 2 and first is not None and isinstance(args[1], Const):
        attribute = str(args[1].value)
        known = context.has_attribute(first, attribute, state, node)
        if name == "hasattr":
            environment = not isinstance(first, (Unknown, Const, Result))
            return Unknown("attribute", environment) if known is None else Const(known)
        if len(args) == 3 and known is not True:
            return args[2] if known is False else UNKNOWN
        return context.attribute(first, attribute, node, state)
    if name == "setattr" and len(args) == 3 and isinstance(args[1], Const) and first is not None:
        context.set_attribute(first, str(args[1].value), args[2], state)
        return NONE
    if name == "__import__" and isinstance(first, Const):
        return context.import_module(str(first.value).partition(".")[0], node, state)
    if name == "exec":
        context.open_namespace()
        return UNKNOWN
    if name == "dict":
        return _dict(call)
    if name in ("list", "tuple", "set", "sorted", "frozenset", "iter", "reversed"):
        return _series(name, first)
    if name == "len" and first is not None:
        return _length(context, first)
    if name in ("int", "float", "str", "bool") and isinstance(first, (Const, VersionValue)):
        return _converted(name, first)
    if name == "bool" and first is not None:
        known = truth(first)
        return (
            Const(known) if known is not None else Unknown(environment=isinstance(first, Unknown) and first.environment)
        )
    if name in ("zip", "enumerate", "map", "range"):
        return _iterated(context, name, call, node, state)
    if name in ("any", "all") and isinstance(first, Sequence):
        known_items = [truth(item) for item in first.items]
        if None not in known_items:
            of_version = next(
                (item.of_version for item in first.items if isinstance(item, Const) and item.of_version), ""
            )
            return Const((any if name == "any" else all)(known_items), of_version)
        return Unknown(environment=any(isinstance(item, Unknown) and item.environment for item in first.items))
    if name == "isinstance" and len(args) == 2:
        return _is_instance(context, args[0], args[1])
    if name == "type" and len(args) == 1 and isinstance(first, Instance) and first.exact:
        return ClassValue(first.info)
    if name == "callable" and isinstance(first, (Function, ClassValue, Bound, Partial)):
        return TRUE
    if name in ("max", "min") and len(args) > 1:
        numbers = [item for item in args if isinstance(item, Const) and isinstance(item.value, (int, float))]
        if len(numbers) == len(args):
            return (max if name == "max" else min)(numbers, key=lambda item: cast("float", item.value))
    return UNKNOWN


def _is_instance(context: Context, value: Value, kind: Value) -> Value:
    """Return whether an object is of a class; known for objects of classes with source."""
    kinds = kind.items if isinstance(kind, Sequence) else (kind,)
    names = [item.name for item in kinds if isinstance(item, External)]
    if isinstance(value, (Const, VersionValue)) and len(names) == len(kinds) and set(names) <= {*_TYPES, *_PARSED}:
        plain_types = tuple(_TYPES[name] for name in names if name in _TYPES)
        known = isinstance(value, Const) and isinstance(value.value, plain_types)
        return Const(known or (isinstance(value, VersionValue) and not _PARSED.isdisjoint(names)))
    if not isinstance(value, Instance) or not all(isinstance(item, ClassValue) for item in kinds):
        return UNKNOWN
    order, closed, _ = lineage(context.program, value.info)
    if any(isinstance(item, ClassValue) and item.info in order for item in kinds):
        return TRUE
    return FALSE if closed and value.exact else UNKNOWN


_PARSED = frozenset({"packaging.version.Version", "packaging.version._BaseVersion"})


def _dict(call: Call) -> Value:
    base: Value = Mapping()
    if call.positional:
        given = call.positional[0]
        base = (
            pairs(given) if isinstance(given, Sequence) else given if isinstance(given, Mapping) else Mapping(open=True)
        )
    assert isinstance(base, Mapping)
    return base.updated(call.keywords)


def _series(name: str, value: Value | None) -> Value:
    if value is None:
        return Sequence((), name != "tuple")
    if isinstance(value, Sequence) and name in ("list", "tuple", "iter"):
        return Sequence(value.items, name == "list")
    if isinstance(value, Sequence) and name == "reversed":
        return Sequence(value.items[::-1])
    if isinstance(value, (Parameters, Mapping)):
        return value
    if isinstance(value, Const) and isinstance(value.value, (tuple, str)) and len(value.value) < CONTAINER:
        return Sequence(tuple(Const(item, value.of_version) for item in value.value), name == "list")
    return UNKNOWN


def _length(context: Context, value: Value) -> Value:
    if isinstance(value, Sequence):
        return Const(len(value.items))
    if isinstance(value, Result):
        return Const(next(iter(value.lengths))) if len(value.lengths) == 1 else UNKNOWN
    if isinstance(value, Parameters):
        signature = context.signature_of(value.target)
        return Const(len(signature.parameters)) if signature is not None else Unknown("signature", True)
    if isinstance(value, Const) and isinstance(value.value, (str, tuple, bytes)):
        return Const(len(value.value))
    return UNKNOWN


def _converted(name: str, value: Const | VersionValue) -> Value:
    if isinstance(value, VersionValue):
        return Const(value.text, value.of) if name == "str" else UNKNOWN
    try:
        if name == "str":
            return Const(str(value.value), value.of_version)
        if name == "bool":
            return Const(bool(value.value), value.of_version)
        if isinstance(value.value, (int, float)) or (isinstance(value.value, str) and len(value.value) < 40):
            return Const((int if name == "int" else float)(value.value), value.of_version)
    except (ValueError, OverflowError):
        pass
    return UNKNOWN


def _iterated(context: Context, name: str, call: Call, node: ast.Call, state: State) -> Value:
    args = call.positional
    if name == "range":
        numbers = [item.value for item in args if isinstance(item, Const) and isinstance(item.value, int)]
        if len(numbers) == len(args) and args:
            made = range(*numbers)
            return Sequence(tuple(Const(item) for item in made)) if len(made) <= 4 else UNKNOWN
        return UNKNOWN
    if name == "map" and len(args) == 2 and isinstance(args[1], Sequence) and len(args[1].items) <= CONTAINER:
        results: list[Value] = []
        for item in args[1].items:
            inner = Call()
            inner.positional = [item]
            results.append(context.call(args[0], inner, node, state))
        return Sequence(tuple(results))
    series = [item for item in args if isinstance(item, Sequence)]
    if name == "enumerate" and series:
        return Sequence(tuple(Sequence((Const(index), item)) for index, item in enumerate(series[0].items)))
    if name == "zip" and len(series) == len(args) and args:
        return Sequence(tuple(Sequence(items) for items in zip(*(item.items for item in series), strict=False)))
    return UNKNOWN
