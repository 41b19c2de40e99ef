"""Fixes: the smallest changes after which the same rulebook, asked again, has no error left.

`stack` knows releases and what they require, `packages` searches those that fit together, `plan` joins what rules
ask for, `effects` says what the facts would then be, `repair` asks the rulebook again, `wording` tells it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from doctor.model import ChangeKind, Facts, Fix, Infeasible, Severity
from doctor.packages.index import ReleaseIndex, load_index
from doctor.rulebook.evaluate import Assessment
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.environment import stack_of

from .constraints import Limits
from .describe import as_fix
from .infeasibility_text import proofs
from .regressions import FeatureRegressions
from .repair import CandidateFix, FixSearch, best_of, drags
from .search import Search, better, completed

MOST_FIXES = 3
_SEARCHED = 3  # warnings
_SUSPICIOUS = 4  # packages: from so many on it is always asked whether fewer would do


def solve(
    rulebook: Rulebook,
    facts: Facts,
    assessment: Assessment,
    *,
    limits: Limits | None = None,
    installed: Callable[[], Mapping[str, Sequence[str]]] | None = None,
    index: ReleaseIndex | None = None,
    deep: bool = True,
    thorough: bool = True,
) -> tuple[Fix, ...]:
    """Up to three fixes for the errors (for the warnings where there is no error), the recommended one first.

    `limits` says what stays; `installed` reads the Requires-Dist of installed distributions, once something is to fix.
    Not `deep`: only the ways that rules name, without a search among all releases, which may take seconds.
    Not `thorough`: that search only where no rule's way clears everything or the way is a heavy one, and what the
    ways lose is not worked out.
    """
    requires = functools.cache(installed) if installed is not None else None
    own = limits.with_declared() if limits is not None else None
    kept: tuple[Fix, ...] = ()
    if own is not None:  # ranges of the project's own files that are not part of the trouble are kept
        kept = _solve(rulebook, facts, assessment, own, requires, index, deep, thorough)
        if kept and not kept[0].leaves and any(change.kind == ChangeKind.PACKAGE for change in kept[0].changes):
            return kept
        kept = tuple(fix for fix in kept if not fix.leaves)
    found = _solve(rulebook, facts, assessment, limits, requires, index, deep, thorough)
    known = {fix.title for fix in kept}
    return (*kept, *(fix for fix in found if fix.title not in known))[:MOST_FIXES]


def _solve(
    rulebook: Rulebook,
    facts: Facts,
    assessment: Assessment,
    limits: Limits | None,
    installed: Callable[[], Mapping[str, Sequence[str]]] | None,
    index: ReleaseIndex | None,
    deep: bool,
    thorough: bool,
) -> tuple[Fix, ...]:
    errors = [finding for finding in assessment.findings if finding.severity == Severity.ERROR]
    targets = errors or [finding for finding in assessment.findings if finding.severity == Severity.WARNING]
    hopeless = all(finding.no_pin for finding in errors)  # says the author: no release cures it
    if not any(finding.alternatives for finding in targets) and hopeless:
        return ()

    requires = installed() if installed is not None else None
    stack = stack_of(facts, assessment.known, index or load_index(), limits, requires)
    severities = ("error",) if errors else ("error", "warning")
    repair = FixSearch(rulebook, facts, assessment, stack, severities)
    outcomes: list[CandidateFix] = []
    for finding in targets:  # worst first; where it leaves errors behind, another may be the better one to begin with
        named = repair.fixes_for(rulebook.rules[finding.rule])
        outcomes += [outcome for outcome in named if errors or not drags(stack, outcome)]
        if any(not outcome.firing for outcome in outcomes):
            break
    if deep and errors and all(outcome.firing for outcome in outcomes):
        found = completed(repair, outcomes)  # no rule names a way that clears everything: look for one
        outcomes += [found] if found is not None else []
    if deep and thorough and not errors and not outcomes:
        for finding in targets[:_SEARCHED]:  # a warning whose cure the index knows: a part that strayed from its pin
            rule = rulebook.rules[finding.rule]
            found = Search(repair.of_one(rule), 1, 60, 200).best() if not finding.no_pin else None
            outcomes += [repair.asked(found.plan, found.chosen) or found] if found is not None else []
    outcomes = [repair.lean(outcome) for outcome in outcomes]
    best = best_of(outcomes, repair.firing, MOST_FIXES)
    if deep and errors and best and (thorough or drags(stack, best[0]) or len(best[0].chosen) >= _SUSPICIOUS):
        smaller, repair.smallest = better(repair, best)
        if smaller is not None:  # recommended only if it is worse in nothing that matters, else one way of several
            best = [smaller, *best] if smaller.dominates(best[0]) else [*best[: MOST_FIXES - 1], smaller]
        best = best[:MOST_FIXES]
    losses = None
    if deep and thorough:
        losses = FeatureRegressions(repair)
    fixes: dict[tuple[object, ...], Fix] = {}  # two ways may come to the same
    for outcome in best:
        fix = as_fix(repair, outcome, outcome is best[0], losses)
        fixes.setdefault(tuple((change.kind, change.name, change.after) for change in fix.changes), fix)
    return tuple(fix for changes, fix in fixes.items() if changes)


def no_fix(
    rulebook: Rulebook,
    facts: Facts,
    assessment: Assessment,
    fixes: Sequence[Fix],
    *,
    limits: Limits | None = None,
    installed: Callable[[], Mapping[str, Sequence[str]]] | None = None,
    index: ReleaseIndex | None = None,
) -> tuple[Infeasible, ...]:
    """For every error that no fix clears: why no release cures it, in sentences, and what would help instead."""
    cleared = {rule for fix in fixes for rule in fix.resolves}
    if not assessment.errors - cleared:
        return ()

    requires = installed() if installed is not None else None
    stack = stack_of(facts, assessment.known, index or load_index(), limits, requires)
    return proofs(FixSearch(rulebook, facts, assessment, stack, ("error",)), cleared)
