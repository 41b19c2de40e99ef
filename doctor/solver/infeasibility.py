"""Prove by cases that no release fixes an error: at every choice of releases some rule or requirement excludes it.

The limit that decides at one choice of releases decides at every choice that agrees in the packages it reads. So only
those packages are varied further, and a closed case closes every later one that agrees in them. Requirements between
packages count where both ends are chosen, so the cases cover more than can be installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, TORCH
from doctor.packages.relations import owner_of
from doctor.rulebook.evaluate import rule_holds
from doctor.rulebook.messages import message_of
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Library, Rule

from .budget import Allowance
from .causes import Causes, Limit
from .plan import FixPlan, Pick
from .release_classes import ReleaseClasses
from .repair import FixSearch
from .resolve import unresolved_clashes

_PREDICTED = (".selected", ".selected_by_default", ".available")


class Case(NamedTuple):
    """With these releases (others at will) this rule refuses, in these words; no rule where metadata does."""

    fixed: Mapping[str, str]
    rule: str
    message: str


class Cases:
    """The cases of one environment and workload."""

    def __init__(self, repair: FixSearch, most: int | None = None) -> None:
        self.repair, self.stack, self.rulebook = repair, repair.stack, repair.rulebook
        self.kinds = ReleaseClasses(repair.rulebook, repair.stack)
        self.plan = _required_settings(repair)
        self.budget = repair.budget
        self._all = Allowance("infeasibility", "all_cases", most or self.budget.all_cases, self.budget.trace)
        self._left = self._round()
        self._about: Rule | None = None
        self._latest: list[Limit] = []  # that closed a case, the latest first
        self._open: list[Mapping[str, str]] = []
        self._memo: dict[Any, Causes] = {}
        self._closed: dict[tuple[str, ...], dict[tuple[str, ...], list[tuple[Limit, str]]]] = {}

    @property
    def judged(self) -> int:
        """How many choices were looked at."""
        return len(self._memo)

    def of(self, rule: Rule, library: Library | None = None, backend: str | None = None) -> list[Case | None]:
        """Return what excludes a fix at every choice of releases; None for a choice that stays open."""
        self._begin(rule)
        return list(self._below(rule, library, backend, {}))

    def openings(self, rule: Rule) -> Iterator[Mapping[str, str]]:
        """Changes of releases with which the error is gone, if requirements and the other rules admit them."""
        library = self.causes({}).selection(rule)
        backends = [item.backend for item in self.causes({}).blocked(library)] if library else [None]
        for backend in backends:
            self._begin(rule)
            for _ in self._below(rule, library, backend, {}):
                yield from self._open
                self._open.clear()

    def _begin(self, rule: Rule) -> None:
        """Start a new round; limits that closed cases of another error may be what this one's fix changes."""
        self._left = self._round()
        if self._about is not rule:
            self._about = rule
            self._closed.clear()
            self._latest.clear()

    def _round(self) -> Allowance:
        return Allowance("infeasibility", "cases", self.budget.cases, self.budget.trace)

    def causes(self, fixed: Mapping[str, str]) -> Causes:
        """What decides with these releases, all variables unset that could be."""
        key = frozenset(fixed.items())
        if key not in self._memo:
            facts = self.repair.facts_after(self.plan, self._moved(fixed))
            switches = Causes(self.rulebook, self.stack, facts).switches(facts)
            unset = (fact(f"env.{name}", ABSENT, "unset") for name in switches)
            self._memo[key] = Causes(self.rulebook, self.stack, facts.with_(*unset))
        return self._memo[key]

    def _below(
        self, rule: Rule, library: Library | None, backend: str | None, fixed: dict[str, str]
    ) -> Iterator[Case | None]:
        """The cases below one choice of releases."""
        clash = self._clash(fixed)
        if clash is not None:
            yield Case(fixed, "", clash)
            return
        if self._left.exhausted or self._all.exhausted:
            yield None
            return
        self._left.spend()
        self._all.spend()
        causes = self.causes(fixed)
        limits = self._limits(rule, library, backend, causes)
        if not limits:  # only another error excludes it here, which only releases could fix
            self._open.append(self._moved(fixed))
            limits = [
                Limit(other)
                for other in self.repair.judged(causes.known)
                if other is not rule and not _by_hand(other) and self._stops(other, causes.known)
            ]
        open_ = [(sorted(causes.movers(causes.reads_of(limit)) - set(fixed)), limit) for limit in limits]
        if not open_:
            yield None
            return
        packages, limit = min(open_, key=lambda pair: (len(pair[0]), _far(pair[1])))
        if not packages:
            if limit.rule is not None:
                others = [old for old in self._latest if old.rule is not limit.rule]
                self._latest = [limit, *others[: self.budget.recent_limits - 1]]
            yield self._close(limit, fixed)
            return
        package = min(packages, key=lambda name: len(self.kinds.releases(name, "")))
        for version in [self.stack.installed.get(package, ABSENT), *self.kinds.releases(package, "")]:
            further = {**fixed, package: version}
            closed = self._known(backend, further) or self._again(limit, backend, further)
            if closed is not None:
                yield closed
            else:
                yield from self._below(rule, library, backend, further)

    def _limits(self, rule: Rule, library: Library | None, backend: str | None, causes: Causes) -> list[Limit]:
        if library is not None:
            return list(next(item for item in causes.blocked(library) if item.backend == backend).limits)
        return [Limit(rule)] if rule_holds(self.rulebook, rule, causes.known) is not False else []

    def _close(self, limit: Limit, fixed: Mapping[str, str]) -> Case:
        """The case; what decided it is remembered: the limit, and the releases that it reads."""
        causes = self.causes(fixed)
        message = message_of(limit.rule, causes.known) if limit.rule else "this part is not made for it"
        read = tuple(sorted(causes.movers(causes.reads_of(limit))))
        if limit.rule is not None:
            alike = self._closed.setdefault(read, {}).setdefault(tuple(fixed[name] for name in read), [])
            alike.append((limit, message))
        return Case(fixed, limit.rule.id if limit.rule else "", message)

    def _known(self, backend: str | None, fixed: Mapping[str, str]) -> Case | None:
        """The case, where what closed an earlier one closes this: the same releases as far as it reads them."""
        for read, closed in self._closed.items():
            if fixed.keys() >= set(read):
                for limit, message in closed.get(tuple(fixed[name] for name in read), ()):
                    assert limit.rule is not None
                    if not limit.rule.disables or backend in limit.rule.disables:
                        return Case(fixed, limit.rule.id, message)
        return None

    def _again(self, limit: Limit, backend: str | None, fixed: Mapping[str, str]) -> Case | None:
        """The case, where a limit that closed one lately holds here too, for all other releases.

        Only for limits that need no backend prediction: much cheaper than evaluating the case in full.
        """
        causes = self.causes(fixed)
        for old in (limit, *(old for old in self._latest if old.rule is not limit.rule)):
            rule = old.rule
            if rule is None or rule.fails_at_run or any(leaf.key.endswith(_PREDICTED) for leaf in rule.when.leaves()):
                continue
            if rule.disables and backend not in rule.disables:
                continue
            if rule.when.holds(causes.known) is True and causes.movers(causes.reads_of(old)) <= set(fixed):
                return self._close(old, fixed)
        return None

    def _clash(self, fixed: Mapping[str, str]) -> str | None:
        """The requirement that these releases break and that no further one fixes, in a sentence."""
        for clash in unresolved_clashes(self.stack, self._moved(fixed)):
            ends = {owner_of(name) or name for name in (clash.package, clash.needs)}
            if ends <= set(fixed) and TORCH in fixed:  # for whose CUDA parts are chosen
                return clash.sentence
        return None

    def _moved(self, fixed: Mapping[str, str]) -> dict[str, str]:
        return {name: version for name, version in fixed.items() if version != self.stack.installed.get(name, ABSENT)}

    def _stops(self, rule: Rule, known: FactResolver) -> bool:
        """Whether a fix may not bring this error: one that can no longer be judged only hides where it was there."""
        holds = rule_holds(self.rulebook, rule, known)
        return holds is True or (holds is None and rule.id in self.repair.firing)


def _required_settings(repair: FixSearch) -> FixPlan:
    """Return the settings required by errors that nothing else fixes: without them there is nothing to prove."""
    plan = FixPlan()
    for rule in repair.firing_rules():
        for order, way in enumerate(rule.alternatives):
            joined = plan.joined(Pick(rule.id, order, way)) if way.config and not (way.require or way.call) else None
            if order == 0 and joined is not None and len(rule.alternatives) == 1:
                plan = joined
    return plan


def _by_hand(rule: Rule) -> bool:
    """Whether the rule names a way that is no release: what then blocks it can be cleared by hand."""
    return any(way.config or way.set_env or way.unset_env or way.call for way in rule.alternatives)


def _far(limit: Limit) -> int:
    """Order limits: those of the GPU first, then those of the job, which a reader can verify."""
    keys = [leaf.key for leaf in limit.rule.when.leaves()] if limit.rule else []
    return (
        0 if any(key.startswith("gpu.") for key in keys) else 1 if any(k.startswith("workload.") for k in keys) else 2
    )
