"""Search for changes after which the same rulebook has nothing left to say: alternatives joined, then asked again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from doctor.model import ABSENT, Facts, Severity
from doctor.rulebook.evaluate import Assessment, know, rule_holds
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Rule, as_tuple
from doctor.rulebook.rulebook import Rulebook

from .cost import cost, series
from .effects import changed_facts
from .environment import PackageSet
from .plan import FixPlan, Pick
from .resolve import choices, impossible, met, pressing

_EVALUATIONS = 240  # of the rulebook, per call of `solve`
_VERSIONS = 24  # sets of releases tried per plan
_NODES = 15_000  # of the search for sets of releases, per call of `solve`
_DEPTH = 4  # findings cured one after the other
#: Place in a rule's list of a way that is not on it: after all that are.
UNNAMED = 99


@dataclass(frozen=True)
class CandidateFix:
    """A plan with concrete releases, and what the rulebook says of it."""

    plan: FixPlan
    chosen: Mapping[str, str]
    facts: Facts
    known: FactResolver
    firing: frozenset[str]  # error rules
    unclear: frozenset[str]  # error rules that cannot be judged
    cost: tuple[int, ...]

    def rank(self, target: frozenset[str]) -> tuple[Any, ...]:
        """Order among outcomes: what stays broken, unsafe ways, the rule authors' order, then the cost."""
        unsafe = any(not pick.alternative.safe for pick in self.plan.picks)
        return len(self.firing), unsafe, self.plan.order or (UNNAMED,), self.cost

    def dominates(self, other: CandidateFix) -> bool:
        """Whether it changes fewer packages, and is no worse in torch's line, CUDA's, bounds and downgrades."""
        return self.cost[0] < other.cost[0] and all(
            mine <= theirs for mine, theirs in zip(self.cost[1:5], other.cost[1:5], strict=True)
        )


class FixSearch:
    """One search for one patient."""

    def __init__(
        self, rulebook: Rulebook, facts: Facts, assessment: Assessment, stack: PackageSet, severities: tuple[str, ...]
    ) -> None:
        self.rulebook, self.facts, self.stack = rulebook, facts, stack
        self.base = assessment
        self.rules = [rule for rule in rulebook.rules.values() if rule.severity in severities]
        self.firing = frozenset(f.rule for f in assessment.findings if f.severity in severities)
        wide = ((rule.id, as_tuple(rule.body.get("yields_to"))) for rule in self.rules)
        self._yields = {name: others for name, others in wide if others}  # they say the same as the others, in general
        self.left, self.nodes = _EVALUATIONS, [_NODES]
        self.smallest = True  # whether it is known that fewer packages than those of the offered ways would not do
        self.passed_over: list[str] = []  # why a way out that a rule names could not be had
        self.unclear = frozenset(
            rule for group in assessment.undetermined for rule in group.rules if rule in rulebook.rules
        )
        self.usable = {p.library for p in assessment.predictions if p.selected is not None}

    def of_one(self, rule: Rule) -> FixSearch:
        """A repair of this finding alone, which may bring no error."""
        errors = [item for item in self.rules if item.severity == Severity.ERROR and item is not rule]
        alone = FixSearch(self.rulebook, self.facts, self.base, self.stack, ("error",))
        alone.rules, alone.firing = [*errors, rule], frozenset({rule.id})
        return alone

    def fixes_for(self, rule: Rule, plan: FixPlan | None = None, depth: int = 0) -> Iterator[CandidateFix]:
        """The best outcome of each alternative of the rule, in the rule's own order."""
        for order, alternative in enumerate(rule.alternatives):
            pick = Pick(rule.id, order, alternative)
            if pick.trusted and rule.id not in self.firing:
                continue  # a flaw that the plan itself brings in is not cured on trust
            if not self._changes_something(pick):
                continue
            joined = (plan or FixPlan()).joined(pick)
            if joined is not None:
                outcome = self.completed(joined, depth)
                if outcome is not None:
                    yield outcome
                elif depth == 0 and (reason := impossible(self.stack, joined.require)) is not None:
                    self.passed_over.append(reason)

    def completed(self, plan: FixPlan, depth: int = 0) -> CandidateFix | None:
        """The plan with releases that fit, and with further findings cured; None when that cannot be had."""
        tried: dict[frozenset[str], CandidateFix] = {}
        for chosen in islice(self._choices(plan), _VERSIONS):
            if self.left <= 0:
                break
            self.left -= 1
            outcome = self.asked(plan, chosen)
            if outcome is None or plan.picks[-1].rule in outcome.firing | (outcome.unclear - self.unclear):
                continue
            if not outcome.firing:
                return outcome
            tried.setdefault(outcome.firing, outcome)
            if outcome.firing <= self.firing and depth < _DEPTH:
                break  # nothing new: the rest has its own alternatives, other releases would be luck
        best: CandidateFix | None = None
        for outcome in sorted(tried.values(), key=lambda item: (len(item.firing - self.firing), item.cost))[:3]:
            candidates = list(self._deeper(plan, outcome, depth))
            if outcome.firing <= self.firing:
                candidates.append(outcome)
            for candidate in candidates:
                if candidate.firing <= self.firing and (
                    best is None or candidate.rank(self.firing) < best.rank(self.firing)
                ):
                    best = candidate
            if best is not None and not best.firing:
                break
        return best

    def _deeper(self, plan: FixPlan, outcome: CandidateFix, depth: int) -> Iterator[CandidateFix]:
        """Cure what still fires, newly firing rules first; a rule already picked is not picked twice."""
        if depth >= _DEPTH:
            return
        picked = {pick.rule for pick in plan.picks}
        open_rules = [rule for rule in self.rules if rule.id in outcome.firing and rule.id not in picked]
        open_rules.sort(key=lambda rule: rule.id in self.firing)
        for rule in open_rules:
            if rule.alternatives:
                yield from self.fixes_for(rule, plan, depth + 1)
                return

    def lean(self, outcome: CandidateFix) -> CandidateFix:
        """The same without packages that need not change after all: what cures one finding may have cured another."""
        for name in sorted(outcome.chosen, key=lambda package: (outcome.chosen[package] != ABSENT, package)):
            fewer = {package: version for package, version in outcome.chosen.items() if package != name}
            if not fewer or pressing(self.stack, fewer):
                continue
            versions = self.stack.completed(fewer)
            plan: FixPlan | None = FixPlan()
            for pick in outcome.plan.picks:  # a way whose releases are no longer met is not taken, with all it brings
                asked = FixPlan().joined(pick)
                if (
                    plan is not None
                    and asked
                    and all(met(self.stack, key, spec, versions) for key, spec in asked.require.items())
                ):
                    plan = plan.joined(pick)
            if plan is None or not plan.picks:
                continue  # nobody's way any more: the rulebook may only be silent because nobody looked there
            without = self.asked(plan, fewer)
            if without is not None and without.firing <= outcome.firing and without.unclear <= outcome.unclear:
                return self.lean(without)
        return outcome

    def _choices(self, plan: FixPlan) -> Iterator[dict[str, str]]:
        return choices(self.stack, plan.require, left=self.nodes)

    def _changes_something(self, pick: Pick) -> bool:
        """Whether the patient is not that way already."""
        alone = FixPlan().joined(pick)
        if alone is None:
            return False
        value = self.base.known.value
        return (
            pick.alternative.call is not None
            or any(not met(self.stack, name, wanted) for name, wanted in alone.require.items())
            or any(value(f"env.{name}") != wanted for name, wanted in alone.env.items())
            or any(value(key) != wanted for key, wanted in alone.config.items())
        )

    def _consequences(self, plan: FixPlan) -> dict[str, Any]:
        """The facts that hold after the plan by themselves; `{key}` stands for the present value of that key."""
        value = self.base.known.value
        return {key: value(text[1:-1]) if str(text).startswith("{") else text for key, text in plan.then.items()}

    def facts_after(self, plan: FixPlan, chosen: Mapping[str, str]) -> Facts:
        """The facts with these releases, variables and settings, and what follows from them."""
        settings = {**plan.config, **self._consequences(plan)}
        return changed_facts(self.rulebook, self.facts, self.base.known, self.stack, chosen, plan.env, settings)

    def asked(self, plan: FixPlan, chosen: Mapping[str, str]) -> CandidateFix | None:
        """What the rulebook says of the changed facts; None when no usable backend would remain."""
        facts = self.facts_after(plan, chosen)
        known, predictions = know(self.rulebook, facts)
        firing, unclear = set(), set()
        for rule in self.rules:
            holds = rule_holds(self.rulebook, rule, known)
            if holds and rule.id not in plan.trusted:
                firing.add(rule.id)
            elif holds is None:
                unclear.add(rule.id)
                if rule.id in self.firing:
                    firing.add(rule.id)  # it is not cured, only hidden
        for library in self.rulebook.libraries.values():
            if library.prefix and known.has_workload and (library.applies is None or library.applies.holds(known)):
                known.look_up(f"{library.prefix}.selected")
        for prediction in predictions.values():
            if prediction.could_tell and prediction.selected is None and prediction.library in self.usable:
                return None
        told = {name for name in firing if not firing.intersection(self._yields.get(name, ()))}
        costs = (*cost(self.stack, chosen), by_hand(plan))
        return CandidateFix(plan, chosen, facts, known, frozenset(told), frozenset(unclear), costs)


