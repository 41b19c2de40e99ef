"""Collect what the interpreter reports about one caller, and turn it into findings."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from .findings import Certainty, Finding, Kind, Location, Pair, PairVerdict, Reach, Severity
from .frames import Frame, Violation
from .program import Program, imported_modules, module_level_imports
from .sources import Package
from .state import State
from .trees import walk

#: Code of context parallelism, by the names that its functions, files and conditions carry.
CONTEXT_PARALLEL = re.compile(
    r"(?<![a-z])cp(?![a-z])|with_?cp|context_?parallel|ring_?(?:flash|attn|attention)|sequence_?parallel|ulysses|zigzag"
    r"|(?:^|_)fpdt|distributed_?attention|stripe", re.I
)  # fmt: skip
#: A condition by which the workload chooses an option by its name.
_NAMED_OPTION = re.compile(r"[\w.]+ == (['\"]).*\1")
#: The word that classes of one kind end in: `Container`.
_LAST_WORD = re.compile(r"(?<=\w)[A-Z][a-z]+$")
#: So many classes of one kind are options of which a workload uses one.
MANY = 10
CONDITIONS = 6
OF_CALLS = frozenset(
    {Kind.MISSING_ARGUMENT, Kind.UNEXPECTED_KEYWORD, Kind.TOO_MANY_POSITIONALS, Kind.DUPLICATE_ARGUMENT}
)


@dataclass
class Seen:
    """A violation at a line, over all paths that reach it."""

    violation: Violation
    frame_module: str
    scope: str
    at_import: bool
    path: str
    line: int
    definite: bool
    unknown: str
    conditions: tuple[str, ...]
    contexts: set[tuple[str, str, int, str]]
    """The ways into the function on which the violation is definite."""


@dataclass
class Collector:
    """The sink of one analysis: keeps violations of `caller` against other packages, and counts uses."""

    program: Program
    caller: Package
    seen: dict[tuple[str, int, str, str, str], Seen] = field(default_factory=dict)
    fitting: set[tuple[str, str, int, str]] = field(default_factory=set)
    fitting_members: set[tuple[str, int, str]] = field(default_factory=set)
    """Lines at which a member of some class is used as it should be: a function may serve several classes."""
    uses: dict[str, set[tuple[str, int, int]]] = field(default_factory=dict)
    unknown_uses: dict[str, set[tuple[str, int, int]]] = field(default_factory=dict)

    def violation(self, frame: Frame, node: ast.AST, state: State, violation: Violation) -> None:
        """Record a use that fails; a path without unknown guards makes it definite."""
        callee = self.program.package(violation.module)
        if frame.record.package is not self.caller or callee is None or callee is self.caller:
            return
        line = getattr(node, "lineno", 0)
        path = self.program.environment.display(self.caller, frame.record.source.path)
        key = (path, line, violation.kind.value, violation.symbol, violation.name)
        conditions = tuple(state.conditions())[:CONDITIONS]
        known = self.seen.get(key)
        definite = not state.unknown
        if known is None or (definite and not known.definite):
            contexts = known.contexts if known is not None else set()
            self.seen[key] = Seen(
                violation, frame.record.name, frame.scope, frame.is_module, path, line, definite, state.unknown,
                conditions, contexts,
            )  # fmt: skip
        elif definite == known.definite and len(conditions) < len(known.conditions):
            known.conditions = conditions
        if definite:
            self.seen[key].contexts.add((frame.context, path, line, violation.symbol))

    def fits(self, frame: Frame, node: ast.AST, symbol: str) -> None:
        """Note a path on which a call fits, so that one on which it does not depends on the workload."""
        if frame.record.package is self.caller:
            path = self.program.environment.display(self.caller, frame.record.source.path)
            line = getattr(node, "lineno", 0)
            self.fitting.add((frame.context, path, line, symbol))
            self.fitting_members.add((path, line, symbol.rpartition(".")[2]))

    def use(self, frame: Frame, node: ast.AST, module: str, known: bool) -> None:
        """Count a use of something of another package."""
        if frame.record.package is not self.caller:
            return
        place = (frame.record.name, getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        callee = module.partition(".")[0]
        self.uses.setdefault(callee, set()).add(place)
        if not known:
            self.unknown_uses.setdefault(callee, set()).add(place)

    # Findings

    def findings(self, reached: frozenset[str], live: dict[str, bool]) -> list[Finding]:
        """Return the findings.

        `reached` holds the modules that importing the caller imports. `live` says for a module whether any import of
        it is on a live path and unguarded; findings in modules that no live import reaches are left out.
        """
        found = []
        for item in self.seen.values():
            if live.get(item.frame_module) is False:
                continue
            found.append(self._finding(item, item.frame_module in reached))
        return sorted(
            found, key=lambda item: (_RANK[item.severity], item.site.path, item.site.line, item.code, item.name)
        )

    def _finding(self, item: Seen, reached: bool) -> Finding:
        violation = item.violation
        callee = self.program.package(violation.module)
        assert callee is not None
        reach = self._reach(item, reached)
        certainty, unknown = Certainty.DEFINITE if item.definite else Certainty.UNKNOWN, item.unknown
        if item.definite and violation.kind in OF_CALLS and item.contexts <= self.fitting:
            certainty, unknown = Certainty.POSSIBLE, "the same call fits on other paths: the workload decides"
        elif item.definite and self._fits_other_class(item):
            certainty, unknown = Certainty.POSSIBLE, "the same use fits another class that the function serves"
        record = self.program.records.get(violation.module)
        definition = None
        if record is not None and violation.line:
            definition = Location(self.program.environment.display(callee, record.source.path), violation.line)
        return Finding(
            violation.kind, severity_of(violation.kind, certainty, reach), certainty, reach, self.caller.release,
            callee.release, violation.symbol, violation.name, Location(item.path, item.line), item.scope, definition,
            violation.signature, violation.message, item.conditions, unknown,
        )  # fmt: skip

    def _fits_other_class(self, item: Seen) -> bool:
        owner, _, member = item.violation.symbol.rpartition(".")
        is_member = owner.rpartition(".")[2][:1].isupper()
        return is_member and (item.path, item.line, member) in self.fitting_members

    def _reach(self, item: Seen, reached: bool) -> Reach:
        violation = item.violation
        missing = violation.kind in (Kind.MISSING_MODULE, Kind.MISSING_ATTRIBUTE)
        if missing and self.program.is_family_member(violation.symbol):
            return Reach.FEATURE
        if violation.kind in (Kind.MISSING_NAME, Kind.MISSING_ATTRIBUTE) and self.program.is_family_name(
            violation.module, violation.name
        ):
            return Reach.FEATURE
        if violation.kind is Kind.MISSING_MODULE and any(map(_NAMED_OPTION.fullmatch, item.conditions)):
            return Reach.FEATURE  # `if implementation == "flash_attention_4": from flash_attn.cute import …`
        imported = violation.kind in (Kind.MISSING_MODULE, Kind.MISSING_NAME)
        if imported and not item.at_import and self.program.in_family(violation.module):
            return Reach.FEATURE
        text = " ".join((item.scope, item.path.rpartition("/")[2], *item.conditions))
        if CONTEXT_PARALLEL.search(text):
            return Reach.CONTEXT_PARALLEL
        if item.at_import:
            return Reach.IMPORT if reached else Reach.ON_DEMAND
        if imported and item.conditions:
            return Reach.ON_DEMAND  # the author defers the import, and the workload decides whether it runs
        if any(test(item) for test in (self._is_optional, self._serves_one_model, self._refuses_one_of_many,
                                       self._is_never_named)):  # fmt: skip
            return Reach.ON_DEMAND
        if item.scope.endswith("__init__"):
            return Reach.CONSTRUCTION
        return Reach.COMMON

    def _is_optional(self, item: Seen) -> bool:
        """Return whether the file imports the callee in functions only, and a condition leads to the use."""
        record = self.program.records.get(item.frame_module)
        if record is None or record.tree is None or not item.conditions:
            return False
        callee = item.violation.module.partition(".")[0]
        found = {
            name.partition(".")[0] for node in walk(record.tree) if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in imported_modules(record, node)
        }  # fmt: skip
        return callee in found and all(name.partition(".")[0] != callee for name in module_level_imports(record))

    def _serves_one_model(self, item: Seen) -> bool:
        """Return whether the file, or its folder, is one of many that are named like the callee's models."""
        record = self.program.records.get(item.frame_module)
        if record is None or not self.program.in_family(item.violation.module):
            return False
        models = self.program.members_of_family(item.violation.module)
        path = record.source.path
        if path.stem in models:
            return sum(other.stem in models for other in path.parent.glob("*.py")) >= MANY
        return (
            path.parent.name in models and sum(other.name in models for other in path.parent.parent.iterdir()) >= MANY
        )

    def _refuses_one_of_many(self, item: Seen) -> bool:
        """Return whether one class refuses a release, and files next to it define many classes of the same kind."""
        ending = _LAST_WORD.search(item.scope.partition(".")[0])
        record = self.program.records.get(item.frame_module)
        if item.violation.kind is not Kind.VERSION_REFUSED or ending is None or record is None:
            return False
        pattern = re.compile(rb"^class \w+" + ending.group().encode() + rb"\b", re.M)
        siblings = record.source.path.parent.glob("*.py")
        return sum(pattern.search(self.program.environment.peek(path)) is not None for path in siblings) >= MANY

    def _is_never_named(self, item: Seen) -> bool:
        """Return whether the caller names other functions of the module, but never this one, to call or export it."""
        record = self.program.records.get(item.frame_module)
        if self.caller.is_code or item.at_import or record is None or record.tree is None:
            return False
        functions = {node.name for node in record.tree.body if isinstance(node, ast.FunctionDef)}
        if item.scope not in functions or len(functions) < 2:
            return False
        named = re.compile(rb"(?<!\bdef )\b(?:" + b"|".join(sorted(map(str.encode, functions))) + rb")\b")
        environment = self.program.environment
        files = environment.files(self.caller)
        found = {match.decode() for path in files for match in named.findall(environment.peek(path))}
        return bool(found) and item.scope not in found

    def pairs(self, findings: list[Finding], callees: list[Package]) -> list[Pair]:
        """Return the verdict for each callee."""
        result = []
        for callee in callees:
            uses = len(self.uses.get(callee.name, ()))
            mine = [item for item in findings if item.callee == callee.release]
            if not uses and not mine:
                continue
            if any(breaks(item) for item in mine):
                verdict = PairVerdict.BROKEN
            elif any(item.certainty is Certainty.UNKNOWN and item.reach is not Reach.FEATURE for item in mine):
                verdict = PairVerdict.UNKNOWN
            else:
                verdict = PairVerdict.OK
            unknown = len(self.unknown_uses.get(callee.name, ()))
            result.append(Pair(self.caller.release, callee.release, verdict, uses, unknown))
        return result


_RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def breaks(finding: Finding) -> bool:
    """Return whether a finding makes its pair broken: it surely fails, and on more than a missing model."""
    return (
        finding.certainty is Certainty.DEFINITE
        and finding.reach is not Reach.FEATURE
        and finding.kind is not Kind.INCOMPATIBLE_OVERRIDE
    )


def severity_of(kind: Kind, certainty: Certainty, reach: Reach) -> Severity:
    """Return the severity of a finding before the workload is known."""
    if certainty is not Certainty.DEFINITE or reach is Reach.FEATURE:
        return Severity.NOTE
    if kind is Kind.INCOMPATIBLE_OVERRIDE or reach in (Reach.CONTEXT_PARALLEL, Reach.ON_DEMAND):
        return Severity.WARNING
    return Severity.ERROR
