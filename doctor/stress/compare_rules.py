"""Compare a sweep with the rulebook: what a rule predicted, what none did, and what ran right against a rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from doctor.diagnosis.environment import environment_of
from doctor.diagnosis.request import Request
from doctor.model import Facts, Severity
from doctor.rulebook.backends import predict
from doctor.rulebook.categories import MISSING_MODULE, NO_KERNEL, UNAVAILABLE, WRONG_ABI, WRONG_NUMBERS
from doctor.rulebook.evaluate import know, rule_holds
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Rule
from doctor.rulebook.rulebook import Rulebook, load_rulebook
from doctor.runner.result import KernelResult

from .case_facts import case_facts, covered
from .failures import COMPILER_CHECK
from .sweep import SweepResult
from .verdict import BAD, CaseVerdict, verdict

#: Categories of faults with which a library serves nothing at all.
BROKEN = (WRONG_ABI, MISSING_MODULE, NO_KERNEL)


@dataclass(frozen=True)
class RulePrediction:
    """What the rules predict for one case."""

    refused_by: tuple[str, ...] = ()  # rules by which this backend does not take the case
    serves: bool | None = None  # None: unknown
    wrong_by: tuple[str, ...] = ()  # rules by which it takes the case and surely fails
    doubted_by: tuple[str, ...] = ()  # rules that only warn


@dataclass
class CaseGroup:
    """Cases of one kind: their number, and the first."""

    case: Mapping[str, Any]
    reason: str = ""
    count: int = 1


@dataclass
class Comparison:
    """The results of the cases that rules cover."""

    covered: int = 0  # cases that a rule could cover
    predicted: dict[tuple[str, str], CaseGroup] = field(default_factory=dict)  # (rule, refused or the verdict)
    refuted: dict[tuple[str, str], CaseGroup] = field(default_factory=dict)  # (rule, backend): it ran right
    unpredicted: dict[str, CaseGroup] = field(default_factory=dict)  # backend: refusals that no rule predicted
    undetermined: int = 0


class CasePredictor:
    """Predicts cases by the rulebook; the same workload is evaluated once."""

    def __init__(self, rulebook: Rulebook, environment: Facts) -> None:
        self.rulebook = rulebook
        self.environment = Facts(fact for key, fact in environment.items() if not key.startswith("workload."))
        self._predictions: dict[str, RulePrediction] = {}
        self._broken = self._broken_here()
        served = {name for _, names in covered().values() for name in names}
        self._rules_about = {name: _rules_about(rulebook, name.partition(".")[0]) for name in served}

    def predict(self, case: Mapping[str, Any]) -> RulePrediction | None:
        """Return what the rules predict for this case; None if they do not cover its backend."""
        facts = case_facts(case)
        if facts is None:
            return None
        # An earlier call is no part of a workload, and only notes cover it.
        state = case.get("before", "nothing") != "nothing"
        at = f"{state} {case['backend']} {sorted((key, fact.value) for key, fact in facts.items())!r}"
        if at not in self._predictions:
            self._predictions[at] = self._judge(case, facts, state)
        return self._predictions[at]

    def _judge(self, case: Mapping[str, Any], facts: Facts, state: bool) -> RulePrediction:
        known, _ = know(self.rulebook, self.environment.with_(*facts.values()))
        serves: bool | None = True
        fired: dict[str, Rule] = {}
        for name in covered()[case["backend"]][1]:
            takes_it, reasons = self._served(name, known)
            if takes_it is False:
                return RulePrediction(reasons, False)
            serves = serves and takes_it
            fired |= {rule.id: rule for rule in self._rules_about[name] if self._fires(rule, known, name)}
        certain = tuple(rule.id for rule in fired.values() if rule.fails_at_run or rule.severity == Severity.ERROR)
        rest = (rule for rule in fired.values() if rule.id not in certain)
        return RulePrediction(
            (), serves, certain, tuple(rule.id for rule in rest if rule.severity != Severity.NOTE or state)
        )

    def _broken_here(self) -> dict[str, tuple[str, ...]]:
        """Return the libraries that serve nothing in this environment, with the rules that say so."""
        known, _ = know(self.rulebook, self.environment)
        found: dict[str, tuple[str, ...]] = {}
        for rule in self.rulebook.rules.values():
            if rule.severity == Severity.ERROR and rule.category in BROKEN and rule.when.holds(known):
                found[rule.library] = (*found.get(rule.library, ()), rule.id)
        return found

    def _served(self, name: str, known: FactResolver) -> tuple[bool | None, tuple[str, ...]]:
        """Return whether this backend, or the library's choice, takes the case, and the rules by which it does not."""
        prefix = name.partition(".")[0]
        library = self.rulebook.by_prefix.get(prefix)
        broken = self._broken.get(library.name if library else prefix)
        if broken:
            return False, broken
        if library is None:  # a library without backends
            verdicts = {rule.id: rule.when.holds(known) for rule in self._rules_about[name] if _refuses(rule)}
            reasons = tuple(rule for rule, holds in verdicts.items() if holds)
            return (False if reasons else None if None in verdicts.values() else True), reasons
        prediction = predict(self.rulebook, library, known)
        if prediction.import_error is not None and prediction.import_error.holds:
            return False, (prediction.import_error.rule,)
        candidate = next((item for item in prediction.candidates if item.backend == name), None)
        if candidate is not None:
            serves, against = candidate.available, candidate.reasons
        else:
            serves = (prediction.selected is not None) if prediction.could_tell else None
            against = tuple(item.reasons[0] for item in prediction.candidates if item.reasons)
        return serves, tuple(dict.fromkeys(reason.rule for reason in against if reason.holds))

    def _fires(self, rule: Rule, known: FactResolver, name: str) -> bool:
        if _refuses(rule):
            return False
        if rule.fails_at_run and "." in name:
            return bool(name in rule.fails_at_run and rule.when.holds(known))
        return bool(rule_holds(self.rulebook, rule, known))


