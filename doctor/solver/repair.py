"""Combine remedies of rules into fixes, and evaluate the rulebook again on the changed facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from doctor.model import ABSENT, TORCH, Facts, Finding, FixSafety, Prediction, Remedy, Severity
from doctor.packages.specifiers import normalized
from doctor.rulebook.conditions import Condition, parse_conditions
from doctor.rulebook.dependence import Verdicts
from doctor.rulebook.evaluate import Assessment, all_alternatives, assess, know, reported_rules, rule_holds
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Rule
from doctor.rulebook.rulebook import Rulebook

from .budget import Allowance, CandidateTried, RemedyRejected, SearchBudget
from .cost import cost, series
from .effects import changed_facts
from .effort import kind_of
from .environment import PackageSet
from .plan import FixPlan, Pick
from .remedies import builds_of, in_terms_of_job
from .resolve import choices, impossible, satisfied, unresolved_clashes

#: Place in a rule's list of a remedy that is not on it: after all that are.
UNNAMED = 99


class CandidateFix(NamedTuple):
    """A plan with concrete releases, and what the rulebook says of it."""

    plan: FixPlan
    chosen: Mapping[str, str]
    facts: Facts
    known: FactResolver
    predictions: Mapping[str, Prediction]  # that `known` made so far
    firing: frozenset[str]  # error rules
    unclear: frozenset[str]  # error rules that cannot be judged
    cost: tuple[int, ...]
    conditions: tuple[str, ...] = ()  # of its remedies, that the facts leave unknown
    verdicts: Mapping[str, bool | None] = MappingProxyType({})  # on rules, that the fix cannot change

    @property
    def safety(self) -> FixSafety:
        """The lowest safety of the remedies it is made of; CONDITIONAL where a condition of one is unknown."""
        if self.conditions and all(pick.alternative.safe for pick in self.plan.picks):
            return FixSafety.CONDITIONAL
        return max((pick.alternative.safety for pick in self.plan.picks), key=lambda item: item.rank,
                   default=FixSafety.SAFE)  # fmt: skip

    @property
    def changes(self) -> tuple[Any, ...]:
        """Return what it changes; equal for two outcomes that do the same."""
        return (
            tuple(sorted(self.chosen.items())),
            tuple(sorted(self.plan.env.items())),
            tuple(sorted((name, str(value)) for name, value in self.plan.config.items())),
            tuple(pick.alternative.call for pick in self.plan.picks if pick.alternative.call),
        )

    def contains(self, other: CandidateFix) -> bool:
        """Whether it makes every change of another fix that does as much alone, and more changes."""
        mine, theirs = (tuple(map(set, item.changes)) for item in (self, other))
        return (
            mine != theirs
            and all(less <= more for less, more in zip(theirs, mine, strict=True))
            and other.firing <= self.firing
            and other.safety.rank <= self.safety.rank
        )

    def dominates(self, other: CandidateFix) -> bool:
        """Whether it changes fewer packages, and is no worse in torch's line, CUDA's, bounds and downgrades."""
        return self.cost[0] < other.cost[0] and all(
            mine <= theirs for mine, theirs in zip(self.cost[1:5], other.cost[1:5], strict=True)
        )


class FixSearch:
    """A search for fixes of one environment and workload."""

    def __init__(
        self,
        rulebook: Rulebook,
        facts: Facts,
        assessment: Assessment,
        stack: PackageSet,
        severities: tuple[str, ...],
        budget: SearchBudget | None = None,
    ) -> None:
        self.rulebook, self.facts, self.stack = rulebook, facts, stack
        self.base = assessment
        self._severities = severities
        self._extra: Rule | None = None  # a rule that is judged at any severity
        self.firing = frozenset(f.rule for f in assessment.findings if f.severity in severities)
        self.budget = budget or SearchBudget()
        trace = self.budget.trace
        self._evaluations = Allowance("remedies of rules", "evaluations", self.budget.evaluations, trace)
        self._nodes = Allowance("remedies of rules", "nodes", self.budget.nodes, trace)
        self._assessments: dict[Any, Assessment] = {}
        self.rejected: list[str] = []  # why a remedy that a rule names cannot be applied
        self.unclear = frozenset(
            rule for group in assessment.undetermined for rule in group.rules if rule in rulebook.rules
        )
        self.usable = {p.library for p in assessment.predictions if p.selected is not None}
        self._verdicts = cache(lambda: Verdicts(rulebook, assessment.known))

    def rank(self, outcome: CandidateFix) -> tuple[Any, ...]:
        """Return the order among outcomes: errors left, safety, effort, the rule authors' order, then the cost."""
        kind = kind_of(self.stack, self.base.known, outcome.plan, outcome.chosen)
        order = outcome.plan.order or (UNNAMED,)
        return len(outcome.firing), outcome.safety.rank, kind.rank, order, outcome.cost

    def of_one(self, rule: Rule) -> FixSearch:
        """Return a search for this finding alone, whose fix may bring no error."""
        alone = FixSearch(self.rulebook, self.facts, self.base, self.stack, ("error",), self.budget)
        alone._extra, alone.firing, alone._verdicts = rule, frozenset({rule.id}), self._verdicts
        return alone

    def judged(self, known: FactResolver) -> Iterator[Rule]:
        """Yield the rules that may fire on facts and that a fix has to clear or must not bring."""
        for rule in self.rulebook.concerned(known.value):
            if (rule.severity in self._severities or rule.id in self.firing) and rule is not self._extra:
                yield rule
        if self._extra is not None:
            yield self._extra

    def firing_rules(self, names: Iterable[str] | None = None) -> list[Rule]:
        """Return the rules with these ids, by default those that fire before any change, in the order of ids."""
        return [self.rulebook.rules[name] for name in sorted(self.firing if names is None else names)]

    def fixes_for(self, rule: Rule, plan: FixPlan | None = None, depth: int = 0) -> Iterator[CandidateFix]:
        """Yield the best outcome of each remedy of the rule, in the rule's own order."""
        for order, alternative in enumerate(self.remedies(rule)):
            pick = Pick(rule.id, order, alternative)
            if pick.trusted and rule.id not in self.firing:
                continue  # an error that the plan itself introduces is not fixed on trust
            if not self._changes_something(pick):
                continue
            joined = (plan or FixPlan()).joined(pick)
            if joined is not None:
                outcome = self.completed(joined, depth)
                if outcome is not None:
                    yield outcome
                elif depth == 0 and (reason := impossible(self.stack, joined.require)) is not None:
                    self.rejected.append(reason)
                    self.budget.trace(RemedyRejected(rule.id, reason))

    def remedies(self, rule: Rule) -> Iterator[Remedy]:
        """Yield the rule's remedies; "another build" becomes one remedy for each build on record."""
        for remedy in all_alternatives(self.rulebook, rule, self.base.known, self.base.predictions):
            yield from builds_of(self.stack, remedy) if remedy.build else (in_terms_of_job(self.base.known, remedy),)

    def new_warnings(self, outcome: CandidateFix) -> frozenset[str]:
        """Return the warnings that fire on the changed facts and did not fire before."""
        warnings = frozenset(finding.rule for finding in self._warnings_after(outcome))
        return warnings - {finding.rule for finding in self.base.findings}

    def assessment_after(self, outcome: CandidateFix) -> Assessment:
        """Return what the whole rulebook says of the changed facts; equal changes are evaluated once."""
        if outcome.changes not in self._assessments:
            self._assessments[outcome.changes] = assess(
                self.rulebook, outcome.known, outcome.predictions, name_missing=False, verdicts=outcome.verdicts
            )
        return self._assessments[outcome.changes]

    def completed(self, plan: FixPlan, depth: int = 0) -> CandidateFix | None:
        """Return the plan with releases that fit and with further findings fixed; None if that is impossible."""
        tried: dict[frozenset[str], CandidateFix] = {}
        for chosen in islice(self._choices(plan), self.budget.versions):
            if self._evaluations.exhausted:
                break
            self._evaluations.spend()
            outcome = self.evaluate(plan, chosen)
            if outcome is None or plan.picks[-1].rule in outcome.firing | (outcome.unclear - self.unclear):
                continue
            if not outcome.firing:
                return outcome
            tried.setdefault(outcome.firing, outcome)
            if outcome.firing <= self.firing and depth < self.budget.depth:
                break  # nothing new: the rest has its own alternatives, other releases would be luck
        best: CandidateFix | None = None
        for outcome in sorted(tried.values(), key=lambda item: (len(item.firing - self.firing), item.cost))[
            : self.budget.deepened
        ]:
            candidates = list(self._deeper(plan, outcome, depth))
            if outcome.firing <= self.firing:
                candidates.append(outcome)
            for candidate in candidates:
                if candidate.firing <= self.firing and (best is None or self.rank(candidate) < self.rank(best)):
                    best = candidate
            if best is not None and not best.firing:
                break
        return best

    def _deeper(self, plan: FixPlan, outcome: CandidateFix, depth: int) -> Iterator[CandidateFix]:
        """Yield outcomes that also fix what still fires, newly firing rules first; each rule is picked once."""
        if depth >= self.budget.depth:
            return
        picked = {pick.rule for pick in plan.picks}
        open_rules = self.firing_rules(outcome.firing - picked)
        open_rules.sort(key=lambda rule: rule.id in self.firing)
        for rule in open_rules:
            if rule.alternatives:
                yield from self.fixes_for(rule, plan, depth + 1)
                return

    def minimize(self, outcome: CandidateFix) -> CandidateFix:
        """Return the outcome without packages that need not change: one change may fix several findings."""
        for name in sorted(outcome.chosen, key=lambda package: (outcome.chosen[package] != ABSENT, package)):
            fewer = {package: version for package, version in outcome.chosen.items() if package != name}
            if unresolved_clashes(self.stack, fewer):
                continue
            versions = self.stack.completed(fewer)
            plan: FixPlan | None = FixPlan()
            for pick in outcome.plan.picks:  # a way whose releases are no longer met is not taken, with all it brings
                alone = FixPlan().joined(pick)
                if (
                    plan is not None
                    and alone
                    and all(satisfied(self.stack, key, spec, versions) for key, spec in alone.require.items())
                ):
                    plan = plan.joined(pick)
            if plan is None or not plan.picks:
                continue  # no remedy is left: the rulebook may be silent only because a fact is unknown
            without = self.evaluate(plan, fewer)
            unclear = outcome.unclear | self.unclear
            if without is not None and without.firing <= outcome.firing and without.unclear <= unclear:
                return self.minimize(without)
        return outcome

    def clearing_warnings(self, outcome: CandidateFix) -> CandidateFix:
        """Return the outcome with other releases of its packages where these clear more warnings at no other price."""
        for finding in self._warnings_after(outcome)[: self.budget.warnings_searched]:
            for order, remedy in enumerate(self.remedies(self.rulebook.rules[finding.rule])):
                if not remedy.require or not {normalized(name) for name in remedy.require} <= outcome.chosen.keys():
                    continue
                joined = outcome.plan.joined(Pick(finding.rule, order, remedy))
                found = self.completed(joined) if joined is not None else None
                if found is not None and self._clears_more(found, outcome):
                    outcome = found
                    break
        return outcome

    def _clears_more(self, found: CandidateFix, outcome: CandidateFix) -> bool:
        return (
            found.firing <= outcome.firing
            and found.unclear <= outcome.unclear
            and found.chosen.keys() <= outcome.chosen.keys()
            and all(mine <= theirs for mine, theirs in zip(found.cost[:5], outcome.cost[:5], strict=True))
            and len(self._warnings_after(found)) < len(self._warnings_after(outcome))
        )

    def _warnings_after(self, outcome: CandidateFix) -> list[Finding]:
        after = self.assessment_after(outcome).findings
        return [finding for finding in after if finding.severity == Severity.WARNING]

    def _choices(self, plan: FixPlan) -> Iterator[dict[str, str]]:
        return choices(self.stack, plan.require, self.budget, left=self._nodes)

    def _changes_something(self, pick: Pick) -> bool:
        """Whether it differs from the present environment and job."""
        alone = FixPlan().joined(pick)
        if alone is None:
            return False
        value = self.base.known.value
        return (
            pick.alternative.call is not None
            or any(not satisfied(self.stack, name, wanted) for name, wanted in alone.require.items())
            or any(value(f"env.{name}") != wanted for name, wanted in alone.env.items())
            or any(value(key) != wanted for key, wanted in alone.config.items())
        )

    def _consequences(self, plan: FixPlan) -> dict[str, Any]:
        """Return the facts that follow from the plan; `{key}` is the present value of that key."""
        value = self.base.known.value
        return {key: value(text[1:-1]) if str(text).startswith("{") else text for key, text in plan.then.items()}

    def facts_after(self, plan: FixPlan, chosen: Mapping[str, str]) -> Facts:
        """Return the facts with these releases, variables and settings, and what follows from them."""
        settings = {**plan.config, **self._consequences(plan)}
        return changed_facts(self.rulebook, self.facts, self.base.known, self.stack, chosen, plan.env, settings)

    def evaluate(self, plan: FixPlan, chosen: Mapping[str, str]) -> CandidateFix | None:
        """Evaluate the rulebook on the changed facts; None if no usable backend or an excluded condition remains."""
        facts = self.facts_after(plan, chosen)
        known, predictions = know(self.rulebook, facts)
        conditions: list[str] = []
        for pick in plan.picks:
            condition = parse_conditions(pick.alternative.when) if pick.alternative.when else None
            holds = True if condition is None else condition.holds(known)
            if holds is False:
                return None
            if condition is not None and holds is None:
                conditions.append(condition_text(condition))
        firing, unclear = set(), set()
        verdicts = self._verdicts().after(facts)
        for rule in self.judged(known):
            holds = verdicts[rule.id] if rule.id in verdicts else rule_holds(self.rulebook, rule, known)
            if holds and not plan.trusted.intersection((rule.id, *rule.yields_to)):
                firing.add(rule.id)  # what yields to a trusted rule follows from the same fault
            elif holds is None:
                unclear.add(rule.id)
                if rule.id in self.firing:
                    firing.add(rule.id)  # it is not fixed, only hidden
        for library in self.rulebook.libraries.values():
            if library.prefix and known.has_workload and (library.applies is None or library.applies.holds(known)):
                known.look_up(f"{library.prefix}.selected")
        for prediction in predictions.values():
            if prediction.could_tell and prediction.selected is None and prediction.library in self.usable:
                self.budget.trace(CandidateTried(chosen, plan.env, None))
                return None
        left = reported_rules(self.rulebook, firing)
        self.budget.trace(CandidateTried(chosen, plan.env, left))
        costs = (*cost(self.stack, chosen), by_hand(plan))
        return CandidateFix(
            plan, chosen, facts, known, predictions, left, frozenset(unclear), costs, tuple(conditions), verdicts
        )


