"""Evaluate expressions to abstract values, and check every use of another package on the way."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from doctor.util.redact import shortened

from .checks import Checker
from .classes import dotted
from .containers import (
    CONTAINER,
    arithmetic,
    compare,
    constant_method,
    mutated,
    parameters_attribute,
    truth,
    version_attribute,
)
from .custom_ops import OPS, CustomOps
from .frames import Call, Frame, function_value
from .handlers import Handlers
from .intrinsics import builtin_call, external_value, refuses_release
from .program import Program
from .signatures import Signature
from .state import Budget, Raised, State, merge, written
from .values import (
    FALSE,
    NONE,
    TRUE,
    UNKNOWN,
    Choice,
    ClassValue,
    Const,
    External,
    Imported,
    Instance,
    Mapping,
    Parameters,
    Partial,
    Result,
    Sequence,
    Slice,
    Unknown,
    Value,
    VersionValue,
    choice,
)

MUTATORS = frozenset(["append", "extend", "insert", "update", "pop", "setdefault", "clear", "remove"])


class Evaluator:
    """Evaluates expressions in a state."""

    def __init__(self, program: Program, checker: Checker, handlers: Handlers, budget: Budget) -> None:
        """Check uses through `checker`, within `budget`."""
        self.program = program
        self.checker = checker
        self.handlers = handlers
        self.budget = budget
        self.custom_ops = CustomOps(program)
        self.frame = Frame.nowhere()

    @contextmanager
    def within(self, frame: Frame) -> Iterator[None]:
        """Evaluate in a frame for a while."""
        outer, self.frame = self.frame, frame
        try:
            yield
        finally:
            self.frame = outer

    # What the intrinsics need

    def has_attribute(self, base: Value, name: str, state: State, node: ast.AST) -> bool | None:
        """Return whether a value has an attribute."""
        return self.checker.has_attribute(self.frame, base, name)

    def set_attribute(self, base: Value, name: str, value: Value, state: State) -> None:
        """Assign an attribute, as `setattr` does."""
        self.checker.store(self.frame, base, name, value, state)

    def signature_of(self, value: Value) -> Signature | None:
        """Return the signature of a callable."""
        return self.checker.signature(value)

    def raise_if_caught(self, exception: str) -> None:
        """Raise an exception of the examined code if a handler catches it."""
        self.handlers.raise_if_caught(exception)

    def open_namespace(self) -> None:
        """Note that the running module binds names in ways that are not followed."""
        if self.frame.is_module:
            self.frame.record.open = True

    def import_module(self, module: str, node: ast.AST, state: State) -> Value:
        """Return a module by name."""
        if self.program.package(module) is None:
            if self.program.is_absent(module):
                self.handlers.raise_if_caught("ModuleNotFoundError")
            return External(module)
        if self.program.package(module) is self.frame.record.package:
            return self.program.module_value(module)
        return self.checker.import_module(self.frame, module, node, state)

    # Names

    def look_up(self, name: str, state: State) -> Value:
        """Return the value of a name, resolved as far as it can be."""
        value = state.variables.get(name)
        if value is None and name in self.frame.local_names:
            return UNKNOWN
        if value is None and self.frame.closure is not None:
            value = self.frame.closure.get(name)
        if value is None and not (self.frame.is_module and not self.frame.is_class_body):
            record = self.frame.record
            value = record.namespace.get(name)
            if record.global_names or record.global_imports:
                value = self.program.global_value(record, name, value)
        if value is None:
            return External(f"builtins.{name}") if hasattr(builtins, name) else UNKNOWN
        return self.program.force(value) if isinstance(value, (Imported, Choice)) else value

    # Expressions

    def eval(self, node: ast.expr | None, state: State) -> Value:
        """Return the value of an expression."""
        if node is None:
            return NONE
        if node.__class__ is ast.Constant:
            return Const(node.value)
        self.budget.tick()
        method = _DISPATCH.get(type(node))
        if method is None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.eval(child, state)
            return UNKNOWN
        return method(self, node, state)

    def _name(self, node: ast.Name, state: State) -> Value:
        return self.look_up(node.id, state)

    def _joined(self, node: ast.JoinedStr, state: State) -> Value:
        parts: list[str] = []
        for item in node.values:
            value = self.eval(item.value if isinstance(item, ast.FormattedValue) else item, state)
            if not isinstance(value, Const):
                return UNKNOWN
            parts.append(str(value.value))
        return Const("".join(parts))

    def _attribute(self, node: ast.Attribute, state: State) -> Value:
        path = dotted(node) if isinstance(node.value, (ast.Name, ast.Attribute)) else None
        if path is not None and path in state.variables:
            return self.program.force(state.variables[path])
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == "super":
            return self.checker.super_attribute(self.frame, node, state, state.variables.get("self"))
        base = self.eval(node.value, state)
        return self.attribute(base, node.attr, node, state)

    def attribute(self, base: Value, name: str, node: ast.AST, state: State, checked: bool = True) -> Value:
        """Return an attribute of a value; a surely missing one is reported where `checked`."""
        if isinstance(base, External):
            path = f"{base.name}.{name}"
            custom = self.custom_ops.find(path) if path.startswith(OPS) else None
            return custom if custom is not None else external_value(path, self.program.environment)
        if isinstance(base, (Unknown, Const)):
            return Unknown(environment=isinstance(base, Unknown) and base.environment)
        if isinstance(base, VersionValue):
            return version_attribute(base, name)
        if isinstance(base, Parameters):
            return parameters_attribute(base, name, self.checker.signature)
        if isinstance(base, Choice):
            return choice([self.attribute(item, name, node, state, False) for item in base.values])
        return self.checker.attribute(self.frame, base, name, node, state, checked)

    def _tuple(self, node: ast.Tuple | ast.List | ast.Set, state: State) -> Value:
        items: list[Value] = []
        known = True
        for element in node.elts:
            if isinstance(element, ast.Starred):
                value = self.eval(element.value, state)
                if isinstance(value, Sequence):
                    items += value.items
                else:
                    known = False
            else:
                items.append(self.eval(element, state))
        return Sequence(tuple(items), isinstance(node, ast.List)) if known and len(items) < 400 else UNKNOWN

    def _dict(self, node: ast.Dict, state: State) -> Value:
        result = Mapping()
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.eval(item, state)
            if key is None:
                result = result.updated(value) if isinstance(value, Mapping) else Mapping(result.entries, open=True)
                continue
            name = self.eval(key, state)
            if isinstance(name, Const) and isinstance(name.value, str):
                result = result.with_item(name.value, value)
            else:
                result = Mapping(result.entries, result.optional, True)
        return result

    def _subscript(self, node: ast.Subscript, state: State) -> Value:
        path = dotted(node.value)
        base = self.eval(node.value, state)
        index = (
            self.eval(node.slice, state) if not isinstance(node.slice, ast.Slice) else self._slice(node.slice, state)
        )
        if isinstance(base, Mapping) and isinstance(index, Const) and isinstance(index.value, str):
            return self.program.force(base.get(index.value) or UNKNOWN)
        if isinstance(base, Sequence):
            if isinstance(index, Const) and isinstance(index.value, (int, bool)):
                inside = -len(base.items) <= index.value < len(base.items)
                return base.items[index.value] if inside else UNKNOWN
            if isinstance(index, Slice):
                return Sequence(base.items[index.start : index.stop], base.is_list)
        if isinstance(base, Const) and isinstance(base.value, (str, tuple)) and isinstance(index, Const):
            try:
                return Const(base.value[index.value])  # type: ignore[index, call-overload]
            except (IndexError, TypeError):
                return UNKNOWN
        if isinstance(base, Result) and isinstance(index, Const) and type(index.value) is int:
            self.checker.index(self.frame, base, index.value, node, state)
        if isinstance(base, External) and base.name == "sys.modules" and isinstance(index, Const):
            return self.program.module_value(str(index.value))
        if isinstance(base, ClassValue):
            return base  # a generic class with its parameters
        if path is not None and isinstance(base, Unknown):
            return Unknown(environment=base.environment)
        return UNKNOWN

    def _slice(self, node: ast.Slice, state: State) -> Value:
        bounds = [self.eval(item, state) if item is not None else None for item in (node.lower, node.upper, node.step)]
        numbers = [item.value if isinstance(item, Const) and isinstance(item.value, int) else None for item in bounds]
        known = all(item is None or isinstance(number, int) for item, number in zip(bounds, numbers, strict=True))
        return Slice(numbers[0], numbers[1]) if known and bounds[2] is None else UNKNOWN

    def _starred(self, node: ast.Starred, state: State) -> Value:
        self.eval(node.value, state)
        return UNKNOWN

    def _lambda(self, node: ast.Lambda, state: State) -> Value:
        return function_value(self.frame, node, state)

    def _named(self, node: ast.NamedExpr, state: State) -> Value:
        value = self.eval(node.value, state)
        state.bind(node.target.id, value)
        return value

    def _if_expression(self, node: ast.IfExp, state: State) -> Value:
        yes, no = self.branch(state, node.test)
        values = [self.eval(node.body, item) for item in yes] + [self.eval(node.orelse, item) for item in no]
        return choice(values) if values else UNKNOWN

    def _boolean(self, node: ast.BoolOp, state: State) -> Value:
        stop = isinstance(node.op, ast.Or)
        values: list[Value] = []
        current = state
        of_version = ""
        for index, item in enumerate(node.values):
            value = self.eval(item, current)
            known = truth(value)
            of_version = of_version or (value.of_version if isinstance(value, Const) else "")
            if known is None:
                values.append(value)
                if index + 1 < len(node.values):
                    yes, no = self.branch(current, item)
                    following = no if stop else yes
                    if not following:
                        break
                    current = following[0]
            elif known is stop:
                if isinstance(value, Const) and isinstance(value.value, bool):
                    value = Const(value.value, of_version)
                return value if not values else choice([*values, value])
            elif index + 1 == len(node.values):
                values.append(value)
        if not values:
            return FALSE if stop else TRUE
        result = choice(values)
        return Const(result.value, of_version) if isinstance(result, Const) else result

    def _unary(self, node: ast.UnaryOp, state: State) -> Value:
        value = self.eval(node.operand, state)
        if isinstance(node.op, ast.Not):
            known = truth(value)
            if known is not None:
                return Const(not known, value.of_version if isinstance(value, Const) else "")
            return Unknown(environment=isinstance(value, Unknown) and value.environment)
        if isinstance(node.op, ast.USub) and isinstance(value, Const) and isinstance(value.value, (int, float)):
            return Const(-value.value)
        return UNKNOWN

    def _binary(self, node: ast.BinOp, state: State) -> Value:
        left, right = self.eval(node.left, state), self.eval(node.right, state)
        if isinstance(node.op, ast.Add) and isinstance(left, Sequence) and isinstance(right, Sequence):
            return Sequence(left.items + right.items, left.is_list)
        if isinstance(node.op, ast.BitOr) and isinstance(left, Mapping) and isinstance(right, Mapping):
            return left.updated(right)
        if isinstance(node.op, ast.Mult):
            for one, other in ((left, right), (right, left)):
                if isinstance(one, Sequence) and isinstance(other, Const) and isinstance(other.value, int):
                    count = len(one.items) * other.value
                    return Sequence(one.items * other.value, one.is_list) if 0 <= count <= CONTAINER * 8 else UNKNOWN
        if isinstance(left, Const) and isinstance(right, Const):
            return arithmetic(node.op, left, right)
        environment = any(isinstance(item, Unknown) and item.environment for item in (left, right))
        return Unknown(environment=environment)

    def _compare(self, node: ast.Compare, state: State) -> Value:
        left = self.eval(node.left, state)
        results: list[Value] = []
        for operator, expression in zip(node.ops, node.comparators, strict=True):
            right = self.eval(expression, state)
            results.append(compare(operator, left, right, self.checker.signature))
            left = right
        known = [truth(item) for item in results]
        of_version = next((item.of_version for item in results if isinstance(item, Const) and item.of_version), "")
        if False in known:
            return Const(False, of_version)
        if all(item is True for item in known):
            return Const(True, of_version)
        return Unknown(environment=any(isinstance(item, Unknown) and item.environment for item in results))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, state: State) -> Value:
        inner = state.fork()
        generator = node.generators[0]
        source = self.eval(generator.iter, inner)
        if len(node.generators) == 1 and isinstance(source, Sequence) and len(source.items) <= CONTAINER:
            items: list[Value] = []
            for item in source.items:
                self.assign(generator.target, item, inner)
                tests = [truth(self.eval(test, inner)) for test in generator.ifs]
                if None in tests:
                    return UNKNOWN
                if False not in tests:
                    items.append(self.eval(node.elt, inner))
            return Sequence(tuple(items), True)
        self._bind_generators(node.generators, inner)
        self.eval(node.elt, inner)
        return UNKNOWN

    def _dict_comprehension(self, node: ast.DictComp, state: State) -> Value:
        inner = state.fork()
        generator = node.generators[0]
        source = self.eval(generator.iter, inner)
        if len(node.generators) == 1 and isinstance(source, Sequence) and len(source.items) <= CONTAINER * 2:
            result = Mapping()
            for item in source.items:
                self.assign(generator.target, item, inner)
                tests = [truth(self.eval(test, inner)) for test in generator.ifs]
                key, value = self.eval(node.key, inner), self.eval(node.value, inner)
                if not isinstance(key, Const) or not isinstance(key.value, str):
                    return Mapping(open=True)
                if False in tests:
                    continue
                if None in tests:
                    result = Mapping(result.entries, result.optional | {key.value}, result.open)
                else:
                    result = result.with_item(key.value, value)
            return result
        self._bind_generators(node.generators, inner)
        self.eval(node.key, inner)
        self.eval(node.value, inner)
        return Mapping(open=True)

    def _bind_generators(self, generators: list[ast.comprehension], state: State) -> None:
        for generator in generators:
            self.eval(generator.iter, state)
            self.assign(generator.target, UNKNOWN, state)
            for test in generator.ifs:
                self.eval(test, state)

    # Assignment to a target

    def assign(self, target: ast.expr, value: Value, state: State, source: ast.expr | None = None) -> None:
        """Bind a target of an assignment, a loop or a `with` block."""
        if isinstance(target, ast.Name):
            state.bind(target.id, value)
            if isinstance(value, Unknown) and isinstance(source, (ast.Name, ast.Attribute)):
                text = dotted(source)
                if text is not None:
                    state.alias(target.id, text)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value, state)
        elif isinstance(target, ast.Attribute):
            path = dotted(target)
            base = self.eval(target.value, state)
            self.checker.store(self.frame, base, target.attr, value, state, target.lineno)
            if path is not None:
                state.bind(path, value)
                text = dotted(source) if isinstance(source, (ast.Name, ast.Attribute)) else None
                if isinstance(value, Unknown) and text is not None:
                    state.alias(path, text)
        elif isinstance(target, ast.Subscript):
            self._store_item(target, value, state)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, UNKNOWN, state)

    def _unpack(self, target: ast.Tuple | ast.List, value: Value, state: State) -> None:
        starred = [index for index, item in enumerate(target.elts) if isinstance(item, ast.Starred)]
        count = len(target.elts)
        if isinstance(value, Result):
            self.checker.unpack(self.frame, value, count - len(starred), bool(starred), target, state)
        items: list[Value] = [UNKNOWN] * count
        if isinstance(value, Sequence) and not starred and len(value.items) == count:
            items = list(value.items)
        elif isinstance(value, Sequence) and len(starred) == 1 and len(value.items) >= count - 1:
            at, behind = starred[0], count - starred[0] - 1
            middle = value.items[at : len(value.items) - behind]
            tail = value.items[len(value.items) - behind :] if behind else ()
            items = [*value.items[:at], Sequence(middle, True), *tail]
        for element, item in zip(target.elts, items, strict=True):
            inner = element.value if isinstance(element, ast.Starred) else element
            self.assign(inner, item, state)

    def _store_item(self, target: ast.Subscript, value: Value, state: State) -> None:
        path = dotted(target.value)
        base = self.eval(target.value, state)
        key = self.eval(target.slice, state) if not isinstance(target.slice, ast.Slice) else UNKNOWN
        if isinstance(base, External) and base.name == "sys.modules":
            if self.frame.is_module and isinstance(target.slice, ast.Name) and target.slice.id == "__name__":
                self.frame.record.lazy = True
                self.frame.record.module_class = value.info if isinstance(value, Instance) else None
            return
        if isinstance(base, External) and base.name == "builtins.globals":
            self.frame.record.open = True
        if isinstance(target.value, ast.Call) and dotted(target.value.func) in ("globals", "vars"):
            self.frame.record.open = True
        if path is None or not isinstance(target.value, (ast.Name, ast.Attribute)):
            return
        if isinstance(base, Mapping):
            if isinstance(key, Const) and isinstance(key.value, str):
                state.bind(path, base.with_item(key.value, value))
            else:
                state.bind(path, Mapping(base.entries, base.optional, True))
        elif isinstance(base, Sequence):
            if (
                isinstance(key, Const)
                and isinstance(key.value, int)
                and -len(base.items) <= key.value < len(base.items)
            ):
                items = list(base.items)
                items[key.value] = value
                state.bind(path, Sequence(tuple(items), base.is_list))
            else:
                state.bind(path, Sequence((UNKNOWN,) * len(base.items), base.is_list))

    # Conditions

    def branch(self, state: State, test: ast.expr) -> tuple[list[State], list[State]]:
        """Split a state by a condition: the paths on which it holds, and those on which it does not."""
        if isinstance(test, ast.BoolOp):
            stop = isinstance(test.op, ast.Or)
            going, stopped = [state], []
            for item in test.values:
                following: list[State] = []
                for current in going:
                    yes, no = self.branch(current, item)
                    stopped += yes if stop else no
                    following += no if stop else yes
                going = merge(following, state.unknown) if len(following) > 8 else following
            return (stopped, going) if stop else (going, stopped)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yes, no = self.branch(state, test.operand)
            return no, yes
        value = self.eval(test, state)
        known = truth(value)
        if known is not None:
            return ([state], []) if known else ([], [state])
        text, positive = written(test)
        if text in state.facts:
            return ([state], []) if state.facts[text] is positive else ([], [state])
        holds, fails = state.fork(), state.fork()
        holds.facts[text], fails.facts[text] = positive, not positive
        if isinstance(value, Unknown) and value.environment:
            holds.unknown = fails.unknown = state.unknown or f"`{shortened(text, 100)}` depends on what is not known"
        self._narrow(test, holds if positive else fails)
        return [holds], [fails]

    def _narrow(self, test: ast.expr, state: State) -> None:
        """Note the value of a variable that was compared with a constant."""
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
            right = test.comparators[0]
            path = dotted(test.left) if isinstance(test.left, (ast.Name, ast.Attribute)) else None
            if path is not None and isinstance(right, ast.Constant) and isinstance(right.value, str):
                state.variables[path] = Const(right.value)

    # Calls

    def evaluate_call(self, node: ast.Call, state: State) -> Call:
        """Evaluate the arguments of a call."""
        call = Call(node.lineno)
        for item in node.args:
            if isinstance(item, ast.Starred):
                value = self.eval(item.value, state)
                if isinstance(value, Sequence) and not call.star:
                    call.positional += value.items
                else:
                    call.star = True
            elif call.star:
                self.eval(item, state)
            else:
                call.positional.append(self.eval(item, state))
        for keyword in node.keywords:
            value = self.eval(keyword.value, state)
            if keyword.arg is not None:
                call.keywords = call.keywords.with_item(keyword.arg, value)
            elif isinstance(value, Mapping):
                call.keywords = call.keywords.updated(value)
            else:
                call.keywords = Mapping(call.keywords.entries, call.keywords.optional, True)
        return call

    def _call(self, node: ast.Call, state: State) -> Value:
        if isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            changed = self._mutation(node, node.func, state)
            if changed is not None:
                return changed
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return UNKNOWN
        if dotted(node.func) is None and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            writes = node.func.attr in ("update", "setdefault", "__setitem__")
            self.frame.record.open |= writes and dotted(node.func.value) == "globals"
        function = self.eval(node.func, state)
        call = self.evaluate_call(node, state)
        return self.call(function, call, node, state)

    def call(self, function: Value, call: Call, node: ast.Call, state: State) -> Value:
        """Return what calling a value gives, after the call was checked."""
        function = self.program.force(function)
        if refuses_release(function, call, self.program.environment):
            raise Raised("ImportError")
        if isinstance(function, Choice):
            return self.checker.call_any(self.frame, function, call, node, state)
        if isinstance(function, Partial):
            joined = Call(call.line)
            joined.positional = [*function.args, *call.positional]
            joined.star, joined.keywords = call.star, function.keywords.updated(call.keywords)
            return self.call(function.target, joined, node, state)
        if isinstance(function, External):
            return builtin_call(self, function.name, call, node, state)
        if isinstance(function, Unknown):
            owner = self._method_of_known(node, call, state)
            return owner if owner is not None else Unknown(environment=function.environment)
        return self.checker.call(self.frame, function, call, node, state)

    def _method_of_known(self, node: ast.Call, call: Call, state: State) -> Value | None:
        """Return the result of a method of a constant, a container or a set of parameters."""
        if not isinstance(node.func, ast.Attribute):
            return None
        base = self.eval(node.func.value, state)
        return constant_method(base, node.func.attr, call.positional, self.checker.signature)

    def _mutation(self, node: ast.Call, function: ast.Attribute, state: State) -> Value | None:
        """Run a method that changes a dict or list held by a variable; None where it is none."""
        path = dotted(function.value) if isinstance(function.value, (ast.Name, ast.Attribute)) else None
        base = self.eval(function.value, state)
        if path is None or not isinstance(base, (Mapping, Sequence)):
            return None
        call = self.evaluate_call(node, state)
        changed, result = mutated(base, function.attr, call)
        state.bind(path, changed)
        return result


_DISPATCH: dict[type[ast.expr], Callable[..., Value]] = {
    ast.Name: Evaluator._name,
    ast.JoinedStr: Evaluator._joined,
    ast.Attribute: Evaluator._attribute,
    ast.Tuple: Evaluator._tuple,
    ast.List: Evaluator._tuple,
    ast.Set: Evaluator._tuple,
    ast.Dict: Evaluator._dict,
    ast.Subscript: Evaluator._subscript,
    ast.Starred: Evaluator._starred,
    ast.Lambda: Evaluator._lambda,
    ast.NamedExpr: Evaluator._named,
    ast.IfExp: Evaluator._if_expression,
    ast.BoolOp: Evaluator._boolean,
    ast.UnaryOp: Evaluator._unary,
    ast.BinOp: Evaluator._binary,
    ast.Compare: Evaluator._compare,
    ast.ListComp: Evaluator._comprehension,
    ast.SetComp: Evaluator._comprehension,
    ast.GeneratorExp: Evaluator._comprehension,
    ast.DictComp: Evaluator._dict_comprehension,
    ast.Call: Evaluator._call,
}
