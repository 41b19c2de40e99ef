"""Collect what the interpreter reports about one caller, and turn it into findings."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from .findings import Certainty, Finding, Kind, Location, Pair, PairVerdict, Reach, Severity
from .frames import Frame, Violation
from .program import Program
from .reach import Seen, reach_of
from .sources import Package
from .state import State

CONDITIONS = 6
OF_CALLS = frozenset(
    {Kind.MISSING_ARGUMENT, Kind.UNEXPECTED_KEYWORD, Kind.TOO_MANY_POSITIONALS, Kind.DUPLICATE_ARGUMENT}
)


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
        reach = reach_of(item, self.program, self.caller, reached)
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
