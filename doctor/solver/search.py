"""Search all releases, variables and settings for a fix that no rule names; metadata and the rulebook judge.

Depth-first with iterative deepening on the number of changed packages. Every look-up of an evaluation is traced, and
only what feeds a firing rule or a broken requirement is changed: packages, variables that are set, and the settings
that the rule puts before any release. Releases that nothing distinguishes are tried once (`ReleaseClasses`).
No pruning loses a solution (docs/adr/0006-fix-by-asking-again.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from doctor.model import ABSENT, Remedy
from doctor.rulebook.evaluate import rule_holds
from doctor.rulebook.rule import Rule

from .budget import Allowance, Effort
from .causes import Causes, traced
from .cost import cost
from .infeasibility import Cases
from .plan import FixPlan, Pick
from .release_classes import ReleaseClasses
from .repair import UNNAMED, CandidateFix, FixSearch, by_hand
from .resolve import choices, repairs_of, satisfied, unresolved_clashes


class Search:
    """A search among all releases.

    `keeps` is an additional condition: a candidate for which it is false does not count as a fix.
    """

    def __init__(
        self,
        repair: FixSearch,
        effort: Effort | None = None,
        name: str = "all releases",
        keeps: Callable[[CandidateFix], bool] = lambda outcome: True,
    ) -> None:
        self.repair, self.stack, self.rulebook = repair, repair.stack, repair.rulebook
        effort, trace = effort or repair.budget.full, repair.budget.trace
        self.most = effort.packages
        self._evaluations = Allowance(name, "evaluations", effort.evaluations, trace)
        self._nodes = Allowance(name, "nodes", effort.nodes, trace)
        self._keeps = keeps
        self.kinds = ReleaseClasses(repair.rulebook, repair.stack)
        self._seen: set[Any] = set()
        self._cheapest: CandidateFix | None = None
        self._verdicts: dict[Any, tuple[CandidateFix | None, list[Rule], Causes]] = {}

    @property
    def exhausted(self) -> bool:
        """Whether it ended before everything was tried, so that an empty result proves nothing."""
        return self._evaluations.exhausted or self._nodes.exhausted

    def best(self, begun: CandidateFix | None = None) -> CandidateFix | None:
        """Return the cheapest change that fixes every error, fewest packages first; None within these bounds.

        `begun` is a fix that leaves errors: its changes are kept.
        """
        chosen = {} if begun is None else dict(begun.chosen)
        plan = FixPlan() if begun is None else begun.plan
        for size in range(len(chosen), len(chosen) + self.most + 1):
            self._seen.clear()
            for outcome in self._extend(chosen, plan, size, None):
                if self._cheapest is None or outcome.cost < self._cheapest.cost:
                    self._cheapest = outcome
            if self._cheapest is not None:
                return self._cheapest
            if self.exhausted:
                return None
        return None

    def _extend(self, chosen: dict[str, str], plan: FixPlan, size: int, target: str | None) -> Iterator[CandidateFix]:
        """Yield the fixes of this size that extend `chosen`; `target` is the error to fix first."""
        key = (
            frozenset(chosen.items()),
            frozenset(plan.env.items()),
            frozenset((k, str(v)) for k, v in plan.config.items()),
        )
        if key in self._seen or self.exhausted:
            return
        self._seen.add(key)
        self._nodes.spend()
        versions = self.stack.completed(chosen)
        if not self.stack.keeps(versions) or self._too_dear(chosen, plan, size):
            return
        clash = next(iter(unresolved_clashes(self.stack, chosen)), None)
        if clash is not None:
            for package, spec in repairs_of(self.stack, clash, versions, chosen) if len(chosen) < size else ():
                yield from self._with(chosen, plan, package, spec, size, target)
            return
        if key not in self._verdicts:
            self._verdicts[key] = self._judged(chosen, plan, target)
        outcome, rules, causes = self._verdicts[key]
        if outcome is not None:
            if len(chosen) == size:
                yield outcome
            return
        step = self._next(rules, causes, plan, chosen, size)
        if step is None:
            return
        rule, packages, picks = step
        after = rule.id if rule is not None else None
        yield from self._set(chosen, plan, picks, size, after)
        for package in packages:
            yield from self._with(chosen, plan, package, "", size, after)

    def _too_dear(self, chosen: dict[str, str], plan: FixPlan, size: int) -> bool:
        """Whether no extension can cost less than what was found: no part of the cost falls when more is changed."""
        if self._cheapest is None:
            return False
        return (size, *cost(self.stack, chosen)[1:], by_hand(plan)) >= self._cheapest.cost

    def _next(
        self, rules: Sequence[Rule], causes: Causes, plan: FixPlan, chosen: dict[str, str], size: int
    ) -> tuple[Rule | None, list[str], list[Pick]] | None:
        """Return (the error with the fewest options, packages that may fix it, settings); None if one has none."""
        found: list[tuple[Rule | None, list[str], list[Pick]]] = []
        stuck = False
        for rule in rules:
            reads = causes.of(rule)
            packages = causes.movers(reads) - set(chosen) if len(chosen) < size else set()
            picks = list(self._settings(rule, causes.switches(reads), plan))
            stuck = stuck or not (packages or picks)
            if not _no_release(rule):
                found.append((rule, sorted(packages), picks))
            elif picks:
                found.append((rule, [], picks))
        if not rules:  # no error, but a library has lost its last backend
            reads = causes.of_libraries(self.repair.usable)
            packages = causes.movers(reads) - set(chosen) if len(chosen) < size else set()
            found.append((None, sorted(packages), []))
            stuck = not packages
        set_first = [step for step in found if any(pick.alternative.config for pick in step[2])]
        if (stuck and not set_first) or not found:  # a setting changes the job, and with it what the others depend on
            return None
        return min(set_first or found, key=lambda step: len(step[2]) + sum(self._width(name) for name in step[1]))

    def _width(self, package: str) -> int:
        return len(self.kinds.releases(package, ""))

    def _with(
        self, chosen: dict[str, str], plan: FixPlan, package: str, spec: str, size: int, target: str | None
    ) -> Iterator[CandidateFix]:
        for version in self.kinds.releases(package, spec):
            if self.stack.fits(package, version, chosen) and not self.stack.outdated(package, version, chosen):
                yield from self._extend({**chosen, package: version}, plan, size, target)

    def _set(
        self, chosen: dict[str, str], plan: FixPlan, picks: Sequence[Pick], size: int, target: str | None
    ) -> Iterator[CandidateFix]:
        """Yield the fixes with one more variable or setting, or a removal that the rule names."""
        for pick in picks:
            joined = plan.joined(pick)
            if joined is None:
                continue
            moved = {name: spec.removeprefix("==") for name, spec in pick.alternative.require.items()}
            if len(chosen) + len(moved) > size or any(name in chosen or not self.stack.free(name) for name in moved):
                continue
            yield from self._extend({**chosen, **moved}, joined, size, target)

    def _settings(self, rule: Rule, switches: set[str], plan: FixPlan) -> Iterator[Pick]:
        """Yield what the rule puts before any release, its removals and builds, and the set variables that it reads."""
        if len(plan.env) + len(plan.config) >= self.repair.budget.settings:
            return
        named = False
        for order, way in enumerate(self.repair.remedies(rule)):
            exact = [spec for spec in way.require.values() if spec == ABSENT or re.fullmatch(r"==[^,]*\+[^,]*", spec)]
            named = named or bool(way.require)
            pick = Pick(rule.id, order, way)
            joined = plan.joined(pick)
            if way.call or way.then or pick.trusted or not way.safe or len(exact) < len(way.require):
                continue
            if way.require and all(satisfied(self.stack, name, spec) for name, spec in way.require.items()):
                continue
            same = joined is None or (joined.env == plan.env and joined.config == plan.config)
            if (way.require or not same) and not (named and way.config):
                yield pick
        for name in sorted(switches - set(plan.env)):
            yield Pick(rule.id, UNNAMED, Remedy(unset_env=(name,)))

    def _judged(
        self, chosen: Mapping[str, str], plan: FixPlan, target: str | None
    ) -> tuple[CandidateFix | None, list[Rule], Causes]:
        """Return (the outcome if no error is left; else the errors that fire, and what they depend on)."""
        repair = self.repair
        self._evaluations.spend()
        facts = repair.facts_after(plan, chosen)
        causes = Causes(self.rulebook, self.stack, facts)
        if target is not None and target not in plan.trusted:  # the cheap question first
            rule = self.rulebook.rules[target]
            if rule_holds(self.rulebook, rule, traced(self.rulebook, facts)) is not False:
                return None, [rule], causes
        outcome = repair.evaluate(plan, chosen)
        if outcome is not None and not outcome.firing and self._keeps(outcome):
            return outcome, [], causes
        return None, [self.rulebook.rules[name] for name in sorted(outcome.firing)] if outcome else [], causes


def _no_release(rule: Rule) -> bool:
    """Whether the rule's author says that no release fixes it, so that none is tried for it."""
    return rule.no_pin is not None and not any(way.require for way in rule.alternatives)