def _rules_about(rulebook: Rulebook, prefix: str) -> list[Rule]:
    """Return the rules by which a selected backend of this library fails or computes wrong numbers.

    For a library without backends: the rules that say so of the library, and those by which it takes no case.
    """
    found = []
    for rule in rulebook.rules.values():
        of_run = any(backend.startswith(f"{prefix}.") for backend in rule.fails_at_run)
        keys = {leaf.key for leaf in rule.when.leaves()}
        wrong = rule.category == WRONG_NUMBERS and (f"{prefix}.selected" in keys or rule.library == prefix)
        if of_run or ((wrong or (rule.library == prefix and _refuses(rule))) and rule.severity is not None):
            found.append(rule)
    return found


def _refuses(rule: Rule) -> bool:
    """Return whether the rule makes a library without backends decline the case."""
    return bool(rule.category == UNAVAILABLE and not rule.fails_at_run)


def compare(records: Iterable[tuple[str, Mapping[str, Any], KernelResult]], predictor: CasePredictor) -> Comparison:
    """Compare every result with what the rules predict for its case."""
    comparison = Comparison()
    for _, case, result in records:
        rules, became = predictor.predict(case), verdict(result)
        if rules is None or became in (CaseVerdict.UNAVAILABLE, CaseVerdict.NO_MEMORY):
            continue
        comparison.covered += 1
        if became == CaseVerdict.RIGHT:
            # With dropout no output is the only right one: `right` only says that it drops as it should.
            for rule in rules.refused_by if case.get("dropout") else (*rules.refused_by, *rules.wrong_by):
                _count(comparison.refuted, (rule, str(case["backend"])), case)
        elif became == CaseVerdict.REFUSED and (rules.refused_by or rules.wrong_by):
            _count(comparison.predicted, ((rules.refused_by or rules.wrong_by)[0], "refused"), case)
        elif became == CaseVerdict.REFUSED and rules.serves:
            _count(comparison.unpredicted, str(case["backend"]), case, result.reason)
        elif became == CaseVerdict.REFUSED:
            comparison.undetermined += 1
        elif became in BAD:
            for rule in (rules.wrong_by or rules.doubted_by or rules.refused_by)[:1]:
                _count(comparison.predicted, (rule, became), case)
    return comparison


def compare_with_rules(sweep: SweepResult, python: str, rules: Sequence[str] = ()) -> Comparison | None:
    """Compare a sweep of GPUs with the rules for this environment; failures get the rules that predict them."""
    if str(sweep.hello.get("device")) == "cpu":
        return None  # the rules cover kernels on GPUs
    rulebook = load_rulebook(rules)
    facts = environment_of(Request(python=python), rulebook).facts
    predictor = CasePredictor(rulebook, facts)
    for item in sweep.failures:
        item.rules = rules_of(item.case, predictor) if item.backend != COMPILER_CHECK else ()
    return compare(sweep.records, predictor)


def rules_of(case: Mapping[str, Any], predictor: CasePredictor) -> tuple[str, ...]:
    """Return the rules that predict the fault of this case; none makes it an unpredicted one."""
    rules = predictor.predict(case)
    return () if rules is None else rules.wrong_by or rules.doubted_by or rules.refused_by


def _count(table: dict[Any, CaseGroup], at: Any, case: Mapping[str, Any], reason: str = "") -> None:
    if at in table:
        table[at].count += 1
    else:
        table[at] = CaseGroup(dict(case), reason)
