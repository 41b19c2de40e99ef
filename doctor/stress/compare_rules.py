"""The sweep beside the rulebook: what a rule foretold, what none did, and what ran right although a rule said no."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from doctor.diagnosis.examine import environment_of
from doctor.diagnosis.request import Request
from doctor.model import Facts, Severity
from doctor.rulebook.backends import predict
from doctor.rulebook.evaluate import know, rule_holds
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Rule
from doctor.rulebook.rulebook import Rulebook, load_rulebook
from doctor.runner.result import KernelResult

from .case_facts import SPOKEN_OF, case_facts
from .failures import BAD, verdict
from .sweep import SweepResult

#: What ails a library that then serves nothing, whatever it is asked.
BROKEN = ("abi-undefined-symbol", "missing-module", "no-kernel-image", "no-kernel-image/arch")


@dataclass(frozen=True)
class Said:
    """What the rules say of one case."""

    refused_by: tuple[str, ...] = ()  # rules for which this backend does not take the case
    serves: bool | None = None  # None: the rules cannot tell
    wrong_by: tuple[str, ...] = ()  # rules for which it takes it and fails, with certainty
    doubted_by: tuple[str, ...] = ()  # rules that only warn of it


@dataclass
class Seen:
    """Cases of one kind: how many, and the first."""

    case: Mapping[str, Any]
    reason: str = ""
    count: int = 1


@dataclass
class Comparison:
    """What became of the cases that rules speak of."""

    asked: int = 0  # answers that a rule could speak of
    foretold: dict[tuple[str, str], Seen] = field(default_factory=dict)  # (rule, refused or the verdict)
    refuted: dict[tuple[str, str], Seen] = field(default_factory=dict)  # (rule, backend): it ran, and right
    unruled: dict[str, Seen] = field(default_factory=dict)  # backend: refusals that no rule foretold
    undetermined: int = 0


class Reader:
    """Asks the rulebook about cases; the same workload is judged once."""

    def __init__(self, rulebook: Rulebook, environment: Facts) -> None:
        self.rulebook = rulebook
        self.environment = Facts(fact for key, fact in environment.items() if not key.startswith("workload."))
        self._known: dict[str, Said] = {}
        self._broken = self._broken_here()
        served = {name for _, names in SPOKEN_OF.values() for name in names}
        self._speaking = {name: _speaking(rulebook, name.partition(".")[0]) for name in served}

    def said(self, case: Mapping[str, Any]) -> Said | None:
        """What the rules say of this case; None where they speak of no such backend."""
        facts = case_facts(case)
        if facts is None:
            return None
        # What went before is no part of a workload, and only notes speak of it.
        state = case.get("before", "nothing") != "nothing"
        at = f"{state} {case['backend']} {sorted((key, fact.value) for key, fact in facts.items())!r}"
        if at not in self._known:
            self._known[at] = self._judge(case, facts, state)
        return self._known[at]

    def _judge(self, case: Mapping[str, Any], facts: Facts, state: bool) -> Said:
        known, _ = know(self.rulebook, self.environment.with_(*facts.values()))
        serves: bool | None = True
        fired: dict[str, Rule] = {}
        for name in SPOKEN_OF[case["backend"]][1]:
            takes_it, reasons = self._served(name, known)
            if takes_it is False:
                return Said(reasons, False)
            serves = serves and takes_it
            fired |= {rule.id: rule for rule in self._speaking[name] if self._fires(rule, known, name)}
        certain = tuple(rule.id for rule in fired.values() if rule.fails_at_run or rule.severity == Severity.ERROR)
        rest = (rule for rule in fired.values() if rule.id not in certain)
        return Said((), serves, certain, tuple(rule.id for rule in rest if rule.severity != Severity.NOTE or state))

    def _broken_here(self) -> dict[str, tuple[str, ...]]:
        """Library → rules for which it serves nothing in this environment."""
        known, _ = know(self.rulebook, self.environment)
        found: dict[str, tuple[str, ...]] = {}
        for rule in self.rulebook.rules.values():
            if rule.severity == Severity.ERROR and rule.body.get("category") in BROKEN and rule.when.holds(known):
                found[rule.library] = (*found.get(rule.library, ()), rule.id)
        return found

    def _served(self, name: str, known: FactResolver) -> tuple[bool | None, tuple[str, ...]]:
        """(whether this backend, or the library's choice, takes the case; the rules for which it does not)."""
        prefix = name.partition(".")[0]
        library = self.rulebook.by_prefix.get(prefix)
        broken = self._broken.get(library.name if library else prefix)
        if broken:
            return False, broken
        if library is None:  # without backends to choose from
            verdicts = {rule.id: rule.when.holds(known) for rule in self._speaking[name] if _refuses(rule)}
            reasons = tuple(rule for rule, holds in verdicts.items() if holds)
            return (False if reasons else None if None in verdicts.values() else True), reasons
        told = predict(self.rulebook, library, known)
        if told.import_error is not None and told.import_error.holds:
            return False, (told.import_error.rule,)
        candidate = next((item for item in told.candidates if item.backend == name), None)
        if candidate is not None:
            serves, against = candidate.available, candidate.reasons
        else:
            serves = (told.selected is not None) if told.could_tell else None
            against = tuple(item.reasons[0] for item in told.candidates if item.reasons)
        return serves, tuple(dict.fromkeys(reason.rule for reason in against if reason.holds))

    def _fires(self, rule: Rule, known: FactResolver, name: str) -> bool:
        if _refuses(rule):
            return False
        if rule.fails_at_run and "." in name:
            return bool(name in rule.fails_at_run and rule.when.holds(known))
        return bool(rule_holds(self.rulebook, rule, known))


def _speaking(rulebook: Rulebook, prefix: str) -> list[Rule]:
    """The rules that say of a backend of this library, once selected, that it fails or computes wrong numbers.

    Of a library without backends: all that say so of the library, and those for which it takes no case.
    """
    found = []
    for rule in rulebook.rules.values():
        of_run = any(backend.startswith(f"{prefix}.") for backend in rule.fails_at_run)
        keys = {leaf.key for leaf in rule.when.leaves()}
        wrong = rule.body.get("category") == "wrong-numerics" and (
            f"{prefix}.selected" in keys or rule.library == prefix
        )
        if of_run or ((wrong or (rule.library == prefix and _refuses(rule))) and rule.severity is not None):
            found.append(rule)
    return found


def _refuses(rule: Rule) -> bool:
    """Whether the rule says of a library without backends that it does not take the case."""
    return bool(rule.body.get("category") == "backend-unavailable" and not rule.fails_at_run)


def compare(records: Iterable[tuple[str, Mapping[str, Any], KernelResult]], reader: Reader) -> Comparison:
    """Every answer beside what the rules say of its case."""
    found = Comparison()
    for _, case, answer in records:
        said, became = reader.said(case), verdict(answer)
        if said is None or became in ("unavailable", "no memory"):
            continue
        found.asked += 1
        if became == "right":
            # Under dropout there is no one right output: right says that it drops as it should, and no more.
            for rule in said.refused_by if case.get("dropout") else (*said.refused_by, *said.wrong_by):
                _count(found.refuted, (rule, str(case["backend"])), case)
        elif became == "refused" and (said.refused_by or said.wrong_by):
            _count(found.foretold, ((said.refused_by or said.wrong_by)[0], "refused"), case)
        elif became == "refused" and said.serves:
            _count(found.unruled, str(case["backend"]), case, answer.reason)
        elif became == "refused":
            found.undetermined += 1
        elif became in BAD:
            for rule in (said.wrong_by or said.doubted_by or said.refused_by)[:1]:
                _count(found.foretold, (rule, became), case)
    return found


def beside_the_rulebook(outcome: SweepResult, python: str, rules: Sequence[str] = ()) -> Comparison | None:
    """Compare a sweep of GPUs with what the rules say of this environment; faults get the rules that foretold them."""
    if str(outcome.hello.get("device")) == "cpu":
        return None  # the rules speak of kernels on GPUs
    rulebook = load_rulebook(rules)
    facts = environment_of(Request(python=python), rulebook).facts
    reader = Reader(rulebook, facts)
    for item in outcome.failures:
        item.rules = rules_of(item.case, reader) if item.backend != "triton" else ()
    return compare(outcome.records, reader)


def rules_of(case: Mapping[str, Any], reader: Reader) -> tuple[str, ...]:
    """The rules that foretold the fault of this case; none makes it an unpredicted one."""
    said = reader.said(case)
    return () if said is None else said.wrong_by or said.doubted_by or said.refused_by


def _count(table: dict[Any, Seen], at: Any, case: Mapping[str, Any], reason: str = "") -> None:
    if at in table:
        table[at].count += 1
    else:
        table[at] = Seen(dict(case), reason)
