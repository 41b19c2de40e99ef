"""Call functions of the examined code with known arguments, and report what fails on the way."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from .classes import is_class_method, is_static
from .evaluate import Evaluator
from .frames import Call, Frame
from .state import BudgetExceeded, Raised, State
from .trees import walk
from .values import (
    NONE,
    UNKNOWN,
    Bound,
    ClassValue,
    Const,
    Function,
    Instance,
    Mapping,
    ModuleValue,
    Partial,
    Sequence,
    Unknown,
    Value,
    choice,
)  # fmt: skip

CALL_DEPTH = 8
#: A function of more lines is followed only when it receives something of the other package.
GUARD_SIZE = 60
GUARD_DEPTH = 4


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


RunBlock = Callable[[list[ast.stmt], list[State]], Flow]


class FunctionRunner:
    """Runs functions of the examined code with known arguments."""

    def __init__(self, values: Evaluator, run_block: RunBlock) -> None:
        """Evaluate with `values`, and run statements with `run_block`."""
        self.values = values
        self.program = values.program
        self.handlers = values.handlers
        self.run_block = run_block
        self.running: list[Function] = []
        self.memo: dict[object, Value] = {}
        self.passed: dict[Function, dict[int, dict[str, Value]]] = {}
        """The constants that each call of a private method passes, by line."""

    # Functions

    def call_function(self, function: Function, receiver: Value | None, call: Call, state: State) -> Value:
        """Run a function with known arguments where that can find something; return the union of its results."""
        constructs = function.qualname.endswith("__init__")
        if _is_private_method(function) and call.line:
            self._note_constants(function, receiver, call)
        given = [*call.positional, *(value for _, value in call.keywords.entries)]
        matters = any(_follows(item) for item in given)
        if len(self.running) >= CALL_DEPTH or any(item == function for item in self.running):
            return Unknown(environment=False)
        size = _size(function)
        if not matters and not constructs and (size > GUARD_SIZE or len(self.running) > GUARD_DEPTH):
            return UNKNOWN
        if _is_generator(function):
            return UNKNOWN
        key: object = None
        if function.closure is None:
            key = (function, receiver, tuple(call.positional), call.keywords, call.star, self.handlers.are_open)
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
        """Run a function; `call` None means any arguments. Return the states and values at its ends.

        Raises Raised where every path ends in an exception.
        """
        record = self.program.record(function.module)
        if record is None:
            return []
        state = State(unknown=unknown)
        self._bind_parameters(function, receiver, call, state)
        if call is None and function in self.passed:
            state.variables |= self._always_passed(function)
        if seed is not None:
            state.variables |= seed.variables
            state.facts |= seed.facts
        context = f"{self.values.frame.context} {function.qualname}" if self.running else function.qualname
        frame = Frame(record, function.qualname, function.owner, function.closure, context=context)
        frame.local_names = local_names(function.node)
        self.running.append(function)
        try:
            with self.values.within(frame):
                if isinstance(function.node, ast.Lambda):
                    return [(state, self.values.eval(function.node.body, state))]
                flow = self.run_block(function.node.body, [state])
        finally:
            self.running.pop()
        ends = flow.returned + [(item, NONE) for item in flow.normal]
        if not ends and flow.raised:
            if call is None and function.owner is not None and function.qualname.endswith(".__init__"):
                function.owner.refused = any(raised.exception == "ImportError" for _, raised in flow.raised)
            if call is not None and self.handlers.catches(flow.raised[0][1].exception):
                raise flow.raised[0][1]
            return []
        return ends

    def _note_constants(self, function: Function, receiver: Value | None, call: Call) -> None:
        """Keep what one call of a private method passes as a constant, on every path to that call."""
        scratch = State()
        self._bind_parameters(function, receiver, call, scratch)
        constants = {name: value for name, value in scratch.variables.items() if isinstance(value, Const)}
        sites = self.passed.setdefault(function, {})
        known = sites.get(call.line, constants)
        sites[call.line] = {name: value for name, value in constants.items() if known.get(name) == value}

    def _always_passed(self, function: Function) -> dict[str, Value]:
        """Return the constants that every call in the class of a private method passes."""
        sites = list(self.passed[function].values())
        assert function.owner is not None
        called = b"." + function.qualname.rpartition(".")[2].encode() + b"("
        if self.program.lines(function.module, function.owner.node).count(called) > len(sites):
            return {}  # a call was not reached
        return {name: value for name, value in sites[0].items() if all(site.get(name) == value for site in sites)}

    def run_alone(self, function: Function, steps: int) -> None:
        """Run a function with any arguments, within some steps; what it returns is of no interest."""
        self.values.budget.allow(steps)
        try:
            self.run_function(function, None, None)
        except (BudgetExceeded, Raised, RecursionError):
            self.running = []

    def _bind_parameters(self, function: Function, receiver: Value | None, call: Call | None, state: State) -> None:
        arguments = function.node.args
        names = [item.arg for item in [*arguments.posonlyargs, *arguments.args]]
        if call is None:
            for name in [*names, *(item.arg for item in arguments.kwonlyargs)]:
                state.variables[name] = UNKNOWN
            if arguments.vararg is not None:
                state.variables[arguments.vararg.arg] = UNKNOWN
            if arguments.kwarg is not None:
                state.variables[arguments.kwarg.arg] = Mapping(open=True)
            if names and function.owner is not None and function.is_method and not is_static(function):
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
                state.variables[name] = self._argument(
                    name, keywords, defaults, call, scratch, index >= len(positional)
                )
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
            return self.values.eval(default, scratch)
        return UNKNOWN


def _follows(value: Value) -> bool:
    """Return whether an argument makes it worth running the function that receives it."""
    if isinstance(value, (Function, Bound, Partial, ClassValue, ModuleValue)) or (
        isinstance(value, Mapping) and value.entries
    ):
        return True
    return isinstance(value, Sequence) and any(_follows(item) for item in value.items)


def _is_private_method(function: Function) -> bool:
    name = function.qualname.rpartition(".")[2]
    return function.owner is not None and name.startswith("_") and not name.endswith("__")


def _size(function: Function) -> int:
    node = function.node
    return (node.end_lineno or node.lineno) - node.lineno


_LOCALS: dict[int, tuple[ast.AST, frozenset[str]]] = {}
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def local_names(node: ast.AST) -> frozenset[str]:
    """Return the names that a function binds in its own scope."""
    known = _LOCALS.get(id(node))
    if known is not None and known[0] is node:
        return known[1]
    bound: set[str] = set()
    outer: set[str] = set()
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        child = waiting.pop()
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(child.name)
            continue
        if isinstance(child, _SCOPES):
            continue
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            bound.add(child.id)
        elif isinstance(child, (ast.Import, ast.ImportFrom)):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in child.names}
        elif isinstance(child, (ast.Global, ast.Nonlocal)):
            outer |= set(child.names)
        waiting += list(ast.iter_child_nodes(child))
    _LOCALS[id(node)] = (node, frozenset(bound - outer))
    return _LOCALS[id(node)][1]


_GENERATORS: dict[int, tuple[ast.AST, bool]] = {}


def _is_generator(function: Function) -> bool:
    known = _GENERATORS.get(id(function.node))
    if known is None or known[0] is not function.node:
        known = (function.node, any(isinstance(item, (ast.Yield, ast.YieldFrom)) for item in walk(function.node)))
        _GENERATORS[id(function.node)] = known
    return known[1]
