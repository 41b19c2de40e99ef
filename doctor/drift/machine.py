"""Run modules and statements abstractly, path by path."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from .checks import Checker
from .classes import dotted
from .containers import truth
from .evaluate import Evaluator
from .findings import Kind
from .frames import Call, Frame, Sink, Violation, catches, function_value, qualified
from .functions import Flow, FunctionRunner
from .handlers import Caught, Handlers
from .program import Program, Record
from .state import Budget, BudgetExceeded, Raised, State, join_all, merge
from .trees import walk
from .values import (
    FALSE,
    NONE,
    UNKNOWN,
    ClassInfo,
    ClassValue,
    Const,
    External,
    Function,
    Imported,
    Instance,
    Mapping,
    ModuleValue,
    Sequence,
    Value,
)  # fmt: skip

UNROLLED = 6
#: The value of the name in `except E as name`.
CAUGHT = "caught:"
#: Steps of one module, which count for nothing that imports it.
MODULE_STEPS = 60_000
ACCEPTED_CLASS_DECORATORS = frozenset({"dataclass", "auto_docstring", "add_start_docstrings", "final", "requires",
                                       "total_ordering", "runtime_checkable", "unique", "no_type_check"})  # fmt: skip


@dataclass(frozen=True)
class OwnImport:
    """An import of one module of a package by another, on a path that is run."""

    importer: str
    at_module_level: bool
    guarded: bool


class Machine:
    """Runs the code of the examined packages: modules, statements, and through its parts functions and expressions."""

    def __init__(self, program: Program, sink: Sink) -> None:
        """Run the modules of `program` on demand, and report to `sink`."""
        self.program = program
        self.sink = sink
        self.budget = Budget()
        self.handlers = Handlers(sink)
        self.checker = Checker(program, sink, self._call_function, self.handlers.fail)
        self.values = Evaluator(program, self.checker, self.handlers, self.budget)
        self.calls = FunctionRunner(self.values, self.run_block)
        self.functions: dict[str, dict[tuple[str, int], Function]] = {}
        """The functions of each module and its classes, by qualified name and line: paths may define one twice."""
        self.nested: list[Function] = []
        self.imports: dict[str, list[OwnImport]] = {}
        program.execute = self.run_module

    def _call_function(self, function: Function, receiver: Value | None, call: Call, state: State) -> Value:
        return self.calls.call_function(function, receiver, call, state)

    # Modules

    def run_module(self, record: Record) -> None:
        """Run the body of a module, and keep its namespace."""
        assert record.tree is not None
        running, self.calls.running = self.calls.running, []
        states = [State({"__name__": Const(record.name), "__file__": UNKNOWN})]
        try:
            with (
                self.handlers.none(),
                self.values.within(Frame(record, is_module=True)),
                self.budget.apart(MODULE_STEPS),
            ):
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
            self.calls.running = running

    def evaluate_in(self, record: Record, node: ast.expr) -> Value:
        """Return the value of an expression at the end of a module; what fails in it is not reported."""
        with self.values.within(Frame(record, "evaluate")), self.handlers.guarding([frozenset({"Exception"})]):
            try:
                return self.values.eval(node, State())
            except Raised:
                return UNKNOWN

    def run_imports(self, record: Record, function: Function, nodes: list[ast.Import | ast.ImportFrom]) -> None:
        """Check imports inside a function without running the rest of it."""
        with self.values.within(Frame(record, function.qualname, function.owner)):
            for node in nodes:
                self.run_statement(node, State())

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
        self.budget.tick()
        if self.values.frame.is_module and not self.values.frame.is_class_body:
            self.values.frame.record.namespace = state.variables
        method = _STATEMENTS.get(type(node))
        try:
            if method is None:
                return Flow([state])
            return method(self, node, state)
        except Raised as raised:
            return Flow(raised=[(state, raised)])

    def _expression(self, node: ast.Expr, state: State) -> Flow:
        self._value(node.value, state)
        if isinstance(node.value, ast.Call) and dotted(node.value.func) in ("sys.exit", "exit", "os._exit"):
            return Flow(raised=[(state, Raised("SystemExit"))])
        return Flow([state])

    def _value(self, node: ast.expr, state: State) -> Value:
        return self.values.eval(node, state)

    def _split_value(self, node: ast.expr | None, state: State) -> list[tuple[State, Value]]:
        """Evaluate an expression, one path for each side of a conditional expression."""
        if isinstance(node, ast.IfExp):
            yes, no = self.values.branch(state, node.test)
            found: list[tuple[State, Value]] = []
            for item in yes:
                found += self._split_value(node.body, item)
            for item in no:
                found += self._split_value(node.orelse, item)
            return found
        return [(state, self.values.eval(node, state))]

    def _assign(self, node: ast.Assign, state: State) -> Flow:
        flow = Flow()
        for item, value in self._split_value(node.value, state):
            for target in node.targets:
                self._set(target, value, item, node.value)
            flow.normal.append(item)
        return flow

    def _set(self, target: ast.expr, value: Value, state: State, source: ast.expr | None) -> None:
        self.values.assign(target, value, state, source)
        if (
            isinstance(target, ast.Name)
            and target.id in self.values.frame.declared_global
            and not self.values.frame.is_module
        ):
            self.values.frame.record.namespace[target.id] = value

    def _annotated(self, node: ast.AnnAssign, state: State) -> Flow:
        if node.value is not None:
            self._set(node.target, self.values.eval(node.value, state), state, node.value)
        return Flow([state])

    def _augmented(self, node: ast.AugAssign, state: State) -> Flow:
        value = self.values.eval(ast.BinOp(_loaded(node.target), node.op, node.value), state)
        self._set(node.target, value, state, None)
        return Flow([state])

    def _delete(self, node: ast.Delete, state: State) -> Flow:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                path = dotted(target.value)
                base, key = self.values.eval(target.value, state), self.values.eval(target.slice, state)
                if path is not None and isinstance(base, Mapping):
                    known = isinstance(key, Const) and isinstance(key.value, str)
                    state.bind(
                        path, base.without(str(key.value)) if known and isinstance(key, Const) else Mapping(open=True)
                    )
            elif isinstance(target, ast.Name):
                state.variables.pop(target.id, None)
        return Flow([state])

    def _return(self, node: ast.Return, state: State) -> Flow:
        return Flow(returned=self._split_value(node.value, state) if node.value is not None else [(state, NONE)])

    def _raise(self, node: ast.Raise, state: State) -> Flow:
        if node.exc is None:
            return Flow(raised=[(state, Raised(""))])
        value = self.values.eval(node.exc, state)
        name = (dotted(node.exc) or "Exception").rpartition(".")[2]
        if isinstance(value, External) and value.name.startswith(CAUGHT):
            name = value.name.removeprefix(CAUGHT)
        return Flow(raised=[(state, Raised(name))])

    def _leave(self, node: ast.Break | ast.Continue, state: State) -> Flow:
        return Flow(left=[state])

    def _global(self, node: ast.Global, state: State) -> Flow:
        self.values.frame.declared_global.update(node.names)
        return Flow([state])

    def _assert(self, node: ast.Assert, state: State) -> Flow:
        value = self.values.eval(node.test, state)
        if truth(value) is False and isinstance(value, Const) and value.of_version:
            self._refuse(node, node.test, value.of_version, state)
        known = set(state.facts)
        yes, _ = self.values.branch(state, node.test)
        for item in yes:
            item.asserted |= frozenset(item.facts.keys() - known)
        return Flow(yes) if yes else Flow(raised=[(state, Raised("AssertionError"))])

    def _refuse(self, node: ast.stmt, test: ast.expr, distribution: str, state: State) -> None:
        """Report a refusal of an installed version where nothing but versions leads to it."""
        top = distribution.replace("-", "_")
        environment = self.program.environment
        package = environment.packages.get(top) or next(
            (item for item in environment.packages.values() if environment.release_of(distribution) == item.release),
            None,
        )
        construction = self.values.frame.scope.endswith("__init__") or self.values.frame.is_module
        if package is None or not construction or state.conditions() or state.unknown:
            return
        text = ast.unparse(test)
        message = f"the caller refuses `{package.release}`: `{text}` does not hold"
        self.handlers.fail(
            self.values.frame, node, state, Violation(Kind.VERSION_REFUSED, text, text, message, package.name)
        )

    def _if(self, node: ast.If, state: State) -> Flow:
        before = state.unknown
        value = self.values.eval(node.test, state) if node.body and isinstance(node.body[-1], ast.Raise) else UNKNOWN
        if truth(value) is True and isinstance(value, Const) and value.of_version:
            opposite = ast.UnaryOp(ast.Not(), node.test)
            self._refuse(node, opposite, value.of_version, state)
        yes, no = self.values.branch(state, node.test)
        result = self.run_block(node.body, yes)
        other = self.run_block(node.orelse, no)
        result.take_ends(other)
        result.normal = merge([*result.normal, *other.normal], before)
        return result

    def _while(self, node: ast.While, state: State) -> Flow:
        yes, no = self.values.branch(state, node.test)
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
        source = self.values.eval(node.iter, state)
        if isinstance(source, Sequence) and len(source.items) <= UNROLLED:
            rounds: list[Value] = list(source.items)
        else:
            rounds = [UNKNOWN]
        result = Flow()
        states = [state]
        skipped = [state.fork()] if not isinstance(source, Sequence) else []
        for item in rounds:
            for current in states:
                self.values.assign(node.target, item, current)
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
            value = self.values.eval(item.context_expr, state)
            if item.optional_vars is not None:
                self.values.assign(item.optional_vars, value if not isinstance(value, Instance) else UNKNOWN, state)
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
        with self.handlers.guarding(handlers):
            flow = self.run_block(body, [state])
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
                item.bind(handler.name, External(CAUGHT + raised.exception))
            flow = self.run_block(handler.body, [item])
            if handler.name:
                for after in flow.normal:
                    after.variables.pop(handler.name, None)
            if isinstance(raised, Caught) and not flow.normal and not flow.returned and not flow.left and flow.raised:
                try:
                    self.handlers.fail(raised.frame, raised.node, raised.state, raised.violation)
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
        self.values.eval(node.subject, state)
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
            value = self.values.import_module(alias.name, node, state)
            if alias.asname:
                state.bind(alias.asname, value)
                continue
            top = alias.name.partition(".")[0]
            state.bind(top, self.program.module_value(top))
        return Flow([state])

    def _import_from(self, node: ast.ImportFrom, state: State) -> Flow:
        record = self.values.frame.record
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
                    self.handlers.raise_if_caught("ModuleNotFoundError")
                value: Value = FALSE if alias.name == "TYPE_CHECKING" else External(f"{module}.{alias.name}")
            elif package is record.package:
                value = Imported(module, alias.name)
                self.imports.setdefault(module, []).append(self._own_import())
                self.imports.setdefault(f"{module}.{alias.name}", []).append(self._own_import())
            else:
                found = self.checker.import_name(self.values.frame, module, alias.name, node, state)
                value = found if found is not None else UNKNOWN
            self._set(ast.Name(name, ast.Store()), value, state, None)
        return Flow([state])

    def _own_import(self) -> OwnImport:
        guarded = self.handlers.catches("ImportError")
        return OwnImport(self.values.frame.record.name, self.values.frame.is_module, guarded)

    def _star(self, module: str, state: State) -> None:
        record = self.program.record(module)
        if record is None or record.status == "running":
            if (
                (self.values.frame.is_module and self.program.package(module) is not None)
                or not module
                or (self.values.frame.is_module and not module.startswith(("typing", "collections", "abc", "types")))
            ):
                self.values.frame.record.open = True
            return
        listed = record.namespace.get("__all__")
        names = (
            [str(item.value) for item in listed.items if isinstance(item, Const)] if isinstance(listed, Sequence)
            else [name for name in record.namespace if not name.startswith("_")]
        )  # fmt: skip
        for name in names:
            state.bind(name, Imported(module, name))
        if record.open or record.lazy:
            self.values.frame.record.open = True

    # Definitions

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, state: State) -> Flow:
        for default in [*node.args.defaults, *(item for item in node.args.kw_defaults if item is not None)]:
            self.values.eval(default, state)
        function = function_value(self.values.frame, node, state)
        if self.values.frame.is_module or self.values.frame.is_class_body:
            defined = self.functions.setdefault(self.values.frame.record.name, {})
            defined[(function.qualname, function.line)] = function
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
        record = self.values.frame.record
        bases = tuple(self.values.eval(item, state) for item in node.bases)
        name = qualified(self.values.frame, node.name)
        info = record.classes.get((name, node.lineno))
        if info is None:
            info = ClassInfo(record.name, name, node.lineno, node, bases)
            record.classes[(name, node.lineno)] = info
        for decorator in node.decorator_list:
            if (dotted(decorator) or "").rpartition(".")[2] not in ACCEPTED_CLASS_DECORATORS:
                info.dynamic = True
        outer = self.values.frame
        closure = outer.closure if outer.is_module else dict(outer.closure or {}) | state.variables
        with self.values.within(Frame(record, name, info, closure, outer.is_module, True)):
            flow = self.run_block(node.body, [State()])
        if flow.normal:
            info.attributes = dict(join_all(flow.normal, "").variables)
        else:
            info.dynamic = True
        self._set(ast.Name(node.name, ast.Store()), ClassValue(info), state, None)
        return Flow([state])


_OBJECTS = (Function, ClassValue, Imported, ModuleValue)


def _namespace(states: list[State]) -> dict[str, Value]:
    """Return the namespace at the end of a module.

    Where a device or an unknown package decides whether the module uses another one, the path that uses it counts: the
    other path calls nothing. Flags and functions of different paths are not mixed.
    """
    if len(states) == 1:
        return states[0].variables
    bound = [sum(1 for value in state.variables.values() if isinstance(value, _OBJECTS)) for state in states]
    most = max(bound)
    if bound.count(most) == 1:
        return states[bound.index(most)].variables
    return join_all(states, "").variables


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


_STATEMENTS: dict[type[ast.stmt], Callable[..., Flow]] = {
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
