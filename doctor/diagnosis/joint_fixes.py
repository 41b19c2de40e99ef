"""Find fixes for many cases at once: solved for the cases with most findings, then checked in every other.

Only the remedies of rules are tried: a search among all releases may take seconds per case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from doctor.facts.vocabulary import fact, term
from doctor.model import ABSENT, Change, ChangeKind, Facts, Fix, Severity
from doctor.packages.index import load_index
from doctor.rulebook.evaluate import Assessment, with_backend_findings
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.shared import VARYING, share_evaluation
from doctor.solver.effects import changed_facts
from doctor.solver.environment import stack_of
from doctor.solver.limits import Limits
from doctor.solver.ranking import wrong_numbers
from doctor.solver.solve import solve

from .case_model import CaseResult, EnvironmentCases

MOST_SOLVED = 3  # sets of findings worked out per environment
MOST_FIXES = 3
_CONFIG = "workload."


@dataclass(frozen=True)
class _Checked:
    """A fix, and the cases that it is for: no error is left there, and no number becomes wrong."""

    fix: Fix
    serves: frozenset[int]
    order: int

    @property
    def rank(self) -> tuple[int, int, int, int, int]:
        """How few cases it serves, unsafe ways, what it costs, how little it clears, then the solver's order."""
        return -len(self.serves), self.fix.safety.rank, self.fix.kind.rank, -len(self.fix.resolves), self.order


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
        base = groups[rules].verdict.to_fix
        requires = environment.cells[0].examined.requirements  # without those of packages that the user sets otherwise
        for fix in solve(rulebook, base.known.given, base, limits=limits, installed=requires, deep=False):
            key = tuple(change._replace(why="", resolves=()) for change in fix.changes)
            if key not in found:
                checked = _checked(rulebook, environment, groups[rules], fix, severity, len(found))
                if checked is not None:
                    found[key] = checked
    failing = frozenset(number for number, cell in enumerate(environment.cells) if _rules(cell, severity))
    return tuple(_for_its_cases(environment, item, failing) for item in _covering(found.values(), failing))


def _covering(found: Collection[_Checked], failing: frozenset[int]) -> list[_Checked]:
    """Return up to three fixes, the widest first; of equal reach the cheapest, and none for what another serves."""
    ordered = sorted((item for item in found if item.fix.resolves and item.serves), key=lambda item: item.rank)
    whole = [item for item in ordered if item.serves == failing]
    if whole:
        return whole[:MOST_FIXES]
    shown: list[_Checked] = []
    for item in ordered:
        if len(shown) < MOST_FIXES and not any(item.serves <= other.serves for other in shown):
            shown.append(item)
    return shown


def _for_its_cases(environment: EnvironmentCases, item: _Checked, failing: frozenset[int]) -> Fix:
    """Return the fix; where it is not for all cases that fail, with those that it is for in its title."""
    if item.serves == failing:
        return item.fix
    names = ", ".join(_names(environment, item.serves))
    return item.fix._replace(title=f"for {names}: {item.fix.title}", cases=tuple(sorted(item.serves)))


def _names(environment: EnvironmentCases, numbers: frozenset[int]) -> Iterator[str]:
    """Yield the GPUs whose cases are all among these, and the others by GPU and job."""
    cases = [cell.case for cell in environment.cells]
    whole = {
        gpu
        for gpu in {case.gpu for case in cases if case.gpu}
        if all(number in numbers or cases[number].gpu != gpu for number in range(len(cases)))
    }
    for_one = (" ".join(filter(None, (case.gpu, case.workload))) for case in cases)
    labels = [case.gpu if case.gpu in whole else label for case, label in zip(cases, for_one, strict=True)]
    yield from dict.fromkeys(labels[number] or "this case" for number in sorted(numbers))


def _rules(cell: CaseResult, severity: str) -> frozenset[str]:
    found = frozenset(item.rule for item in cell.verdict.to_fix.findings if item.severity == severity)
    return found - cell.verdict.chosen


def _checked(
    rulebook: Rulebook, environment: EnvironmentCases, solved: CaseResult, fix: Fix, severity: str, order: int
) -> _Checked | None:
    """The fix with the cases that it serves, by evaluating the rulebook again in each; None where it breaks one."""
    if any(change.kind == ChangeKind.CALL for change in fix.changes):  # code: no fact shows whether it is done
        serves = frozenset(
            number for number, cell in enumerate(environment.cells)
            if _rules(cell, severity) and _rules(cell, severity) <= set(fix.resolves)
        )  # fmt: skip
        return _Checked(fix, serves, order)
    served: set[int] = set()
    cleared: set[str] = set()
    for number, (cell, after) in enumerate(
        zip(environment.cells, _after(rulebook, environment.cells, solved, fix), strict=True)
    ):
        own = {item.rule for item in cell.verdict.to_fix.findings}
        unclear = {rule for group in after.undetermined for rule in group.rules}
        errors = {item.rule for item in with_backend_findings(rulebook, after) if item.severity == Severity.ERROR}
        errors |= _rules(cell, "error") & unclear  # not fixed, only hidden
        wrong = errors | wrong_numbers(rulebook, own, after)
        if wrong - own and fix.changes_packages:
            return None  # the cases share one environment
        wanted = _rules(cell, severity)
        now = {item.rule for item in after.findings} | (own & unclear)
        if wanted and not wrong and wanted - now:
            served.add(number)
        if not wrong:
            cleared |= (_rules(cell, "error") | _rules(cell, "warning")) - now
    resolves = tuple(sorted(cleared, key=lambda rule: (rule not in fix.resolves, rule)))
    changes = tuple(
        change._replace(resolves=tuple(rule for rule in change.resolves if rule in resolves) or resolves)
        for change in fix.changes
    )
    return _Checked(fix._replace(changes=changes, resolves=resolves, leaves=()), frozenset(served), order)


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
