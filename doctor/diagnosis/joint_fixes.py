"""Find fixes for many cases at once: solved for the cases with most findings, then checked in every other.

Only the remedies of rules are tried: a search among all releases may take seconds per case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from doctor.facts.vocabulary import fact, term
from doctor.model import ABSENT, Change, ChangeKind, Facts, Fix, Severity
from doctor.packages.index import load_index
from doctor.rulebook.evaluate import Assessment, with_backend_findings
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.shared import VARYING, share_evaluation
from doctor.solver.constraints import Limits
from doctor.solver.effects import changed_facts
from doctor.solver.environment import stack_of
from doctor.solver.solve import solve

from .case_model import CaseResult, EnvironmentCases

MOST_SOLVED = 3  # sets of findings worked out per environment
MOST_FIXES = 3
_CONFIG = "workload."


@dataclass(frozen=True)
class _Checked:
    """A fix, and what each case says once it is made."""

    fix: Fix
    left: frozenset[str]  # error rules that fire, or can no longer be judged, in some case
    order: int

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """What stays broken, unsafe ways, how little it clears, then the solver's order."""
        return len(self.left), self.fix.safety.rank, -len(self.fix.resolves), self.order


def fixes_for(rulebook: Rulebook, environment: EnvironmentCases, limits: Limits | None) -> tuple[Fix, ...]:
    """Up to three fixes for the errors of an environment's cases (for the warnings where there is no error)."""

    severity = "error" if any(_rules(cell, "error") for cell in environment.cells) else "warning"
    groups: dict[frozenset[str], CaseResult] = {}
    for cell in environment.cells:
        rules = _rules(cell, severity)
        if rules:
            groups.setdefault(rules, cell)
    found: dict[tuple[Change, ...], _Checked] = {}
    for rules in sorted(groups, key=len, reverse=True)[:MOST_SOLVED]:
        if any(not item.left and rules <= set(item.fix.resolves) for item in found.values()):
            continue  # something clears everything already, and this with it
        base = groups[rules].verdict.to_fix
        requires = environment.cells[0].examined.requirements  # without those of packages that the user sets otherwise
        for fix in solve(rulebook, base.known.given, base, limits=limits, installed=requires, deep=False):
            key = tuple(change._replace(why="", resolves=()) for change in fix.changes)
            if key not in found:
                found[key] = _checked(rulebook, environment, groups[rules], fix, severity, len(found))
    best = sorted((item for item in found.values() if item.fix.resolves), key=lambda item: item.rank)
    return tuple(item.fix for item in best[:MOST_FIXES])


def _rules(cell: CaseResult, severity: str) -> frozenset[str]:
    found = frozenset(item.rule for item in cell.verdict.to_fix.findings if item.severity == severity)
    return found - cell.verdict.chosen


def _checked(
    rulebook: Rulebook, environment: EnvironmentCases, solved: CaseResult, fix: Fix, severity: str, order: int
) -> _Checked:
    """The fix with what it clears in all the cases, by evaluating the rulebook again in each."""
    if any(change.kind == ChangeKind.CALL for change in fix.changes):  # code: no fact shows whether it is done
        errors = {rule for cell in environment.cells for rule in _rules(cell, "error")}
        left = frozenset(errors - set(fix.resolves)) | set(fix.leaves)
        return _Checked(fix._replace(leaves=tuple(sorted(left))), left, order)
    before: set[str] = set()
    firing: set[str] = set()
    errors_left: set[str] = set()
    for cell, after in zip(environment.cells, _after(rulebook, environment.cells, solved, fix), strict=True):
        own = {item.rule for item in cell.verdict.to_fix.findings}
        now = {item.rule for item in after.findings}
        unclear = {rule for group in after.undetermined for rule in group.rules}
        errors = {item.rule for item in with_backend_findings(rulebook, after) if item.severity == Severity.ERROR}
        before |= own
        firing |= now | (own & unclear)  # not fixed, only hidden
        errors_left |= errors | (_rules(cell, "error") & unclear)
    counted = {rule for cell in environment.cells for level in ("error", "warning") for rule in _rules(cell, level)}
    resolves = tuple(sorted((before & counted) - firing, key=lambda rule: (rule not in fix.resolves, rule)))
    changes = tuple(
        change._replace(resolves=tuple(rule for rule in change.resolves if rule in resolves) or resolves)
        for change in fix.changes
    )
    checked = fix._replace(changes=changes, resolves=resolves, leaves=tuple(sorted(errors_left)))
    return _Checked(checked, frozenset(errors_left), order)


def _after(rulebook: Rulebook, cells: Sequence[CaseResult], solved: CaseResult, fix: Fix) -> Iterator[Assessment]:
    """Every case once the fix is made; what it does to the environment is worked out once."""

    known: FactResolver = solved.verdict.to_fix.known
    chosen = {change.name: change.after or ABSENT for change in fix.changes if change.kind == ChangeKind.PACKAGE}
    variables = {change.name: change.after or ABSENT for change in fix.changes if change.kind == ChangeKind.ENV}
    settings = [
        fact(_CONFIG + change.name, change.after or ABSENT, "the proposed fix")
        for change in fix.changes
        if change.kind == ChangeKind.CONFIG and not term(_CONFIG + change.name).derived
    ]
    stack = stack_of(known.given, known, load_index())
    changed = changed_facts(rulebook, known.given, known, stack, chosen, variables, {})
    shared = Facts(item for key, item in changed.items() if not key.startswith(VARYING))
    ground = share_evaluation(rulebook, shared)
    for cell in cells:
        own = [item for key, item in cell.verdict.to_fix.known.given.items() if key.startswith(VARYING)]
        concerned = settings if set(fix.resolves) & {item.rule for item in cell.verdict.to_fix.findings} else []
        yield ground.evaluate(shared.with_(*own, *concerned))
