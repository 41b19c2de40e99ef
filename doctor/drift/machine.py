"""Run modules and functions abstractly: statements, paths, handlers, and functions called with known arguments."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from .checks import Checker
from .classes import dotted, is_class_method, is_static
from .evaluate import Evaluator
from .findings import Kind
from .frames import Call, Frame, Sink, Violation, catches, exception_of, function_value, qualified
from .intrinsics import truth
from .program import Program, Record
from .signatures import Signature
from .state import BudgetExceeded, Raised, State, join_all, merge
from .trees import walk
from .values import (
    FALSE,
    NONE,
    UNKNOWN,
    Bound,
    ClassInfo,
    ClassValue,
    Const,
    External,
    Function,
    Imported,
    Instance,
    Mapping,
    ModuleValue,
    Partial,
    Sequence,
    Unknown,
    Value,
    choice,
)

CALL_DEPTH = 8
#: A function of more lines is followed only when it receives something of the other package.
GUARD_SIZE = 60
UNROLLED = 6
ACCEPTED_CLASS_DECORATORS = frozenset({"dataclass", "auto_docstring", "add_start_docstrings", "final", "requires",
                                       "total_ordering", "runtime_checkable", "unique", "no_type_check"})  # fmt: skip


@dataclass
class Flow:
    """Where the paths through some statements end."""

    normal: list[State] = field(default_factory=list)
    returned: list[tuple[State, Value]] = field(default_factory=list)
    raised: list[tuple[State, Raised]] = field(default_factory=list)
    left: list[State] = field(default_factory=list)
    """Paths that leave the loop around them."""

    def take_ends(self, other: Flow) -> None:
        """Add the paths of another flow that do not go on."""
        self.returned += other.returned
        self.raised += other.raised
        self.left += other.left


@dataclass(frozen=True)
class OwnImport:
    """An import of one module of a package by another, on a path that is run."""

    importer: str
    at_module_level: bool
    guarded: bool


class Caught(Raised):
    """A violation that a handler catches; it counts again if the handler raises."""

    def __init__(self, exception: str, frame: Frame, node: ast.AST, state: State, violation: Violation) -> None:
        super().__init__(exception)
        self.frame, self.node, self.state, self.violation = frame, node, state, violation


class Machine(Evaluator):
    """Runs code of the examined packages."""

    def __init__(self, program: Program, sink: Sink, budget: int) -> None:
        """Run the modules of `program` on demand, and report to `sink`."""
        checker = Checker(program, sink, self.call_function, self.fail)
        super().__init__(program, checker, budget)
        self.sink = sink
        self.handlers: list[list[frozenset[str]]] = []
        self.running: list[Function] = []
        self.memo: dict[object, Value] = {}
        self.functions: dict[str, list[Function]] = {}
        self.nested: list[Function] = []
        self.imports: dict[str, list[OwnImport]] = {}
        program.execute = self.run_module

    # Reports

    def fail(self, frame: Frame, node: ast.AST, state: State, violation: Violation) -> None:
        """Report a violation, or raise it where a handler of the examined code catches it."""
        exception = exception_of(violation.kind)
        for handler in (names for group in self.handlers for names in group):
            if catches(handler, exception):
                raise Caught(exception, frame, node, state, violation)
        self.sink.violation(frame, node, state, violation)

    def raise_if_caught(self, exception: str) -> None:
        """Raise an exception of the examined code if a handler catches it."""
        if any(catches(names, exception) for group in self.handlers for names in group):
            raise Raised(exception)

    # The interface of the intrinsics

    def has_attribute(self, base: Value, name: str, state: State, node: ast.AST) -> bool | None:
        """Tell whether a value has an attribute."""
        return self.checker.has_attribute(self.frame, base, name)

    def set_attribute(self, base: Value, name: str, value: Value, state: State) -> None:
        """Assign an attribute, as `setattr` does."""
        self.checker.store(self.frame, base, name, value, state)

    def signature_of(self, value: Value) -> Signature | None:
        """Return the signature of a callable."""
        return self.checker.signature(value)

    def open_namespace(self) -> None:
        """Note that the running module binds names in ways that are not followed."""
        if self.frame.is_module:
            self.frame.record.open = True

    def import_module(self, module: str, node: ast.AST, state: State) -> Value:
        """Return a module by name."""
        if self.program.package(module) is None:
            if self.program.is_absent(module):
                self.raise_if_caught("ModuleNotFoundError")
            return External(module)
        if self.program.package(module) is self.frame.record.package:
            return self.program.module_value(module)
        return self.checker.import_module(self.frame, module, node, state)

    # Modules

    def run_module(self, record: Record) -> None:
        """Run the body of a module, and keep its namespace."""
        assert record.tree is not None
        outer = getattr(self, "frame", None)
        handlers, self.handlers = self.handlers, []
        running, self.running = self.running, []
        self.frame = Frame(record, is_module=True)
        states = [State({"__name__": Const(record.name), "__file__": UNKNOWN})]
        try:
            for statement in record.tree.body:
                record.namespace = states[0].variables
                flow = Flow()
                for state in states:
                    flow_of = self.run_statement(statement, state)
                    flow.normal += flow_of.normal
                    flow.take_ends(flow_of)
                if not flow.normal:
                    record.open = record.open or not isinstance(statement, ast.Raise)
                    break
                states = merge(flow.normal, "")
        except (BudgetExceeded, RecursionError):
            record.open = True
        finally:
            record.namespace = _namespace(states)
            self.handlers, self.running = handlers, running
            if outer is not None:
                self.frame = outer

    def evaluate_in(self, record: Record, node: ast.expr) -> Value:
        """Return the value of an expression at the end of a module."""
        outer = getattr(self, "frame", None)
        self.frame = Frame(record, "evaluate")
        try:
            return self.eval(node, State())
        except Raised:
            return UNKNOWN
        finally:
            if outer is not None:
                self.frame = outer

    # Statements

    def run_block(self, body: list[ast.stmt], states: list[State]) -> Flow:
        """Run statements on every path."""
        result = Flow()
        for statement in body:
            if not states:
                break
            following: list[State] = []
            for state in states:
                flow = self.run_statement(statement, state)
                following += flow.normal
                result.take_ends(flow)
            before = "" if any(not state.unknown for state in states) else states[0].unknown
            states = merge(following, before)
        result.normal = states
        return result

    def run_statement(self, node: ast.stmt, state: State) -> Flow:
        """Run one statement on one path."""
        self.tick()
        if self.frame.is_module and not self.frame.is_class_body:
            self.frame.record.namespace = state.variables
        method = _STATEMENTS.get(type(node))
        try:
            if method is None:
                return Flow([state])
            return method(self, node, state)  # type: ignore[no-any-return]
        except Raised as raised:
            return Flow(raised=[(state, raised)])

    def _expression(self, node: ast.Expr, state: State) -> Flow:
        self._value(node.value, state)
        if isinstance(node.value, ast.Call) and dotted(node.value.func) in ("sys.exit", "exit", "os._exit"):
            return Flow(raised=[(state, Raised("SystemExit"))])
        return Flow([state])

    def _value(self, node: ast.expr, state: State) -> Value:
        return self.eval(node, state)

    def _split_value(self, node: ast.expr | None, state: State) -> list[tuple[State, Value]]:
        """Evaluate an expression, one path for each side of a conditional expression."""
        if isinstance(node, ast.IfExp):
            yes, no = self.branch(state, node.test)
            found: list[tuple[State, Value]] = []
            for item in yes:
                found += self._split_value(node.body, item)
            for item in no:
                found += self._split_value(node.orelse, item)
            return found
        return [(state, self.eval(node, state))]

    def _assign(self, node: ast.Assign, state: State) -> Flow:
        flow = Flow()
        for item, value in self._split_value(node.value, state):
            for target in node.targets:
                self._set(target, value, item, node.value)
            flow.normal.append(item)
        return flow

    def _set(self, target: ast.expr, value: Value, state: State, source: ast.expr | None) -> None:
        self.assign(target, value, state, source)
        if isinstance(target, ast.Name) and target.id in self.frame.declared_global and not self.frame.is_module:
            self.frame.record.namespace[target.id] = value

    def _annotated(self, node: ast.AnnAssign, state: State) -> Flow:
        if node.value is not None:
            self._set(node.target, self.eval(node.value, state), state, node.value)
        return Flow([state])

    def _augmented(self, node: ast.AugAssign, state: State) -> Flow:
        value = self.eval(ast.BinOp(_loaded(node.target), node.op, node.value), state)
        self._set(node.target, value, state, None)
        return Flow([state])

    def _delete(self, node: ast.Delete, state: State) -> Flow:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                path = dotted(target.value)
                base, key = self.eval(target.value, state), self.eval(target.slice, state)
                if path is not None and isinstance(base, Mapping):
                    known = isinstance(key, Const) and isinstance(key.value, str)
                    state.bind(path, base.without(str(key.value)) if known and isinstance(key, Const) else Mapping(open=True))
            elif isinstance(target, ast.Name):
                state.variables.pop(target.id, None)
        return Flow([state])

    def _return(self, node: ast.Return, state: State) -> Flow:
        return Flow(returned=self._split_value(node.value, state) if node.value is not None else [(state, NONE)])

    def _raise(self, node: ast.Raise, state: State) -> Flow:
        if node.exc is not None:
            self.eval(node.exc, state)
        name = (dotted(node.exc) or "Exception").rpartition(".")[2] if node.exc is not None else ""
        return Flow(raised=[(state, Raised(name))])

    def _leave(self, node: ast.Break | ast.Continue, state: State) -> Flow:
        return Flow(left=[state])

    def _global(self, node: ast.Global, state: State) -> Flow:
        self.frame.declared_global.update(node.names)
        return Flow([state])

    def _assert(self, node: ast.Assert, state: State) -> Flow:
        value = self.eval(node.test, state)
        if truth(value) is False and isinstance(value, Const) and value.of_version:
            self._refuse(node, node.test, value.of_version, state)
        known = set(state.facts)
        yes, _ = self.branch(state, node.test)
        for item in yes:
            item.asserted |= frozenset(item.facts.keys() - known)
        return Flow(yes) if yes else Flow(raised=[(state, Raised("AssertionError"))])

    def _refuse(self, node: ast.stmt, test: ast.expr, distribution: str, state: State) -> None:
        """Report a refusal of an installed version where nothing but versions leads to it."""
        top = distribution.replace("-", "_")
        environment = self.program.environment
        package = environment.packages.get(top) or next(
            (item for item in environment.packages.values() if environment.release_of(distribution) == item.release), None
        )
        construction = self.frame.scope.endswith("__init__") or self.frame.is_module
        if package is None or not construction or state.conditions() or state.unknown:
            return
        text = ast.unparse(test)
        message = f"the caller refuses `{package.release}`: `{text}` does not hold"
        self.fail(self.frame, node, state, Violation(Kind.VERSION_REFUSED, text, text, message, package.name))

    def _if(self, node: ast.If, state: State) -> Flow:
        before = state.unknown
        value = self.eval(node.test, state) if node.body and isinstance(node.body[-1], ast.Raise) else UNKNOWN
        if truth(value) is True and isinstance(value, Const) and value.of_version:
            opposite = ast.UnaryOp(ast.Not(), node.test)
            self._refuse(node, opposite, value.of_version, state)
        yes, no = self.branch(state, node.test)
        result = self.run_block(node.body, yes)
        other = self.run_block(node.orelse, no)
        result.take_ends(other)
        result.normal = merge([*result.normal, *other.normal], before)
        return result

    def _while(self, node: ast.While, state: State) -> Flow:
        yes, no = self.branch(state, node.test)
        always = isinstance(node.test, ast.Constant) and bool(node.test.value)
        body = self.run_block(node.body, yes)
        after = [*body.normal, *body.left, *([] if always else no)]
        body.left = []
        body.normal = merge(after, state.unknown)
        if node.orelse:
            tail = self.run_block(node.orelse, body.normal)
            body.normal = tail.normal
            body.take_ends(tail)
        return body

    def _for(self, node: ast.For | ast.AsyncFor, state: State) -> Flow:
        source = self.eval(node.iter, state)
        if isinstance(source, Sequence) and len(source.items) <= UNROLLED:
            rounds: list[Value] = list(source.items)
        else:
            rounds = [UNKNOWN]
        result = Flow()
        states = [state]
        skipped = [state.fork()] if not isinstance(source, Sequence) else []
        for item in rounds:
            for current in states:
                self.assign(node.target, item, current)
            flow = self.run_block(node.body, states)
            states = merge([*flow.normal, *flow.left], state.unknown)
            flow.left = []
            result.take_ends(flow)
            if not states:
                break
        result.normal = merge([*states, *skipped], state.unknown)
        if node.orelse:
            tail = self.run_block(node.orelse, result.normal)
            result.normal = tail.normal
            result.take_ends(tail)
        return result

    def _with(self, node: ast.With | ast.AsyncWith, state: State) -> Flow:
        suppressed: list[str] = []
        for item in node.items:
            value = self.eval(item.context_expr, state)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value if not isinstance(value, Instance) else UNKNOWN, state)
            if isinstance(item.context_expr, ast.Call) and (dotted(item.context_expr) or "").endswith("suppress"):
                suppressed += [(dotted(name) or "").rpartition(".")[2] for name in item.context_expr.args]
        if not suppressed:
            return self.run_block(node.body, [state])
        flow, caught = self._guarded(node.body, state, [frozenset(suppressed)])
        flow.normal += [item for item, _, _ in caught]
        return flow

    def _guarded(
        self, body: list[ast.stmt], state: State, handlers: list[frozenset[str]]
    ) -> tuple[Flow, list[tuple[State, Raised, int]]]:
        """Run a block under handlers; return its flow, and what each handler caught."""
        self.handlers.append(handlers)
        try:
            flow = self.run_block(body, [state])
        finally:
            self.handlers.pop()
        caught: list[tuple[State, Raised, int]] = []
        escaped: list[tuple[State, Raised]] = []
        for item, raised in flow.raised:
            index = next((i for i, names in enumerate(handlers) if catches(names, raised.exception)), None)
            if index is None:
                escaped.append((item, raised))
            else:
                caught.append((item, raised, index))
        flow.raised = escaped
        return flow, caught

    def _try(self, node: ast.Try, state: State) -> Flow:
        handlers = [_handled(item.type) for item in node.handlers]
        result, caught = self._guarded(node.body, state, handlers)
        if node.orelse and result.normal:
            tail = self.run_block(node.orelse, result.normal)
            result.normal = tail.normal
            result.take_ends(tail)
        for item, raised, index in caught:
            handler = node.handlers[index]
            if handler.name:
                item.bind(handler.name, UNKNOWN)
            flow = self.run_block(handler.body, [item])
            if isinstance(raised, Caught) and not flow.normal and not flow.returned and not flow.left and flow.raised:
                try:
                    self.fail(raised.frame, raised.node, raised.state, raised.violation)
                except Raised as again:
                    flow.raised = [(item, again)]
            result.normal += flow.normal
            result.take_ends(flow)
        result.normal = merge(result.normal, state.unknown)
        if node.finalbody:
            ends = self.run_block(node.finalbody, result.normal)
            result.normal = ends.normal
            result.take_ends(ends)
        return result

    def _match(self, node: ast.Match, state: State) -> Flow:
        self.eval(node.subject, state)
        result = Flow()
        for case in node.cases:
            branch = state.fork()
            for child in walk(case.pattern):
                name = getattr(child, "name", None)
                if isinstance(name, str):
                    branch.bind(name, UNKNOWN)
            flow = self.run_block(case.body, [branch])
            result.normal += flow.normal
            result.take_ends(flow)
        result.normal = merge([*result.normal, state], state.unknown)
        return result

    # Imports

    def _import(self, node: ast.Import, state: State) -> Flow:
        for alias in node.names:
            value = self.import_module(alias.name, node, state)
            if alias.asname:
                state.bind(alias.asname, value)
                continue
            top = alias.name.partition(".")[0]
            state.bind(top, self.program.module_value(top))
        return Flow([state])

    def _import_from(self, node: ast.ImportFrom, state: State) -> Flow:
        record = self.frame.record
        module = record.absolute(node.module, node.level)
        if module == "__future__":
            return Flow([state])
        package = self.program.package(module)
        for alias in node.names:
            if alias.name == "*":
                self._star(module, state)
                continue
            name = alias.asname or alias.name
            if package is None:
                if self.program.is_absent(module):
                    self.raise_if_caught("ModuleNotFoundError")
                value: Value = External(f"{module}.{alias.name}")
                if value.name in ("typing.TYPE_CHECKING", "typing_extensions.TYPE_CHECKING"):
                    value = FALSE
            elif package is record.package:
                value = Imported(module, alias.name)
                self.imports.setdefault(module, []).append(self._own_import())
                self.imports.setdefault(f"{module}.{alias.name}", []).append(self._own_import())
            else:
                found = self.checker.import_name(self.frame, module, alias.name, node, state)
                value = found if found is not None else UNKNOWN
            self._set(ast.Name(name, ast.Store()), value, state, None)
        return Flow([state])

    def _own_import(self) -> OwnImport:
        guarded = any(catches(names, "ImportError") for group in self.handlers for names in group)
        return OwnImport(self.frame.record.name, self.frame.is_module, guarded)

    def _star(self, module: str, state: State) -> None:
        record = self.program.record(module)
        if record is None or record.status == "running":
            if (self.frame.is_module and self.program.package(module) is not None) or not module or (self.frame.is_module and not module.startswith(("typing", "collections", "abc", "types"))):
                self.frame.record.open = True
            return
        listed = record.namespace.get("__all__")
        names = (
            [str(item.value) for item in listed.items if isinstance(item, Const)] if isinstance(listed, Sequence)
            else [name for name in record.namespace if not name.startswith("_")]
        )  # fmt: skip
        for name in names:
            state.bind(name, Imported(module, name))
        if record.open or record.lazy:
            self.frame.record.open = True

    # Definitions

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, state: State) -> Flow:
        for default in [*node.args.defaults, *(item for item in node.args.kw_defaults if item is not None)]:
            self.eval(default, state)
        function = function_value(self.frame, node, state)
        if self.frame.is_module or self.frame.is_class_body:
            self.functions.setdefault(self.frame.record.name, []).append(function)
        else:
            self.nested.append(function)
        value: Value = function
        names = [(dotted(item) or "?") for item in node.decorator_list]
        if any(name.endswith((".setter", ".deleter", ".register")) or name == "overload" for name in names):
            old = state.variables.get(node.name)
            value = old if old is not None else value
        elif any(name.rpartition(".")[2] in ("jit", "autotune", "heuristics") for name in names):
            value = UNKNOWN  # a kernel is called as `kernel[grid](...)`
        self._set(ast.Name(node.name, ast.Store()), value, state, None)
        return Flow([state])

    def _class(self, node: ast.ClassDef, state: State) -> Flow:
        record = self.frame.record
        bases = tuple(self.eval(item, state) for item in node.bases)
        name = qualified(self.frame, node.name)
        info = record.classes.get((name, node.lineno))
        if info is None:
            info = ClassInfo(record.name, name, node.lineno, node, bases)
            record.classes[(name, node.lineno)] = info
        for decorator in node.decorator_list:
            if (dotted(decorator) or "").rpartition(".")[2] not in ACCEPTED_CLASS_DECORATORS:
                info.dynamic = True
        outer = self.frame
        closure = outer.closure if outer.is_module else dict(outer.closure or {}) | state.variables
        self.frame = Frame(record, name, info, closure, outer.is_module, True)
        try:
            flow = self.run_block(node.body, [State()])
        finally:
            self.frame = outer
        if flow.normal:
            info.attributes = dict(join_all(flow.normal, "").variables)
        else:
            info.dynamic = True
        self._set(ast.Name(node.name, ast.Store()), ClassValue(info), state, None)
        return Flow([state])

    # Functions

    def call_function(self, function: Function, receiver: Value | None, call: Call, state: State) -> Value:
        """Run a function with known arguments where that can tell something; return the union of its results."""
        interesting = receiver is not None and isinstance(receiver, Instance)
        given = [*call.positional, *(value for _, value in call.keywords.entries)]
        matters = any(_follows(item) for item in given)
        if len(self.running) >= CALL_DEPTH or any(item == function for item in self.running):
            return Unknown(environment=False)
        size = _size(function)
        if not matters and size > GUARD_SIZE and not interesting:
            return UNKNOWN
        if _is_generator(function):
            return UNKNOWN
        key: object = None
        if receiver is None and function.closure is None:
            key = (function, tuple(call.positional), call.keywords, call.star, bool(self.handlers))
            if key in self.memo:
                return self.memo[key]
        results = self.run_function(function, receiver, call, state.unknown)
        value = choice([item for _, item in results]) if results else UNKNOWN
        if results and any(item.unknown and not state.unknown for item, _ in results) and isinstance(value, Unknown):
            value = Unknown(value.reason, True)
        if key is not None:
            self.memo[key] = value
        return value

    def run_function(
        self, function: Function, receiver: Value | None, call: Call | None, unknown: str = "",
        seed: State | None = None,
    ) -> list[tuple[State, Value]]:  # fmt: skip
        """Run a function; `call` None stands for any arguments. Return the states and values at its ends.

        Raises Raised where every path ends in an exception.
        """
        record = self.program.record(function.module)
        if record is None:
            return []
        outer = getattr(self, "frame", None)
        state = State(unknown=unknown)
        self._bind_parameters(function, receiver, call, state, record)
        if seed is not None:
            state.variables |= seed.variables
            state.facts |= seed.facts
        context = f"{outer.context} {function.qualname}" if outer is not None and self.running else function.qualname
        self.frame = Frame(record, function.qualname, function.owner, function.closure, context=context)
        self.running.append(function)
        try:
            if isinstance(function.node, ast.Lambda):
                return [(state, self.eval(function.node.body, state))]
            flow = self.run_block(function.node.body, [state])
        finally:
            self.running.pop()
            if outer is not None:
                self.frame = outer
        ends = flow.returned + [(item, NONE) for item in flow.normal]
        if not ends and flow.raised:
            if call is not None and any(catches(n, flow.raised[0][1].exception) for g in self.handlers for n in g):
                raise flow.raised[0][1]
            return []
        return ends

    def run_imports(self, record: Record, function: Function, nodes: list[ast.Import | ast.ImportFrom]) -> None:
        """Check imports inside a function without running the rest of it."""
        outer = getattr(self, "frame", None)
        self.frame = Frame(record, function.qualname, function.owner)
        for node in nodes:
            self.run_statement(node, State())
        if outer is not None:
            self.frame = outer

    def _bind_parameters(
        self, function: Function, receiver: Value | None, call: Call | None, state: State, record: Record
    ) -> None:
        arguments = function.node.args
        names = [item.arg for item in [*arguments.posonlyargs, *arguments.args]]
        if call is None:
            for name in [*names, *(item.arg for item in arguments.kwonlyargs)]:
                state.variables[name] = UNKNOWN
            if arguments.vararg is not None:
                state.variables[arguments.vararg.arg] = UNKNOWN
            if arguments.kwarg is not None:
                state.variables[arguments.kwarg.arg] = Mapping(open=True)
            if names and function.owner is not None and not is_static(function):
                state.variables[names[0]] = (
                    ClassValue(function.owner) if is_class_method(function)
                    else receiver or Instance(function.owner, exact=False)
                )  # fmt: skip
            elif names and receiver is not None:
                state.variables[names[0]] = receiver
            return
        positional = ([receiver] if receiver is not None else []) + call.positional
        defaults = dict(zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True))
        defaults |= {
            item.arg: default for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is not None
        }  # fmt: skip
        keywords = dict(call.keywords.entries)
        scratch = State()
        for index, name in enumerate(names):
            if index < len(positional):
                state.variables[name] = positional[index]
            else:
                state.variables[name] = self._argument(name, keywords, defaults, call, scratch, index >= len(positional))
        for item in arguments.kwonlyargs:
            state.variables[item.arg] = self._argument(item.arg, keywords, defaults, call, scratch, False)
        if arguments.vararg is not None:
            rest = tuple(positional[len(names) :])
            state.variables[arguments.vararg.arg] = UNKNOWN if call.star else Sequence(rest)
        if arguments.kwarg is not None:
            left = tuple(sorted((key, value) for key, value in keywords.items() if key not in names))
            state.variables[arguments.kwarg.arg] = Mapping(left, call.keywords.optional, call.keywords.open)

    def _argument(
        self, name: str, keywords: dict[str, Value], defaults: dict[str, ast.expr], call: Call, scratch: State,
        positional: bool,
    ) -> Value:  # fmt: skip
        if name in keywords:
            return keywords.pop(name)
        if call.keywords.open or name in call.keywords.optional or (call.star and positional):
            return UNKNOWN
        default = defaults.get(name)
        if isinstance(default, ast.Constant):
            return Const(default.value)
        if isinstance(default, (ast.Tuple, ast.UnaryOp)):
            return self.eval(default, scratch)
        return UNKNOWN


def _namespace(states: list[State]) -> dict[str, Value]:
    return join_all(states, "").variables if len(states) > 1 else states[0].variables


def _handled(node: ast.expr | None) -> frozenset[str]:
    if node is None:
        return frozenset({""})
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    return frozenset((dotted(item) or "?").rpartition(".")[2] for item in items)


def _loaded(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    return target


def _follows(value: Value) -> bool:
    """Tell whether an argument makes it worth running the function that receives it."""
    if isinstance(value, (Function, Bound, Partial, ClassValue, Mapping, ModuleValue)):
        return True
    return isinstance(value, Sequence) and any(_follows(item) for item in value.items)


def _size(function: Function) -> int:
    node = function.node
    return (node.end_lineno or node.lineno) - node.lineno


_GENERATORS: dict[int, tuple[ast.AST, bool]] = {}


def _is_generator(function: Function) -> bool:
    known = _GENERATORS.get(id(function.node))
    if known is None or known[0] is not function.node:
        known = (function.node, any(isinstance(item, (ast.Yield, ast.YieldFrom)) for item in walk(function.node)))
        _GENERATORS[id(function.node)] = known
    return known[1]


_STATEMENTS = {
    ast.Expr: Machine._expression,
    ast.Assign: Machine._assign,
    ast.AnnAssign: Machine._annotated,
    ast.AugAssign: Machine._augmented,
    ast.Delete: Machine._delete,
    ast.Return: Machine._return,
    ast.Raise: Machine._raise,
    ast.Break: Machine._leave,
    ast.Continue: Machine._leave,
    ast.Global: Machine._global,
    ast.Assert: Machine._assert,
    ast.If: Machine._if,
    ast.While: Machine._while,
    ast.For: Machine._for,
    ast.AsyncFor: Machine._for,
    ast.With: Machine._with,
    ast.AsyncWith: Machine._with,
    ast.Try: Machine._try,
    ast.Match: Machine._match,
    ast.Import: Machine._import,
    ast.ImportFrom: Machine._import_from,
    ast.FunctionDef: Machine._define,
    ast.AsyncFunctionDef: Machine._define,
    ast.ClassDef: Machine._class,
}
if hasattr(ast, "TryStar"):
    _STATEMENTS[ast.TryStar] = Machine._try