def better(repair: FixSearch, offered: Sequence[CandidateFix]) -> tuple[CandidateFix | None, bool]:
    """Return (a fix with fewer packages than all that are offered, if any; whether the search was complete)."""
    size = min((len(outcome.chosen) for outcome in offered if not outcome.firing), default=0)
    if offered[0].firing or size < 2:
        return None, True
    effort = repair.budget.smaller
    search = Search(repair, effort._replace(packages=min(size - 1, effort.packages)), "smaller fix")
    found = search.best()
    return found, found is not None or not (search.exhausted or size - 1 > effort.packages)


def keeping_backend(repair: FixSearch, outcome: CandidateFix) -> CandidateFix | None:
    """Return a fix that keeps a fused backend where this one leaves only the unfused implementation.

    What makes a backend unavailable names a release that would serve it, such as "needs cuDNN >= 9.11".
    """
    unfused = {
        f"{library.prefix}.selected": {backend.id for backend in library.backends if backend.unfused}
        for library in repair.rulebook.libraries.values()
        if library.prefix and any(backend.unfused for backend in library.backends)
    }

    def falls_back(item: CandidateFix) -> bool:
        return any(item.known.value(key) in ids for key, ids in unfused.items())

    already = any(repair.base.known.value(key) in ids for key, ids in unfused.items())
    if outcome.firing or already or not falls_back(outcome):
        return None
    return Search(repair, repair.budget.backend, "fused backend", lambda item: not falls_back(item)).best()


