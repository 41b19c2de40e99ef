"""Rules × facts → findings and backend predictions."""

from __future__ import annotations

from collections.abc import Mapping

from .backends import Predictor
from .known import Known
from .model import ABSENT, SEVERITIES, Evidence, Fact, Facts, Finding, Prediction, Undetermined
from .records import dataclass
from .rulebook import Rule, Rulebook, as_tuple
from .wording import interpolate, missing_keys


@dataclass(frozen=True)
class Assessment:
    """Everything the rulebook has to say about one set of facts."""

    findings: tuple[Finding, ...]
    undetermined: tuple[Undetermined, ...]
    predictions: tuple[Prediction, ...]
    known: Known

    @property
    def errors(self) -> frozenset[str]:
        """Ids of the error rules that fire."""
        return frozenset(finding.rule for finding in self.findings if finding.severity == "error")


def know(
    rulebook: Rulebook, facts: Facts, settled: Mapping[str, Fact] | None = None
) -> tuple[Known, dict[str, Prediction]]:
    """The look-up for these facts, with backend predictions (`te.selected`, `te.fused.available`) on demand."""
    predictor = Predictor(rulebook)
    return Known(facts, rulebook.implications, predictor, settled), predictor.predictions


def evaluate(rulebook: Rulebook, facts: Facts, settled: Mapping[str, Fact] | None = None) -> Assessment:
    """Judge every rule on these facts; `settled` is what is known to follow from them (`ground`)."""
    known, predictions = know(rulebook, facts, settled)
    asked = [
        library
        for library in rulebook.libraries.values()
        if library.prefix and known.has_workload and (library.applies is None or library.applies.holds(known))
    ]
    for library in asked:
        known.look_up(f"{library.prefix}.selected")
    findings: list[Finding] = []
    unclear: dict[tuple[str, ...], list[str]] = {}
    missing = _absent_libraries(rulebook, known)
    for rule in rulebook.rules.values():
        if rule.severity is None or _needs_absent_library(rule, missing):
            continue
        holds = rule_holds(rulebook, rule, known)
        if holds:
            findings.append(finding_of(rule, known, rule.severity, interpolate(rule.message, known)))
        elif holds is None:
            unclear.setdefault(missing_keys(rule, known), []).append(rule.id)
    fired = {finding.rule for finding in findings}
    findings = [  # a general rule is silent where a specific one tells the same
        finding
        for finding in findings
        if not fired.intersection(as_tuple(rulebook.rules[finding.rule].body.get("yields_to")))
    ]
    findings.sort(key=lambda finding: (SEVERITIES.index(finding.severity), -_weight(rulebook, finding), finding.rule))
    undetermined = tuple(
        Undetermined(missing, tuple(rules), "; ".join(f"`{key}`: {known.look_up(key).problem}" for key in missing))
        for missing, rules in sorted(unclear.items())
    )
    told = tuple(predictions[library.prefix] for library in asked if library.prefix in predictions)
    return Assessment(tuple(findings), undetermined, told, known)


def _absent_libraries(rulebook: Rulebook, known: Known) -> dict[str, str]:
    """Return the libraries that are known not to be installed, each with the key of its version."""
    keys = {name: f"{item.distributions[0]}.version" for name, item in rulebook.libraries.items() if item.distributions}
    return {name: key for name, key in keys.items() if known.value(key) == ABSENT}


def _needs_absent_library(rule: Rule, missing: Mapping[str, str]) -> bool:
    """Whether a rule asks for a version of its own library that is not installed: it is silent, parsed or not."""
    wanted = rule.body["when"].get(missing.get(rule.library))
    return isinstance(wanted, str) and wanted != ABSENT


def rule_holds(rulebook: Rulebook, rule: Rule, known: Known) -> bool | None:
    """Whether the rule fires; a run-time rule fires only for a backend that is selected."""
    holds = rule.when.holds(known)
    if holds is False or not rule.fails_at_run:
        return holds
    prefix = rule.fails_at_run[0].split(".")[0]
    selected = known.value(f"{prefix}.selected")
    if selected is None:
        return None
    return holds if selected in rule.fails_at_run else False


def _weight(rulebook: Rulebook, finding: Finding) -> int:
    """How specific a finding is: a cause that names more conditions is told before a general one."""
    return int(rulebook.rules[finding.rule].body.get("weight", 0)) * 100 + len(finding.evidence)


def finding_of(rule: Rule, known: Known, severity: str, message: str) -> Finding:
    """What a rule that strikes tells the user: in these words and this grade, with the conditions that hold."""
    evidence = tuple(item for item in rule.when.evidence(known) if item.holds)
    return Finding(
        rule=rule.id,
        name=rule.body["name"],
        severity=severity,
        verdict="fires",
        summary=rule.body["summary"],
        message=message,
        why=str(rule.body.get("why", "")).strip(),
        evidence=with_needs(evidence, rule.body.get("needs") or {}),
        references=rule.references,
        alternatives=rule.alternatives,
        no_pin=rule.body.get("no_pin"),
        myth=rule.body.get("myth"),
        confirm=rule.body.get("confirm"),
        backends=rule.fails_at_run or rule.disables,
    )


def with_needs(evidence: tuple[Evidence, ...], needs: Mapping[str, str]) -> tuple[Evidence, ...]:
    """The evidence with the rule's own words for what is needed, each once.

    A rule that gives any names the conditions worth changing; the others (the GPU, the job) only say what was found.
    """
    if not needs:
        return evidence
    once = {item.key: item for item in reversed(evidence)}  # two conditions on one fact would read the same
    return tuple(
        Evidence(item.key, item.condition, needs.get(item.key, ""), item.fact, item.holds)
        for item in evidence
        if once[item.key] is item
    )
