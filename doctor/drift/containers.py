"""Methods of constants and containers, and arithmetic, on abstract values."""

from __future__ import annotations

import ast
from collections.abc import Callable

from packaging.version import InvalidVersion, Version

from .frames import Call
from .signatures import Signature
from .values import (
    NONE,
    UNKNOWN,
    Bound,
    ClassValue,
    Const,
    External,
    Function,
    Instance,
    Mapping,
    ModuleValue,
    Parameters,
    Partial,
    Result,
    Sequence,
    Unknown,
    Value,
    VersionValue,
)  # fmt: skip

CONTAINER = 24
STRING_METHODS = frozenset(
    [
        "split",
        "rsplit",
        "strip",
        "lstrip",
        "rstrip",
        "lower",
        "upper",
        "startswith",
        "endswith",
        "partition",
        "rpartition",
        "replace",
        "isdigit",
        "join",
        "removeprefix",
        "removesuffix",
        "title",
        "capitalize",
        "format",
        "count",
        "find",
    ]
)

SignatureOf = Callable[[Value], "Signature | None"]


def truth(value: Value) -> bool | None:
    """Return the truth value, None when unknown."""
    if isinstance(value, Const):
        return bool(value.value)
    if isinstance(value, Sequence):
        return bool(value.items)
    if isinstance(value, Mapping):
        return True if value.entries else None if value.optional or value.open else False
    if isinstance(value, (Function, ClassValue, ModuleValue, VersionValue, Partial, Bound)):
        return True
    if isinstance(value, External) and value.name in ("torch.version.cuda", "found:spec"):
        return True
    return None


def is_none(value: Value) -> bool | None:
    """Return whether a value is None."""
    if isinstance(value, Const):
        return value.value is None
    return None if isinstance(value, (Unknown, Result)) or (truth(value) is None and not _object(value)) else False


def _object(value: Value) -> bool:
    return isinstance(value, (External, Instance, Mapping, Parameters))


def plain(value: Value) -> tuple[bool, object, str]:
    """Return (known, value, distribution) of something that compares like a Python object."""
    if isinstance(value, Const):
        return True, value.value, value.of_version
    if isinstance(value, VersionValue):
        try:
            return True, Version(value.text), value.of
        except InvalidVersion:
            return False, None, ""
    if isinstance(value, Sequence):
        items = [plain(item) for item in value.items]
        if all(item[0] for item in items):
            made = [item[1] for item in items]
            return True, (made if value.is_list else tuple(made)), next((item[2] for item in items if item[2]), "")
    return False, None, ""


def compare(operator: ast.cmpop, left: Value, right: Value, signature_of: SignatureOf) -> Value:
    """Return the outcome of a comparison."""
    unknown = Unknown(environment=any(isinstance(item, Unknown) and item.environment for item in (left, right)))
    if isinstance(operator, (ast.Is, ast.IsNot)):
        same = _identical(left, right)
        return unknown if same is None else Const(same is isinstance(operator, ast.Is))
    if isinstance(operator, (ast.In, ast.NotIn)):
        inside = constant_contains(right, left, signature_of)
        if inside is None and isinstance(right, Parameters):
            return Unknown("signature", True)
        return unknown if inside is None else Const(inside is isinstance(operator, ast.In))
    (known, one, of_one), (known_other, other, of_other) = plain(left), plain(right)
    if not known or not known_other:
        return unknown
    if isinstance(one, Version) != isinstance(other, Version):
        try:
            one, other = Version(str(one)), Version(str(other))
        except InvalidVersion:
            return unknown
    try:
        result = _ordered(operator, one, other)
    except TypeError:
        return unknown
    return unknown if result is None else Const(result, of_one or of_other)


def _ordered(operator: ast.cmpop, one: object, other: object) -> bool | None:
    if isinstance(operator, ast.Eq):
        return one == other
    if isinstance(operator, ast.NotEq):
        return one != other
    if isinstance(operator, ast.Lt):
        return bool(one < other)  # type: ignore[operator]
    if isinstance(operator, ast.LtE):
        return bool(one <= other)  # type: ignore[operator]
    if isinstance(operator, ast.Gt):
        return bool(one > other)  # type: ignore[operator]
    if isinstance(operator, ast.GtE):
        return bool(one >= other)  # type: ignore[operator]
    return None


def _identical(left: Value, right: Value) -> bool | None:
    if right == NONE:
        return is_none(left)
    if left == NONE:
        return is_none(right)
    if isinstance(left, Const) and isinstance(right, Const) and isinstance(left.value, (bool, type(None))):
        return left.value is right.value
    if isinstance(left, ClassValue) and isinstance(right, ClassValue):
        return left.info is right.info
    return None


def constant_contains(container: Value, item: Value, signature_of: SignatureOf) -> bool | None:
    """Return whether `item in container`; None when unknown."""
    if not isinstance(item, Const):
        return None
    if isinstance(container, Parameters):
        signature = signature_of(container.target)
        return None if signature is None else item.value in signature.names
    if isinstance(container, Mapping) and isinstance(item.value, str):
        if container.get(item.value) is not None:
            return True
        return None if container.open or item.value in container.optional else False
    known, value, _ = plain(container)
    if not known:
        return None
    try:
        return item.value in value  # type: ignore[operator]
    except TypeError:
        return None


