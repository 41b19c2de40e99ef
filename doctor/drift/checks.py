"""Check a use against its target: does the name exist, does the call bind, does the result unpack."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

from .classes import (
    call_method,
    class_attribute,
    constructor,
    function_signature,
    is_class_method,
    is_property,
    is_static,
    lineage,
    may_have_attribute,
    return_lengths,
    self_reads,
    store_lines,
)
from .findings import Kind
from .frames import Call, Frame, Sink, Violation
from .program import Program
from .signatures import Signature, misfits
from .state import State
from .values import (
    NONE,
    UNKNOWN,
    Bound,
    Choice,
    ClassInfo,
    ClassValue,
    Const,
    External,
    Function,
    Imported,
    Instance,
    Mapping,
    ModuleValue,
    Parameters,
    Partial,
    Result,
    Sequence,
    Unknown,
    Value,
    choice,
)

#: Where a class of the caller gets an attribute: defined, assigned, or named as text.
_OWN_NAME = r"def\s+NAME\b|\.NAME\s*[:=][^=]|[\"']NAME[\"']|^\s+NAME\s*[:=]"
#: Where an object of another package gets an attribute from the caller, or the caller looks whether it has one.
_GIVEN_NAME = r"(?<!\bself)(?<!\bcls)\.NAME\s*=[^=]|(?:has|get|set)attr\([^,]+,\s*[\"']NAME[\"']"
Inline = Callable[[Function, "Value | None", Call, State], Value]
Fail = Callable[[Frame, ast.AST, State, Violation], None]


class Checker:
    """Resolves attributes and calls of values with source, and reports what does not fit."""

    def __init__(self, program: Program, sink: Sink, inline: Inline, fail: Fail) -> None:
        """Report through `fail`, which may raise into a handler of the examined code."""
        self.program = program
        self.sink = sink
        self.inline = inline
        self.fail = fail
        self.signatures: dict[tuple[str, str, int], Signature | None] = {}
        self.lengths: dict[tuple[str, str, int], frozenset[int]] = {}
        self.reading: set[int] = set()
        self.patches: list[tuple[ClassInfo, str, Function]] = []
        self.dispatched: list[tuple[Function, str]] = []
        """Functions that become methods of objects whose class the code tests by name, with that name."""

    def foreign(self, frame: Frame, module: str) -> bool:
        """Return whether a module belongs to another package than the code that is run."""
        package = self.program.package(module)
        return package is not None and package is not frame.record.package

    # Signatures

    def function_signature(self, function: Function) -> Signature | None:
        """Return the signature of a function; None when a decorator hides it."""
        key = (function.module, function.qualname, function.line)
        if key not in self.signatures:
            self.signatures[key] = function_signature(self.program, function)
        return self.signatures[key]

    def signature(self, value: Value) -> Signature | None:
        """Return the signature of a callable as `inspect.signature` shows it; None when unknown."""
        if isinstance(value, Function):
            return self.function_signature(value)
        if isinstance(value, Bound):
            found = self.function_signature(value.function)
            return found.without_first() if found is not None else None
        if isinstance(value, ClassValue):
            return constructor(self.program, value.info)[1]
        if isinstance(value, Instance):
            method = call_method(self.program, value.info)
            found = self.function_signature(method) if isinstance(method, Function) else None
            return found.without_first() if found is not None else None
        return None

    def result(self, function: Function) -> Value:
        """Return the value of a call to a function of another package."""
        key = (function.module, function.qualname, function.line)
        if key not in self.lengths:
            known = self.function_signature(function) is not None
            self.lengths[key] = return_lengths(function) if known else frozenset()
        return Result(function, self.lengths[key])

    # Attributes

    def attribute(self, frame: Frame, base: Value, name: str, node: ast.AST, state: State, checked: bool) -> Value:
        """Return an attribute of a value with source; a surely missing one fails where `checked`."""
        if isinstance(base, ModuleValue):
            return self._module_attribute(frame, base, name, node, state, checked)
        if isinstance(base, ClassValue):
            found = self._class_attribute(base.info, name)
            if found is None and not may_have_attribute(self.program, base.info, name, instance=False):
                return self._missing(frame, base.info, base.info, name, node, state, checked)
            return found if found is not None else UNKNOWN
        if isinstance(base, Instance):
            return self._instance_attribute(frame, base, name, node, state, checked)
        if isinstance(base, (Function, Bound)) and name in ("_init_fn", "__wrapped__", "__func__", "default"):
            return base
        return UNKNOWN

    def _module_attribute(
        self, frame: Frame, base: ModuleValue, name: str, node: ast.AST, state: State, checked: bool
    ) -> Value:
        found = self.program.member(base.name, name)
        if self.foreign(frame, base.name):
            self.sink.use(frame, node, base.name, found is not None and not isinstance(found, (Unknown, Choice)))
        if found is not None:
            return self.program.force(found)
        if checked and self.foreign(frame, base.name):
            violation = Violation(
                Kind.MISSING_ATTRIBUTE, f"{base.name}.{name}", name, f"module `{base.name}` has no `{name}`", base.name
            )
            self.fail(frame, node, state, violation)
        return UNKNOWN

    def _class_attribute(self, info: ClassInfo, name: str) -> Value | None:
        found = class_attribute(self.program, info, name)
        if isinstance(found, Function):
            if is_property(found):
                return UNKNOWN
            if is_class_method(found):
                return Bound(found, ClassValue(info))
        return found

    def _instance_attribute(
        self, frame: Frame, base: Instance, name: str, node: ast.AST, state: State, checked: bool
    ) -> Value:
        found = self._class_attribute(base.info, name)
        stored = None if found is not None and found != NONE else self._stored(frame, base, name)
        if checked and (found is not None or stored is not None) and self.foreign(frame, base.info.module):
            self.sink.fits(frame, node, f"{base.info.symbol}.{name}")
        if isinstance(found, Function) and not is_static(found):
            return Bound(found, base)
        if found is not None and found != NONE:
            return found
        if stored is not None:
            return stored
        if found is not None or may_have_attribute(self.program, base.info, name, instance=True):
            return UNKNOWN
        foreign = [item for item in lineage(self.program, base.info)[0] if self.foreign(frame, item.module)]
        if not foreign:
            return UNKNOWN
        if any(name in self_reads(item.node) for item in foreign):
            return UNKNOWN  # a class that others complete, or that is given the attribute
        own = not self.foreign(frame, base.info.module)
        if self._spelled_by(frame, own, name):
            return UNKNOWN
        return self._missing(frame, base.info, foreign[0], name, node, state, checked)

    def _spelled_by(self, frame: Frame, own: bool, name: str) -> bool:
        """Return whether the caller's code gives an attribute of this name to a class of its own, or to another's."""
        pattern = re.compile((_OWN_NAME if own else _GIVEN_NAME).replace("NAME", name), re.M)
        through_self = re.compile(rf"\bself\.{name}\s*=[^=]")
        for path in self.program.environment.files(frame.record.package):
            data = self.program.environment.peek(path)
            if name.encode() not in data:
                continue
            text = data.decode("utf-8", "replace")
            if pattern.search(text) or (through_self.search(text) and self._given_by_function(frame, path, name)):
                return True
        return False

    def _given_by_function(self, frame: Frame, path: Path, name: str) -> bool:
        """Return whether a function outside any class assigns `self.name`, where `self` is of another package."""
        record = self.program.records.get(self.program.environment.module_name(frame.record.package, path))
        parsed = self.program.environment.parse(path, str(path)) if record is None or record.tree is None else None
        tree = record.tree if record is not None and record.tree is not None else parsed.tree if parsed else None
        waiting: list[ast.AST] = [tree] if tree is not None else []
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store):
                return True
            waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.ClassDef)]
        return False

    def _missing(
        self, frame: Frame, info: ClassInfo, symbol: ClassInfo, name: str, node: ast.AST, state: State, checked: bool
    ) -> Value:
        if checked and self.foreign(frame, symbol.module):
            violation = Violation(
                Kind.MISSING_ATTRIBUTE, f"{symbol.symbol}.{name}", name,
                f"`{info.qualname}` has no attribute `{name}`", symbol.module, symbol.line,
            )  # fmt: skip
            self.fail(frame, node, state, violation)
        return UNKNOWN

    def _stored(self, frame: Frame, base: Instance, name: str) -> Value | None:
        """Return what the methods of a class assign to an attribute of its instances; None where none does."""
        order, _, _ = lineage(self.program, base.info)
        self._read_instance(base.info, order)
        seen = {line for info in order for line in info.stored_at}
        own = (info for info in order if not self.foreign(frame, info.module))
        if any(not store_lines(info.node).get(name, frozenset()) <= seen for info in own):
            return UNKNOWN  # another package is needed there, or the method did not run yet
        values: list[Value] = []
        for info in order:
            values += [item for item in (info.instance or {}).get(name, []) if item != NONE]
        if not values:
            return None
        return choice([self.program.force(item) for item in values])

    def _read_instance(self, info: ClassInfo, order: list[ClassInfo]) -> None:
        """Run the first `__init__` of a class once, so that the attributes of its instances are known."""
        if info.instance is not None or id(info) in self.reading:
            return
        info.instance = {}
        self.reading.add(id(info))
        for item in order:
            method = item.attributes.get("__init__")
            if isinstance(method, Function):
                call = Call()
                call.star, call.keywords = True, Mapping(open=True)
                self.inline(method, Instance(info), call, State())
                break
        self.reading.discard(id(info))

    def super_attribute(self, frame: Frame, node: ast.Attribute, state: State, receiver: Value | None) -> Value:
        """Return what `super().name` gives."""
        if frame.owner is None:
            return UNKNOWN
        info = receiver.info if isinstance(receiver, Instance) else frame.owner
        found = class_attribute(self.program, info, node.attr, after=frame.owner)
        if isinstance(found, Function) and not is_property(found):
            if is_static(found):
                return found
            return Bound(found, receiver if receiver is not None else Instance(frame.owner, False))
        return UNKNOWN if found is None else found

    def store(self, frame: Frame, base: Value, name: str, value: Value, state: State, line: int = 0) -> None:
        """Note an assignment to an attribute of a module, class or instance."""
        if isinstance(base, ModuleValue):
            record = self.program.record(base.name)
            if record is not None and record.package is not frame.record.package:
                record.patched.add(name)
                record.namespace.pop(name, None)
        elif isinstance(base, ClassValue):
            if self.foreign(frame, base.info.module):
                base.info.patched.add(name)
                if isinstance(value, Function) and not state.unknown:
                    self.patches.append((base.info, name, value))
            else:
                old = base.info.attributes.get(name)
                sure = old is None or not state.facts
                base.info.attributes[name] = value if sure or old is None else choice([old, value])
        elif isinstance(base, Instance) and not self.foreign(frame, base.info.module):
            if base.info.instance is None:
                base.info.instance = {}
            base.info.stored_at.add(line)
            values = base.info.instance.setdefault(name, [])
            if value not in values and len(values) < 8:
                values.append(value)
        elif isinstance(base, Instance) and base.exact is False:
            base.info.patched.add(name)
        elif isinstance(base, Unknown) and isinstance(value, Bound) and not state.unknown:
            self.dispatched += [(value.function, tested) for tested in _tested_names(state)]

    # Calls

    def call_any(self, frame: Frame, function: Choice, call: Call, node: ast.Call, state: State) -> Value:
        """Check a call to one of several values: it fails only where each of them refuses it."""
        refused: list[Violation] = []
        results: list[Value] = []
        fits = False
        for item in function.values:
            if isinstance(item, Const):
                continue
            violations, result = self.examine(frame, item, call)
            results.append(result)
            refused += violations[:1]
            if not violations:
                fits = True
                if symbol := _symbol_of(item):
                    self.sink.fits(frame, node, symbol)
        if refused and not fits:
            self.fail(frame, node, state, refused[0])
        return choice(results) if results else UNKNOWN

    def call(self, frame: Frame, function: Value, call: Call, node: ast.Call, state: State) -> Value:
        """Check a call and return its result; a call inside the package itself is followed."""
        target, receiver = _target(function)
        if target is not None and not self.foreign(frame, target.module):
            return self.inline(target, receiver, call, state)
        if isinstance(function, ClassValue) and not self.foreign(frame, function.info.module):
            self._construct_own(frame, function, call, state)
            return Instance(function.info)
        violations, result = self.examine(frame, function, call)
        for violation in violations:
            self.fail(frame, node, state, violation)
        module = _module_of(function)
        if not violations and (symbol := _symbol_of(function)):
            self.sink.fits(frame, node, symbol)
        if module and self.foreign(frame, module):
            self.sink.use(frame, node, module, self.signature(function) is not None)
        return result

    def _construct_own(self, frame: Frame, function: ClassValue, call: Call, state: State) -> None:
        """Check the call of an own class whose constructor is inherited from another package."""
        found, _ = constructor(self.program, function.info)
        if found is not None and self.foreign(frame, found.module):
            self.sink.use(frame, function.info.node, found.module, True)

    def examine(self, frame: Frame, function: Value, call: Call) -> tuple[list[Violation], Value]:
        """Return what is wrong with a call, and its result."""
        if isinstance(function, (Function, Bound)):
            target, receiver = _target(function)
            assert target is not None
            signature = self.function_signature(target)
            if signature is not None and receiver is not None:
                signature = signature.without_first()
            return self._violations(frame, signature, call, target.symbol, target.module, target.line), self.result(
                target
            )
        if isinstance(function, ClassValue):
            target, signature = constructor(self.program, function.info)
            line = target.line if target is not None else function.info.line
            module = target.module if target is not None else function.info.module
            symbol = _symbol_of(function)
            return self._violations(frame, signature, call, symbol, module, line), Instance(function.info)
        if isinstance(function, Instance):
            method = call_method(self.program, function.info)
            if not isinstance(method, Function) or "forward" in function.info.patched:
                return [], UNKNOWN
            signature = self.function_signature(method)
            signature = signature.without_first() if signature is not None else None
            found = self._violations(frame, signature, call, method.symbol, method.module, method.line)
            return found, self.result(method)
        return [], UNKNOWN

    def _violations(
        self, frame: Frame, signature: Signature | None, call: Call, symbol: str, module: str, line: int
    ) -> list[Violation]:
        if signature is None or not self.foreign(frame, module):
            return []
        return [
            Violation(item.kind, symbol, item.name, f"`{symbol.rpartition('.')[2]}`: {item.message}", module, line,
                      signature.text)
            for item in misfits(signature, call.arguments())
        ]  # fmt: skip

    # Results

    def unpack(self, frame: Frame, value: Result, count: int, starred: bool, node: ast.AST, state: State) -> None:
        """Check that a result has as many parts as the targets it is unpacked into."""
        function = value.function
        if not value.lengths or not self.foreign(frame, function.module):
            return
        if any(length >= count if starred else length == count for length in value.lengths):
            return
        returned = " or ".join(map(str, sorted(value.lengths)))
        message = f"`{function.qualname}` returns {returned} values, {count} are unpacked"
        violation = Violation(
            Kind.UNPACK_LENGTH,
            function.symbol,
            str(count),
            message,
            function.module,
            function.line,
            self._text(function),
        )
        self.fail(frame, node, state, violation)

    def index(self, frame: Frame, value: Result, index: int, node: ast.AST, state: State) -> None:
        """Check that a result is long enough for an index."""
        function = value.function
        if not value.lengths or not self.foreign(frame, function.module):
            return
        if any(-length <= index < length for length in value.lengths):
            return
        returned = " or ".join(map(str, sorted(value.lengths)))
        message = f"`{function.qualname}` returns {returned} values, index {index} is read"
        violation = Violation(
            Kind.INDEX_RANGE, function.symbol, str(index), message, function.module, function.line, self._text(function)
        )
        self.fail(frame, node, state, violation)

    def _text(self, function: Function) -> str:
        signature = self.function_signature(function)
        return signature.text if signature is not None else ""

    # Imports

    def import_name(self, frame: Frame, module: str, name: str, node: ast.AST, state: State) -> Value | None:
        """Return what `from module import name` binds in another package; fails where the name is missing."""
        missing = self.program.module_missing(module)
        if missing:
            self.fail(frame, node, state, self._no_module(module, missing))
            return UNKNOWN
        found = self.program.provides(module, name)
        self.sink.use(frame, node, module, found is not None and not isinstance(found, (Unknown, Choice)))
        if found is None:
            violation = Violation(
                Kind.MISSING_NAME, f"{module}.{name}", name, f"`{module}` has no name `{name}`", module
            )
            self.fail(frame, node, state, violation)
            return UNKNOWN
        return found if isinstance(found, Imported) else self.program.force(found)

    def import_module(self, frame: Frame, module: str, node: ast.AST, state: State) -> Value:
        """Return a module of another package; fails where it is missing."""
        missing = self.program.module_missing(module)
        if missing:
            self.fail(frame, node, state, self._no_module(module, missing))
            return UNKNOWN
        self.sink.use(frame, node, module, True)
        return ModuleValue(module)

    def _no_module(self, module: str, missing: str) -> Violation:
        return Violation(Kind.MISSING_MODULE, module, missing, f"there is no module `{missing}`", module)

    def has_attribute(self, frame: Frame, base: Value, name: str) -> bool | None:
        """Return whether `hasattr(base, name)`; None when unknown."""
        if isinstance(base, ModuleValue):
            found = self.program.member(base.name, name)
            if found is None:
                return False
            return None if isinstance(found, (Unknown, Choice)) else True
        if isinstance(base, ClassValue):
            if class_attribute(self.program, base.info, name) is not None:
                return True
            return None if may_have_attribute(self.program, base.info, name, instance=False) else False
        if isinstance(base, Instance):
            if (
                class_attribute(self.program, base.info, name) is not None
                or self._stored(frame, base, name) is not None
            ):
                return True
            if not base.exact or not self.foreign(frame, base.info.module):
                return None
            return None if may_have_attribute(self.program, base.info, name, instance=True) else False
        if isinstance(base, (Mapping, Sequence, Parameters, Partial, External)):
            return None
        return None


_TESTED = re.compile(r" (?:==|in) (.+)")
_CLASS_NAME = re.compile(r"'([A-Z][A-Za-z0-9]+)'")


def _tested_names(state: State) -> list[str]:
    """Return the class names of which a condition on the path says that the object has one."""
    tests = [_TESTED.search(text) for text, holds in state.facts.items() if holds]
    return [name for match in tests if match is not None for name in _CLASS_NAME.findall(match.group(1))]


def _target(function: Value) -> tuple[Function | None, Value | None]:
    if isinstance(function, Function):
        return function, None
    if isinstance(function, Bound):
        return function.function, function.receiver
    return None, None


def _symbol_of(function: Value) -> str:
    """Return what a violation of a call to a function or class names; empty for any other value."""
    if isinstance(function, ClassValue):
        return f"{function.info.symbol}.__init__"
    target, _ = _target(function)
    return target.symbol if target is not None else ""


def _module_of(function: Value) -> str:
    target, _ = _target(function)
    if target is not None:
        return target.module
    return function.info.module if isinstance(function, (ClassValue, Instance)) else ""