def completed(repair: FixSearch, outcomes: Sequence[CandidateFix]) -> CandidateFix | None:
    """Return a complete fix where remedies of rules leave errors: by a new search, then from the best of them."""
    found = Search(repair).best()
    if found is None and outcomes:
        begun = min(outcomes, key=repair.rank)
        found = Search(repair, repair.budget.continued, "continued from a partial fix").best(begun)
    return found or _from_the_end(repair)


def _from_the_end(repair: FixSearch) -> CandidateFix | None:
    """Return a fix that starts from releases without the first error, completed for all other errors."""

    budget = repair.budget
    cases = Cases(repair, budget.opening_cases)
    left = Allowance("openings", "nodes", budget.from_opening.nodes, budget.trace)
    begun: dict[frozenset[str], CandidateFix] = {}
    rule = next((rule for rule in repair.firing_rules() if not _no_release(rule)), None)
    if rule is None:
        return None
    for wanted in islice(cases.openings(rule), budget.openings):
        if any(repair.stack.outdated(name, version, wanted) for name, version in wanted.items()):
            continue
        ranges = {name: version if version == ABSENT else f"=={version}" for name, version in wanted.items()}
        for chosen in islice(choices(repair.stack, ranges, budget, left), 1):
            outcome = repair.evaluate(cases.plan, chosen)
            if outcome is not None and not outcome.firing:
                return outcome
            if outcome is not None:
                begun.setdefault(outcome.firing, outcome)
    best = min(begun.values(), key=lambda item: (len(item.firing), item.cost), default=None)
    return Search(repair, budget.from_opening, "openings").best(best) if best is not None else None