def constant_method(base: Value, name: str, args: list[Value], signature_of: SignatureOf) -> Value | None:
    """Return the result of a method of a constant, container or set of parameters; None where it is unknown."""
    if isinstance(base, Const) and isinstance(base.value, str) and name in STRING_METHODS:
        given = [plain(item) for item in args]
        if all(item[0] for item in given) and len(base.value) < 2000:
            try:
                found = getattr(base.value, name)(*(item[1] for item in given))
            except (TypeError, ValueError, IndexError, KeyError):
                return None
            if isinstance(found, (list, tuple)):
                return Sequence(tuple(Const(item, base.of_version) for item in found), isinstance(found, list))
            return Const(found, base.of_version)
    if isinstance(base, Mapping):
        if name == "copy":
            return base
        if name == "get" and args and isinstance(args[0], Const) and isinstance(args[0].value, str):
            value = base.get(args[0].value)
            if value is not None:
                return value
            if base.open or args[0].value in base.optional:
                return UNKNOWN
            return args[1] if len(args) > 1 else NONE
        if name == "keys" and not base.open and not base.optional:
            return Sequence(tuple(Const(key) for key, _ in base.entries))
        if name == "items" and not base.open and not base.optional:
            return Sequence(tuple(Sequence((Const(key), value)) for key, value in base.entries))
        if name == "values" and not base.open and not base.optional:
            return Sequence(tuple(value for _, value in base.entries))
    if isinstance(base, Sequence) and name == "copy":
        return base
    if isinstance(base, Parameters) and name in ("keys", "items", "values"):
        return base if name == "keys" else None
    if isinstance(base, Parameters) and name == "get" and args:
        inside = constant_contains(base, args[0], signature_of)
        return NONE if inside is False else None
    return None


def mutated(base: Mapping | Sequence, method: str, call: Call) -> tuple[Value, Value]:
    """Return a container after a method changed it, and what the method returns."""
    first = call.positional[0] if call.positional else None
    if isinstance(base, Mapping):
        if method == "update":
            result = base
            if first is not None:
                if isinstance(first, Sequence):
                    first = pairs(first)
                result = (
                    result.updated(first) if isinstance(first, Mapping) else Mapping(base.entries, base.optional, True)
                )
            return result.updated(call.keywords), Const(None)
        if method in ("pop", "setdefault") and isinstance(first, Const) and isinstance(first.value, str):
            value = base.get(first.value) or UNKNOWN
            if method == "pop":
                return base.without(first.value), value
            if base.get(first.value) is not None:
                return base, value
            default = call.positional[1] if len(call.positional) > 1 else Const(None)
            return base.with_item(first.value, default), default
        if method == "clear":
            return Mapping(), Const(None)
        return Mapping((), frozenset(key for key, _ in base.entries) | base.optional, True), UNKNOWN
    if method == "append" and first is not None and len(base.items) < CONTAINER * 8:
        return Sequence((*base.items, first), True), Const(None)
    if method == "extend" and isinstance(first, Sequence):
        return Sequence(base.items + first.items, True), Const(None)
    if method == "insert" and len(call.positional) == 2 and isinstance(first, Const) and isinstance(first.value, int):
        items = list(base.items)
        items.insert(first.value, call.positional[1])
        return Sequence(tuple(items), True), Const(None)
    return UNKNOWN, UNKNOWN


def pairs(value: Sequence) -> Mapping:
    """Return the dict of a sequence of (key, value) pairs; open where one is not understood."""
    result = Mapping()
    for item in value.items:
        if isinstance(item, Sequence) and len(item.items) == 2 and isinstance(item.items[0], Const):
            key = item.items[0].value
            if isinstance(key, str):
                result = result.with_item(key, item.items[1])
                continue
        return Mapping(result.entries, open=True)
    return result


def version_attribute(base: VersionValue, name: str) -> Value:
    """Return `release`, `major` and the like of a version."""
    try:
        version = Version(base.text)
    except InvalidVersion:
        return UNKNOWN
    if name == "release":
        return Sequence(tuple(Const(item, base.of) for item in version.release))
    if name in ("major", "minor", "micro"):
        return Const(getattr(version, name), base.of)
    if name in ("base_version", "public"):
        return Const(getattr(version, name), base.of)
    return UNKNOWN


def arithmetic(operator: ast.operator, left: Const, right: Const) -> Value:
    """Return the result of an operator on two constants."""
    one, other = left.value, right.value
    try:
        if isinstance(operator, ast.Add) and type(one) is type(other) and isinstance(one, (int, str, float)):
            return Const(one + other)  # type: ignore[operator]
        if isinstance(one, int) and isinstance(other, int):
            if isinstance(operator, ast.Sub):
                return Const(one - other)
            if isinstance(operator, ast.Mult) and abs(one) < 2**31 and abs(other) < 2**31:
                return Const(one * other)
            if isinstance(operator, ast.FloorDiv):
                return Const(one // other)
        if isinstance(operator, ast.Mod) and isinstance(one, str) and len(one) < 200:
            return Const(one % other)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return UNKNOWN
    return UNKNOWN


def parameters_attribute(base: Parameters, name: str, signature_of: SignatureOf) -> Value:
    """Return an attribute of `inspect.signature(f)` or `inspect.getfullargspec(f)`."""
    signature = signature_of(base.target)
    if name == "parameters":
        return Parameters(base.target, "parameters")
    if signature is None or base.view != "spec":
        return Unknown("signature", True)
    if name == "args":
        return Sequence(tuple(Const(item.name) for item in signature.parameters if not item.keyword_only), True)
    if name == "kwonlyargs":
        return Sequence(tuple(Const(item.name) for item in signature.parameters if item.keyword_only), True)
    if name == "defaults":
        count = sum(1 for item in signature.parameters if not item.keyword_only and not item.required)
        return Sequence((UNKNOWN,) * count) if count else NONE
    return UNKNOWN
