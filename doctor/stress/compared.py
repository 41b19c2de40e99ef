"""The sweep beside the rulebook: what a rule foretold, what none did, and what ran right although a rule said no."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..backends import predict
from ..evaluate import know, rule_holds
from ..model import Facts
from ..patient import Request, environment_of
from ..rulebook import Rule, Rulebook, load_rulebook
from ..target import Answer
from .described import PREFIX, SPOKEN_OF, described
from .failures import BAD, verdict
from .sweep import Outcome


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
        self._speaking = {prefix: _speaking(rulebook, prefix) for prefix in PREFIX.values()}

    def said(self, case: Mapping[str, Any]) -> Said | None:
        """What the rules say of this case; None where they speak of no such backend."""
        facts = described(case)
        if facts is None:
            return None
        # What went before is no part of a workload, and only notes speak of it.
        state = case.get("before", "nothing") != "nothing"
        at = f"{state} {case['backend']} {sorted((key, fact.value) for key, fact in facts.items())!r}"
        if at not in self._known:
            self._known[at] = self._judge(case, facts, state)
        return self._known[at]

    def _judge(self, case: Mapping[str, Any], facts: Facts, state: bool) -> Said:
        framework, backend = SPOKEN_OF[case["backend"]]
        prefix = PREFIX[framework]
        library = self.rulebook.by_prefix[prefix]
        known, _ = know(self.rulebook, self.environment.with_(*facts.values()))
        told = predict(self.rulebook, library, known)
        candidate = next((item for item in told.candidates if item.backend == backend), None)
        if told.import_error is not None and told.import_error.holds:
            return Said((told.import_error.rule,), False)
        if candidate is not None:
            serves, reasons = candidate.available, candidate.reasons
        else:
            serves = (told.selected is not None) if told.could_tell else None
            reasons = tuple(item.reasons[0] for item in told.candidates if item.reasons)
        refused = tuple(dict.fromkeys(reason.rule for reason in reasons if reason.holds)) if serves is False else ()
        if serves is False:
            return Said(refused, False)
        fired = [rule for rule in self._speaking[prefix] if self._fires(rule, known, backend)]
        certain = tuple(rule.id for rule in fired if rule.fails_at_run or rule.severity == "error")
        doubts = tuple(rule.id for rule in fired if rule.id not in certain and (rule.severity != "note" or state))
        return Said(refused, serves, certain, doubts)

    def _fires(self, rule: Rule, known: Any, backend: str | None) -> bool:
        if rule.fails_at_run and backend is not None:
            return bool(backend in rule.fails_at_run and rule.when.holds(known))
        return bool(rule_holds(self.rulebook, rule, known))


def _speaking(rulebook: Rulebook, prefix: str) -> list[Rule]:
    """The rules that say of a backend of this library, once selected, that it fails or computes wrong numbers."""
    found = []
    for rule in rulebook.rules.values():
        of_run = any(backend.startswith(f"{prefix}.") for backend in rule.fails_at_run)
        keys = {leaf.key for leaf in rule.when.leaves()}
        wrong = rule.body.get("category") == "wrong-numerics" and f"{prefix}.selected" in keys
        if of_run or (wrong and rule.severity is not None):
            found.append(rule)
    return found


def compare(records: Iterable[tuple[str, Mapping[str, Any], Answer]], reader: Reader) -> Comparison:
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


def beside_the_rulebook(outcome: Outcome, python: str) -> Comparison | None:
    """Compare a sweep of GPUs with what the rules say of this environment; faults get the rules that foretold them."""
    if str(outcome.hello.get("device")) == "cpu":
        return None  # the rules speak of kernels on GPUs
    rulebook = load_rulebook()
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
