"""Analyze one caller: run the modules that mention another package, then the functions that use one."""

from __future__ import annotations

import ast
import math
import re
import time
from collections.abc import Sequence

from .classes import lineage
from .collector import Collector
from .dispatch import typed_functions
from .findings import CallerResult, Notice
from .machine import Machine
from .mentions import importing_files, mentions
from .overrides import check_overrides
from .program import Program, Record, imported_modules, module_level_imports, module_level_nodes
from .sources import Environment, Package, is_readable, normalized
from .state import BudgetExceeded, Raised, State
from .trees import walk
from .values import (
    ClassInfo,
    ClassValue,
    Function,
    Imported,
    Instance,
    ModuleValue,
    Partial,
    Value,
    VersionValue,
    alternatives,
)

#: Steps for one function with all its paths, and for one package; about seven microseconds each.
FUNCTION_STEPS = 60_000
PACKAGE_STEPS = 500_000
#: A module that more files seem to import is taken for live.
IMPORTERS = 60


def analyze_caller(
    environment: Environment, caller: Package, callees: Sequence[Package], seconds: float = math.inf
) -> CallerResult:
    """Return the findings of one package against the others; after `seconds` only imports are checked."""
    before = len(environment.notices)
    program = Program(environment, is_readable)
    collector = Collector(program, caller)
    machine = Machine(program, collector)
    machine.budget.deadline = time.process_time() + seconds
    run = _Run(machine, caller, callees)
    run.modules()
    run.functions()
    findings = collector.findings(run.reached(), run.live())
    pairs = collector.pairs(findings, list(callees))
    files = sorted({str(record.source.path) for record in program.records.values() if record is not None})
    notices = [*environment.notices[before:], *run.notices]
    return CallerResult(
        tuple(findings), tuple(pairs), tuple(dict.fromkeys(notices)), tuple(files), reaches=tuple(sorted(run.reaches))
    )


#: `module.name = …` and `setattr(module, "name", …)`.
_ASSIGNED = re.compile(rb"^[ \t]*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.([A-Za-z_]\w*)[ \t]*=(?!=)", re.M)
_SET = re.compile(rb"\bsetattr\(\s*([A-Za-z_][\w.]*)\s*,\s*[\"']([A-Za-z_]\w*)[\"']")


