"""Find fixes: the smallest changes after which the same rulebook, evaluated again, reports no error.

`environment` knows releases and requirements, `resolve` finds releases that fit together, `plan` joins the remedies
of rules, `effects` computes the changed facts, `repair` evaluates the rulebook on them, `search` tries all releases,
`describe` writes the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from doctor.model import ChangeKind, Facts, Fix, FixSafety, Infeasible, Severity
from doctor.packages.index import ReleaseIndex, load_index
from doctor.packages.relations import owner_of
from doctor.rulebook.evaluate import Assessment
from doctor.rulebook.rulebook import Rulebook

from .budget import SearchBudget
from .describe import as_fix
from .environment import stack_of
from .images import newer_images
from .infeasibility_text import proofs
from .limits import Limits
from .overrides import overrides_of
from .ranking import best_of
from .repair import CandidateFix, FixSearch, downgrades_torch_line
from .search import Search, better, completed, keeping_backend
from .switches import switched_off

Requirements = Callable[[], Mapping[str, Sequence[str]]]
_DEFAULT = SearchBudget()


def solve(
    rulebook: Rulebook,
    facts: Facts,
    assessment: Assessment,
    *,
    limits: Limits | None = None,
    installed: Requirements | None = None,
    index: ReleaseIndex | None = None,
    deep: bool = True,
    thorough: bool = True,
    budget: SearchBudget = _DEFAULT,
) -> tuple[Fix, ...]:
    """Return fixes for the errors (for the warnings where there is no error), the recommended one first.

    `limits` says what stays; `installed` reads the Requires-Dist of installed distributions.
    Not `deep`: only the remedies of rules, without a search among all releases, which may take seconds.
    Not `thorough`: that search only where no remedy fixes everything or the fix is large; regressions are not computed.
    """
    requires = functools.cache(installed) if installed is not None else None
    own = limits.with_declared() if limits is not None else None
    kept: tuple[Fix, ...] = ()
    if own is not None:  # the project's own ranges stay where they are not part of the problem
        kept = _solve(rulebook, facts, assessment, own, requires, index, deep, thorough, budget)
        if kept and not kept[0].leaves and any(change.kind == ChangeKind.PACKAGE for change in kept[0].changes):
            return kept
        kept = tuple(fix for fix in kept if not fix.leaves)
    found = _solve(rulebook, facts, assessment, limits, requires, index, deep, thorough, budget)
    known = {fix.title for fix in kept}
    return (*kept, *(fix for fix in found if fix.title not in known))[: budget.fixes]


def _solve(
    rulebook: Rulebook,
    facts: Facts,
    assessment: Assessment,
    limits: Limits | None,
    installed: Requirements | None,
    index: ReleaseIndex | None,
    deep: bool,
    thorough: bool,
    budget: SearchBudget,
) -> tuple[Fix, ...]:
    errors = [finding for finding in assessment.findings if finding.severity == Severity.ERROR]
    targets = errors or [finding for finding in assessment.findings if finding.severity == Severity.WARNING]
    no_release = all(finding.no_pin for finding in targets)  # says the rule's author
    if not any(finding.alternatives for finding in targets) and no_release:
        return ()

    requires = installed() if installed is not None else None
    stack = stack_of(facts, assessment.known, index or load_index(), limits, requires)
    severities = ("error",) if errors else ("error", "warning")
    repair = FixSearch(rulebook, facts, assessment, stack, severities, budget)
    outcomes: list[CandidateFix] = []
    for finding in targets:  # worst first; where it leaves errors, another may be the better one to begin with
        named = repair.fixes_for(rulebook.rules[finding.rule])
        outcomes += [outcome for outcome in named if errors or _improves(repair, outcome)]
        if any(map(_complete, outcomes)):
            break
    outcomes += (*switched_off(repair), *newer_images(repair)) if errors else ()
    restored = {name for item in outcomes if _complete(item) for name in item.chosen if owner_of(name)}  # to its pin
    outcomes += (item for item in overrides_of(repair) if not restored & set(item.chosen))
    if deep and errors and not any(map(_complete, outcomes)):
        found = completed(repair, outcomes)  # no remedy fixes everything: search all releases
        outcomes += [found] if found is not None else []
    if deep and thorough and not errors and not outcomes:
        outcomes += _for_warnings(repair, [finding.rule for finding in targets if not finding.no_pin])
    best = best_of(repair, [repair.minimize(outcome) for outcome in outcomes])
    proven_minimal = True
    if deep and errors and best:
        kept = keeping_backend(repair, best[0])
        best = best_of(repair, [kept, *best], [kept]) if kept is not None else best
        large = downgrades_torch_line(stack, best[0]) or len(best[0].chosen) >= budget.suspicious_size
        if thorough or large:
            smaller, proven_minimal = better(repair, best)
            if smaller is not None:  # recommended only if it is worse in nothing that matters
                front = smaller.dominates(best[0])
                best = [smaller, *best] if front else [*best[: budget.fixes - 1], smaller]
        best = [repair.clearing_warnings(outcome) for outcome in best[: budget.fixes]]
    regressions = None
    if deep and thorough:
        from .regressions import FeatureRegressions  # door: solver

        regressions = FeatureRegressions(repair)
    fixes: dict[tuple[object, ...], Fix] = {}  # two outcomes may make the same changes
    for outcome in best:
        first = outcome is best[0]
        fix = as_fix(repair, outcome, first=first, minimal=proven_minimal, regressions=regressions)
        fixes.setdefault(tuple((change.kind, change.name, change.after) for change in fix.changes), fix)
    return tuple(fix for changes, fix in fixes.items() if changes)


def _complete(outcome: CandidateFix) -> bool:
    """Whether it fixes everything and nothing of it depends on an unknown condition."""
    return not outcome.firing and outcome.safety != FixSafety.CONDITIONAL


def _improves(repair: FixSearch, outcome: CandidateFix) -> bool:
    """Whether a fix of a warning is worth its price: it brings no warning and keeps torch's release line."""
    return not downgrades_torch_line(repair.stack, outcome) and not (outcome.chosen and repair.new_warnings(outcome))


def _for_warnings(repair: FixSearch, rules: Sequence[str]) -> list[CandidateFix]:
    """Return fixes of warnings that only the index knows, such as a bundled package at another version than pinned."""
    outcomes = []
    for name in rules[: repair.budget.warnings_searched]:
        alone = repair.of_one(repair.rulebook.rules[name])
        found = Search(alone, repair.budget.warning, "warning", lambda item: _improves(repair, item)).best()
        if found is not None:
            outcomes.append(repair.evaluate(found.plan, found.chosen) or found)
    return outcomes


def no_fix(
    rulebook: Rulebook,
    facts: Facts,
    assessment: Assessment,
    fixes: Sequence[Fix],
    *,
    limits: Limits | None = None,
    installed: Requirements | None = None,
    index: ReleaseIndex | None = None,
    budget: SearchBudget = _DEFAULT,
) -> tuple[Infeasible, ...]:
    """Explain for every error that no fix clears why no release does, and what would help instead."""
    cleared = {rule for fix in fixes for rule in fix.resolves}
    if not assessment.errors - cleared:
        return ()

    requires = installed() if installed is not None else None
    stack = stack_of(facts, assessment.known, index or load_index(), limits, requires)
    return proofs(FixSearch(rulebook, facts, assessment, stack, ("error",), budget), cleared)