def drags(stack: PackageSet, outcome: CandidateFix) -> bool:
    """Whether it takes torch back to an older release line, which no rule asks for: no warning is worth that."""
    if any("torch" in pick.alternative.require for pick in outcome.plan.picks):
        return False
    torch, before = outcome.chosen.get("torch", ABSENT), stack.installed.get("torch", ABSENT)
    return ABSENT not in (torch, before) and series(torch) < series(before)


def by_hand(plan: FixPlan) -> int:
    """How many variables, settings and lines of code a plan changes."""
    return len(plan.config) + len(plan.env) + sum(bool(pick.alternative.call) for pick in plan.picks)


def best_of(outcomes: Sequence[CandidateFix], firing: frozenset[str], most: int) -> list[CandidateFix]:
    """The few outcomes worth showing: each another set of changes, the recommended one first.

    Where only releases would be shown and a setting does as well, the setting takes the place of the dearest release.
    """
    kept: dict[Any, CandidateFix] = {}
    for outcome in sorted(outcomes, key=lambda item: item.rank(firing)):
        calls = tuple(pick.alternative.call for pick in outcome.plan.picks if pick.alternative.call)
        key = (
            tuple(sorted(outcome.chosen.items())),
            tuple(sorted(outcome.plan.env.items())),
            tuple(sorted((name, str(value)) for name, value in outcome.plan.config.items())),
            calls,
        )
        kept.setdefault(key, outcome)
    ordered = list(kept.values())
    shown, rest = ordered[:most], ordered[most:]
    setting = next((item for item in rest if not item.chosen and not item.firing), None)
    if setting is not None and all(item.chosen for item in shown) and len(shown) > 1:
        shown.remove(max(shown[1:], key=lambda item: item.cost))
        shown.append(setting)
    return shown


def is_change(before: Any, after: Any) -> bool:
    """Whether a package, variable or setting really differs."""
    return (before or ABSENT) != (after or ABSENT)