class _Run:
    """The state of one analysis."""

    def __init__(self, machine: Machine, caller: Package, callees: Sequence[Package]) -> None:
        self.machine = machine
        self.program = machine.program
        self.environment = machine.program.environment
        self.caller = caller
        self.callees = [item for item in callees if item is not caller]
        self.tops = frozenset(item.name for item in self.callees)
        self.distributions = frozenset(item.release.name for item in self.callees)
        self.notices: list[Notice] = []
        self.records: list[Record] = []
        self.reaches: frozenset[str] = frozenset()
        self.limit = 0
        self.capped = ""
        """Why not all functions were run."""

    def modules(self) -> None:
        """Run every module of the caller that mentions a callee."""
        if not self.callees:
            return
        chosen = []
        for path, names in importing_files(self.environment, self.caller, self.callees, self.notices):
            chosen.append(self.environment.module_name(self.caller, path))
            self.reaches |= names
        self.mentioning = frozenset(chosen)
        for name in chosen:
            self.machine.budget.allow(FUNCTION_STEPS)
            record = self.program.record(name)
            if record is not None and record.package is self.caller:
                self.records.append(record)

    def functions(self) -> None:
        """Run the functions that use another package, those that become methods of its classes, then their siblings."""
        self.limit = self.machine.budget.steps + PACKAGE_STEPS
        self._patches()
        naming, others = self._chosen()
        self._run_all(naming)
        where = "functions" if self.capped else "methods that name no other package"
        for function, info in typed_functions(self.machine, self.records, self.callees):
            self._run(function, Instance(info), {})
        self._run_all(others)
        if not self.capped:
            check_overrides(self.machine, self.records)
        else:
            reason = f"{self.capped}: in some {where} only imports were checked"
            self.notices.append(Notice(self.caller.name, reason))

    def _run_all(self, functions: list[tuple[Record, Function]]) -> None:
        """Run functions until steps or seconds of the package are used up; then check their imports only."""
        budget = self.machine.budget
        seeds: dict[int, State] = {}
        for record, function in functions:
            if not self.capped and (budget.steps > self.limit or budget.is_late):
                self.capped = "out of time" if budget.is_late else "too large"
                budget.deadline = math.inf
            if self.capped:
                self._imports_only(record, function)
            else:
                self._run(function, None, seeds)

    def _chosen(self) -> tuple[list[tuple[Record, Function]], list[tuple[Record, Function]]]:
        """Return the functions that name another package, and the other methods of their classes."""
        naming: list[tuple[Record, Function]] = []
        others: list[tuple[Record, Function]] = []
        for record in self.records:
            if record.tree is None:
                continue
            interesting = mentions(self._interesting(record))
            functions = self.machine.functions.get(record.name, {}).values()
            names = {id(item): self._uses(record, item.node, interesting) for item in functions}
            classes = {id(item.owner) for item in functions if item.owner is not None and names[id(item)]}
            for function in sorted(functions, key=_forward_first):
                owner = function.owner
                if names[id(function)]:
                    naming.append((record, function))
                elif owner is not None and (id(owner) in classes or self._derived(owner)):
                    first = function.qualname.endswith((".__init__", ".forward"))
                    (naming if first else others).append((record, function))
        return naming, others

    def _patches(self) -> None:
        """Note what the caller assigns to the modules and classes of others: that is not checked as they wrote it."""
        for record in self.records:
            text = self.program.text(record.name) or b""
            for match in [*_ASSIGNED.finditer(text), *_SET.finditer(text)]:
                path, name = match.group(1).decode(), match.group(2).decode()
                if path.partition(".")[0] not in ("self", "cls", "ctx"):
                    self._patch(record, path, name)

    def _patch(self, record: Record, path: str, name: str) -> None:
        root = record.namespace.get(path.partition(".")[0])
        value: Value | None = None
        if root is not None and self._may_be_foreign(root):
            value = self.machine.evaluate_in(record, ast.parse(path, mode="eval").body)
        elif path.partition(".")[0] in self.tops:
            value = self.program.module_value(path)
        if isinstance(value, ModuleValue) and self._is_foreign(value):
            other = self.program.record(value.name)
            if other is not None:
                other.patched.add(name)
                other.namespace.pop(name, None)
        elif isinstance(value, ClassValue) and self._is_foreign(value):
            value.info.patched.add(name)

    def _may_be_foreign(self, value: Value) -> bool:
        if isinstance(value, Imported):
            return value.module.partition(".")[0] in self.tops
        return any(self._is_foreign(item) for item in alternatives(value))

    def _run(self, function: Function, receiver: Value | None, seeds: dict[int, State]) -> None:
        machine = self.machine
        machine.budget.allow(FUNCTION_STEPS)
        machine.nested = []
        seed = None
        owner = function.owner
        if owner is not None and owner.refused:
            return
        if owner is not None and function.qualname.endswith(".backward"):
            seed = seeds.get(id(owner))
        try:
            ends = machine.calls.run_function(function, receiver, None, "", seed)
        except (BudgetExceeded, Raised, RecursionError):
            ends = []
            if machine.budget.is_spent:
                self.notices.append(Notice(f"{function.module}.{function.qualname}", "too many paths: checked in part"))
        if owner is not None and function.qualname.endswith(".forward") and ends:
            seeds[id(owner)] = _kept([state for state, _ in ends])
        for inner in list(machine.nested):
            machine.calls.run_alone(inner, FUNCTION_STEPS // 4)

    def _imports_only(self, record: Record, function: Function) -> None:
        """Check the imports inside a function that is not run any more."""
        machine = self.machine
        machine.budget.allow(FUNCTION_STEPS)
        if b"import" not in self.program.lines(record.name, function.node):
            return
        nodes = list(walk(function.node))
        if any(isinstance(node, ast.Try) for node in nodes):
            return
        body = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
        machine.run_imports(record, function, [node for node in body if _absolute_top(record, node) in self.tops])

    def _interesting(self, record: Record) -> frozenset[str]:
        """Return the module's names that hold something of another package."""
        names = set()
        for name, value in list(record.namespace.items()):
            if isinstance(value, Imported):
                if value.module.partition(".")[0] in self.tops:
                    names.add(name)
                    continue
                if not self._worth_following(value):
                    continue
            if any(self._is_foreign(self.program.force(item)) for item in alternatives(value)):
                names.add(name)
        names |= {name for name, value in record.global_imports.items() if value.module.partition(".")[0] in self.tops}
        return frozenset(names) | self.tops | self.distributions

    def _worth_following(self, value: Imported) -> bool:
        return value.module in self.mentioning or f"{value.module}.{value.name}" in self.mentioning

    def _is_foreign(self, value: Value) -> bool:
        if isinstance(value, Partial):
            return self._is_foreign(value.target)
        if isinstance(value, VersionValue):
            return normalized(value.of) in self.distributions
        if isinstance(value, (Function, ModuleValue)):
            module = value.module if isinstance(value, Function) else value.name
            return module.partition(".")[0] in self.tops
        if isinstance(value, (ClassValue, Instance)):
            return value.info.module.partition(".")[0] in self.tops
        return False

    def _uses(self, record: Record, node: ast.AST, interesting: re.Pattern[bytes]) -> bool:
        """Return whether the text of a function has one of these words."""
        return interesting.search(self.program.lines(record.name, node)) is not None

    def _derived(self, info: ClassInfo) -> bool:
        """Return whether a class inherits from one of another package."""
        return any(item.module.partition(".")[0] in self.tops for item in lineage(self.program, info)[0])

    # Reachability inside the caller

    def reached(self) -> frozenset[str]:
        """Return the modules that importing the caller's top-level package imports."""
        waiting, found = [self.caller.name], {self.caller.name}
        while waiting:
            name = waiting.pop()
            record = self.program.records.get(name)
            if record is None or record.tree is None:
                continue
            for module in module_level_imports(record):
                parts = module.split(".")
                for index in range(1, len(parts) + 1):
                    part = ".".join(parts[:index])
                    if part not in found and parts[0] == self.caller.name and part in self.program.records:
                        found.add(part)
                        waiting.append(part)
        return frozenset(found)

    def live(self) -> dict[str, bool]:
        """Return for modules with findings whether an import on a live path, outside any handler, reaches them."""
        result: dict[str, bool] = {}
        for item in self.machine.checker.sink.seen.values():  # type: ignore[attr-defined]
            name = item.frame_module
            if name in result or name == self.caller.name:
                continue
            importers = self._importers(name)
            if not importers:
                continue
            result[name] = any(importers)
        return result

    def _importers(self, module: str) -> list[bool]:
        """Return for each import of a module in the caller whether it may run unguarded."""
        last = module.rpartition(".")[2]
        pattern = re.compile(
            rf"(?:import|from)\b[^\n]*(?<!\w){re.escape(last)}(?!\w)|^\s+{re.escape(last)},?$".encode(), re.M
        )
        candidates = []
        for path in self.environment.files(self.caller):
            name = self.environment.module_name(self.caller, path)
            try:
                data = path.read_bytes() if name != module else b""
                if last.encode() in data and pattern.search(data):
                    candidates.append(name)
            except OSError:
                continue
        if len(candidates) > IMPORTERS:
            return [True]
        found: list[bool] = []
        for name in candidates:
            self.machine.budget.allow(FUNCTION_STEPS)
            record = self.program.record(name)
            if record is None or record.tree is None:
                continue
            found += self._imports_of(record, module)
        return found

    def _imports_of(self, record: Record, module: str) -> list[bool]:
        at_module_level = module_level_nodes(record)
        found: list[bool] = []
        assert record.tree is not None
        for node in walk(record.tree):
            if not isinstance(node, (ast.Import, ast.ImportFrom)) or module not in imported_modules(record, node):
                continue
            # A lazy module imports for type checkers what it gives on demand.
            if record.lazy or id(node) not in at_module_level or isinstance(node, ast.Import):
                found.append(True)
            else:
                ran = self.machine.imports.get(module, [])
                found.append(any(item.importer == record.name and not item.guarded for item in ran))
        return found


def _forward_first(function: Function) -> tuple[int, int]:
    name = function.qualname.rpartition(".")[2]
    return (0 if name == "__init__" else 1 if name == "forward" else 2), function.line


def _kept(states: list[State]) -> State:
    """Return what `ctx` surely holds at the end of `forward`, for `backward` to start with."""
    first = states[0]
    seed = State()
    for name, value in first.variables.items():
        if name.startswith("ctx.") and all(state.variables.get(name) == value for state in states[1:]):
            seed.variables[name] = value
    for text, truth in first.facts.items():
        if "ctx." in text and all(state.facts.get(text) == truth for state in states[1:]):
            seed.facts[text] = truth
    return seed


def _absolute_top(record: Record, node: ast.AST) -> str:
    if isinstance(node, ast.ImportFrom):
        return record.absolute(node.module, node.level).partition(".")[0]
    return node.names[0].name.partition(".")[0] if isinstance(node, ast.Import) else ""