def unfused_selected(rulebook: Rulebook, known: FactResolver) -> frozenset[str]:
    """Return the libraries of the job that write the scores out."""
    return frozenset(
        library.name
        for library in rulebook.libraries.values()
        if library.prefix and any(backend.unfused for backend in library.backends)
        and known.value(f"{library.prefix}.selected") in {item.id for item in library.backends if item.unfused}
    )  # fmt: skip


def downgrades_torch_line(stack: PackageSet, outcome: CandidateFix) -> bool:
    """Whether it takes torch back to an older release line, which no remedy requires: too much for a warning."""
    if any(TORCH in pick.alternative.require for pick in outcome.plan.picks):
        return False
    torch, before = outcome.chosen.get(TORCH, ABSENT), stack.installed.get(TORCH, ABSENT)
    return ABSENT not in (torch, before) and series(torch) < series(before)


def by_hand(plan: FixPlan) -> int:
    """Return how many variables, settings and lines of code a plan changes."""
    return len(plan.config) + len(plan.env) + sum(bool(pick.alternative.call) for pick in plan.picks)


def condition_text(condition: Condition) -> str:
    """Return a condition as text for the user."""
    return " and ".join(f"`{leaf.key}` {leaf.text}" for leaf in condition.leaves())


def is_change(before: Any, after: Any) -> bool:
    """Whether a package, variable or setting really differs."""
    return (ABSENT if before in (None, "") else before) != (ABSENT if after in (None, "") else after)
