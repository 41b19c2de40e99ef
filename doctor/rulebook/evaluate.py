"""Rules × facts → findings and backend predictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from doctor.facts.vocabulary import term
from doctor.model import (
    ABSENT,
    SEVERITIES,
    Candidate,
    Evidence,
    Fact,
    Facts,
    Finding,
    Prediction,
    Reason,
    Remedy,
    Severity,
    Undetermined,
    Verdict,
)

from .backends import Predictor, not_called, order_that_counts
from .conditions import Condition, parse_conditions
from .messages import PLACEHOLDER, interpolate, message_of, missing_keys, unexamined
from .reach import Way
from .resolver import FactResolver
from .rule import Library, Rule
from .rulebook import Rulebook


class Assessment(NamedTuple):
    """Everything the rulebook has to say about one set of facts."""

    findings: tuple[Finding, ...]
    undetermined: tuple[Undetermined, ...]
    predictions: tuple[Prediction, ...]
    known: FactResolver
    unconcerned: tuple[Finding, ...] = ()  # of rules about what the job does not reach

    @property
    def errors(self) -> frozenset[str]:
        """Ids of the error rules that fire."""
        return frozenset(finding.rule for finding in self.findings if finding.severity == Severity.ERROR)


def know(
    rulebook: Rulebook, facts: Facts, implied: Mapping[str, Fact] | None = None
) -> tuple[FactResolver, dict[str, Prediction]]:
    """The look-up for these facts, with backend predictions (`te.selected`, `te.fused.available`) on demand."""
    predictor = Predictor(rulebook)
    return FactResolver(facts, rulebook.implications, predictor, implied), predictor.predictions


#: Rules that cannot be judged, by the missing facts that a user can give.
Unclear = Mapping[tuple[str, ...], Sequence[Rule]]


def evaluate(
    rulebook: Rulebook,
    facts: Facts,
    implied: Mapping[str, Fact] | None = None,
    unclear: Unclear | None = None,
    *,
    name_missing: bool = True,
) -> Assessment:
    """Judge every rule on these facts; `implied` is what is known to follow from them (`ground`).

    `unclear`: further rules that are known to be undetermined. Without `name_missing`, the undetermined rules form one
    group that names no missing fact, which takes half the time where many facts are missing.
    """
    return assess(rulebook, *know(rulebook, facts, implied), unclear, name_missing=name_missing)


def assess(
    rulebook: Rulebook,
    known: FactResolver,
    predictions: Mapping[str, Prediction],
    also_unclear: Unclear | None = None,
    *,
    name_missing: bool = True,
    verdicts: Mapping[str, bool | None] = MappingProxyType({}),
) -> Assessment:
    """Judge every rule on what `know` returned; what was looked up before is not worked out again.

    `verdicts`: what is known already, by the ids of rules.
    """
    considered = [
        library
        for library in rulebook.libraries.values()
        if library.prefix and known.has_workload and (library.applies is None or library.applies.holds(known))
    ]
    for library in considered:
        known.look_up(f"{library.prefix}.selected")
    findings: list[Finding] = []
    unconcerned: list[Finding] = []
    graph, ways = rulebook.call_graph, rulebook.call_graph.ways(known)
    unclear: dict[tuple[str, ...], list[str]] = {}
    for missing, rules in (also_unclear or {}).items():
        if names := [rule.id for rule in rules if not _of_other_calls(rulebook, rule, known)]:
            unclear[missing] = names
    for rule in rulebook.concerned(known.value):
        if rule.severity is None:
            continue
        holds = verdicts[rule.id] if rule.id in verdicts else rule_holds(rulebook, rule, known)
        if holds is False:
            continue
        excluded = graph.excludes(rule, ways) or _of_other_calls(rulebook, rule, known)
        if holds:
            finding = _examined(finding_of(rule, known, rule.severity, message_of(rule, known)), rule, known)
            (unconcerned if excluded else findings).append(_reached(finding, graph.way_to(rule, ways)))
        elif excluded:
            continue
        elif holds is None:
            unclear.setdefault(missing_keys(rule, known) if name_missing else (), []).append(rule.id)
    reported = reported_rules(rulebook, {finding.rule for finding in findings})
    findings = [finding for finding in findings if finding.rule in reported]
    findings = [with_reasons(rulebook, finding, known, tuple(predictions.values())) for finding in findings]
    findings.sort(key=lambda finding: (SEVERITIES.index(finding.severity), -_weight(rulebook, finding), finding.rule))
    undetermined = tuple(
        Undetermined(
            missing, tuple(sorted(rules)), "; ".join(f"`{key}`: {known.look_up(key).problem}" for key in missing)
        )
        for missing, rules in sorted(unclear.items())
    )
    prefixes = (library.prefix for library in considered if library.prefix)
    made = tuple(predictions[prefix] for prefix in prefixes if prefix in predictions)
    return Assessment(tuple(findings), undetermined, made, known, tuple(unconcerned))


def reported_rules(rulebook: Rulebook, fired: Collection[str]) -> frozenset[str]:
    """Return those that are reported of the rules that fire: where a specific one fires, the general one is silent.

    An error is silent only where another error is reported for it.
    """
    errors = frozenset(name for name in fired if rulebook.rules[name].severity == Severity.ERROR)
    every = frozenset(fired)

    def silent(name: str) -> bool:
        specific = rulebook.rules[name].yields_to
        return not (errors if name in errors else every).isdisjoint(specific)

    return frozenset(name for name in fired if not silent(name))


def rule_holds(rulebook: Rulebook, rule: Rule, known: FactResolver) -> bool | None:
    """Whether the rule fires; a run-time rule fires only for a backend that is selected."""
    holds = rule.gate.holds(known)
    if holds is False or not rule.fails_at_run:
        return holds
    prefix = rule.fails_at_run[0].split(".")[0]
    selected = known.value(f"{prefix}.selected")
    if selected is None:
        return None
    if selected in rule.fails_at_run:
        return holds
    library = rulebook.by_prefix.get(prefix)
    prefill = known.value(library.choice["prefill"]) if library and "prefill" in library.choice else None
    return holds if f"{prefix}.{prefill}" in rule.fails_at_run else False


def _of_other_calls(rulebook: Rulebook, rule: Rule, known: FactResolver) -> bool:
    """Return whether a rule is about calls of a library that this job does not make: by words of these calls.

    Such words follow from the job: the layout of TransformerEngine's calls says nothing of a job that calls flash-attn.
    """
    if not known.has_workload or not rule.job_prefixes:
        return False
    called = [_is_called(rulebook.by_prefix[name], known) for name in rule.job_prefixes if name in rulebook.by_prefix]
    return bool(called) and not any(called)


def _is_called(library: Library, known: FactResolver) -> bool:
    key = f"{library.name} may be called"
    found: bool | None = known.memo.get(key)
    if found is None:
        found = known.memo[key] = not not_called(library, known)
    return found


def _reached(finding: Finding, way: Way | None) -> Finding:
    """Return a finding with the way by which the job reaches it; a warning on a way that may not be taken is a note."""
    if way is None:
        return finding
    made = finding._replace(way=way.steps)
    if not way.open or finding.severity != Severity.WARNING or len(way.steps) < 2:
        return made
    return made._replace(severity=Severity.NOTE, message=f"{finding.message} (only if the job uses {way.steps[-1]})")


def _weight(rulebook: Rulebook, finding: Finding) -> int:
    """How specific a finding is: a cause that names more conditions is reported before a general one."""
    return rulebook.rules[finding.rule].weight * 100 + len(finding.evidence)


def _examined(finding: Finding, rule: Rule, known: FactResolver) -> Finding:
    """Return the finding; as a warning where the release is later than those in which an error was examined."""
    if not (later := unexamined(rule, known)):
        return finding
    severity = Severity.WARNING if finding.severity == Severity.ERROR else finding.severity
    return finding._replace(severity=severity, assumption=later)


_ANY_RELEASE = ">=0"  # a condition that only wants the package to be there


def finding_of(rule: Rule, known: FactResolver, severity: Severity, message: str) -> Finding:
    """What a rule that triggers reports: message, severity, and the conditions that hold."""
    held = [item for item in rule.when.evidence(known) if item.holds]
    bounded = {item.key for item in held if item.condition != _ANY_RELEASE}
    evidence = tuple(item for item in held if item.condition != _ANY_RELEASE or item.key not in bounded)
    needs = {key: interpolate(str(text), known) for key, text in rule.needs.items()}
    return Finding(
        rule=rule.id,
        name=rule.name,
        severity=severity,
        verdict=Verdict.FIRES,
        summary=rule.summary,
        message=message,
        why=rule.why,
        evidence=with_needs(evidence, needs),
        references=rule.references,
        alternatives=_that_apply(filled_alternatives(rule, known), known),
        no_pin=rule.no_pin,
        myth=rule.myth,
        confirm=rule.confirm,
        backends=rule.fails_at_run or rule.disables,
    )


def with_reasons(
    rulebook: Rulebook, finding: Finding, known: FactResolver, predictions: tuple[Prediction, ...]
) -> Finding:
    """Return a finding that rests on a choice of backend with the remedies of what speaks against the backends."""
    rule = rulebook.rules[finding.rule]
    if rule.import_error and rule.follows_selection:
        refusals = _refusals(rulebook, rule.import_error, known, predictions)
        finding = finding._replace(message="; ".join((finding.message, *refusals)))
    if rule.fix_reasons is None:
        return finding
    ways = all_alternatives(rulebook, rule, known, predictions)
    return finding._replace(alternatives=_that_apply(ways, known))


def _of_release(rulebook: Rulebook, reason: Reason) -> bool:
    """Whether a backend is not there at all because the release has none of that name."""
    rule = rulebook.rules.get(reason.rule)
    return rule is not None and rule.stage == "release"


def _refusals(
    rulebook: Rulebook, name: str, known: FactResolver, predictions: tuple[Prediction, ...]
) -> tuple[str, ...]:
    """Return the first reason against each backend that the library would have tried here, in its order."""
    order = order_that_counts(rulebook.libraries[name].preferences, known) or ()
    tried = {item.backend: item for made in predictions if made.library == name for item in made.candidates}
    return tuple(
        f"{tried[backend].title}: {tried[backend].reasons[0].message}"
        for backend in order
        if backend in tried and (reasons := tried[backend].reasons) and not _of_release(rulebook, reasons[0])
    )


def all_alternatives(
    rulebook: Rulebook, rule: Rule, known: FactResolver, predictions: tuple[Prediction, ...]
) -> tuple[Remedy, ...]:
    """Return the rule's fixes, after those of the rules against the backends of the library `fix_reasons` names."""
    library = rule.fix_reasons
    index = rulebook.support.get(library) if library else None  # of all rules, also where few are evaluated
    by_id = {item.id: item for item in index or ()}
    reasons = (
        reason.rule
        for prediction in predictions
        if prediction.library == library
        for candidate in prediction.candidates
        if candidate.available is False
        for reason in candidate.reasons
    )
    named = [by_id[name] for name in dict.fromkeys(reasons) if name in by_id]
    found = [remedy for item in named for remedy in filled_alternatives(item, known) if _may_apply(remedy, known)]
    return tuple([*(remedy for number, remedy in enumerate(found) if remedy not in found[:number]),
                  *filled_alternatives(rule, known)])  # fmt: skip


def filled_alternatives(rule: Rule, known: FactResolver) -> tuple[Remedy, ...]:
    """Return the rule's fixes that apply here, with each `{fact.key}` of a range or call filled in.

    One that lacks a fact is left out, and one whose conditions no change of it can meet; those come last whose
    conditions hold for other releases only.
    """
    ways: list[Remedy] = []
    later: list[Remedy] = []
    for way in rule.alternatives:
        condition = parse_conditions(way.when) if way.when else None
        if condition is not None and _never_holds(condition, way, known):
            continue
        keys = {key for text in (*way.require.values(), way.call or "") for key in PLACEHOLDER.findall(text)}
        if any(known.value(key) in (None, ABSENT) for key in keys):
            continue
        if keys:
            require = {name: interpolate(text, known) for name, text in way.require.items()}
            way = way._replace(require=require, call=way.call and interpolate(way.call, known))
        (ways if _may_apply(way, known) else later).append(way)
    return (*ways, *later)


def _that_apply(ways: tuple[Remedy, ...], known: FactResolver) -> tuple[Remedy, ...]:
    """Return the fixes whose conditions are not false here; all where there is no other."""
    return tuple(way for way in ways if _may_apply(way, known)) or ways


def _may_apply(way: Remedy, known: FactResolver) -> bool:
    """Whether the condition of a fix, if it has one, is not false here."""
    return not way.when or parse_conditions(way.when).holds(known) is not False


def _never_holds(condition: Condition, way: Remedy, known: FactResolver) -> bool:
    """Whether a condition is false on facts of the job that the fix leaves as they are: the model, not its backend."""
    keys = {leaf.key for leaf in condition.leaves()}
    changed = {key.removeprefix("workload.") for key in way.config}
    fixed = all(
        key.startswith("workload.") and not term(key).derived and key.removeprefix("workload.") not in changed
        for key in keys
    )
    return fixed and condition.holds(known) is False


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


NO_BACKEND = "NO_BACKEND"
NOT_INSTALLED = "NOT_INSTALLED"


def with_backend_findings(rulebook: Rulebook, assessment: Assessment) -> tuple[Finding, ...]:
    """The findings, and one for each library whose attention cannot run although no error says so."""
    findings = assessment.findings
    if any(finding.severity == Severity.ERROR or (finding.assumption and finding.backends) for finding in findings):
        return findings
    missing = _not_installed(rulebook, assessment.known)
    if missing is not None:
        return (missing, *findings)
    added = []
    for prediction in assessment.predictions:
        reason = prediction.import_error or prediction.fails_at_run
        if reason is not None and reason.holds:
            added.append(finding_of(rulebook.rules[reason.rule], assessment.known, Severity.ERROR, reason.message))
        elif prediction.could_tell and prediction.selected is None:
            added.append(_nothing_left(rulebook, prediction, assessment.known))
    return (*added, *findings)


def _not_installed(rulebook: Rulebook, known: FactResolver) -> Finding | None:
    """Return the finding that a library which the job calls is not installed; None where each may be."""
    framework = rulebook.libraries.get(str(known.value("workload.framework")))
    if framework is not None and framework.backends and _is_missing(framework, known):
        called = known.look_up("workload.framework")
        how = "the attention of this job is that of"
        return _missing(framework, known, how, Evidence("workload.framework", framework.name, "", called, True))
    for library in rulebook.libraries.values():
        when = library.needed
        if when is not None and when.holds(known) and _is_missing(library, known):
            job = [item for item in when.evidence(known) if item.holds]
            return _missing(library, known, "this job imports", *(item._replace(needs="") for item in job))
    return None


def _is_missing(library: Library, known: FactResolver) -> bool:
    names = [name for name in library.distributions if not _is_part(name, library)]
    return bool(names) and all(known.value(f"{name}.version") == ABSENT for name in names)


def _is_part(name: str, library: Library) -> bool:
    """Return whether a distribution holds only files that another one opens, and no module to import."""
    packages = library.table("packages")
    own = packages.get(name, {})
    return (
        "opens" in own
        and "modules" not in own
        and not any(name in other.get("modules_also_in", ()) for other in packages.values())
    )


def _missing(library: Library, known: FactResolver, how: str, *job: Evidence) -> Finding:
    title, key = library.title, f"{library.distributions[0]}.version"
    return Finding(
        rule=NOT_INSTALLED,
        name="package-not-installed",
        severity=Severity.ERROR,
        verdict=Verdict.FIRES,
        summary=f"{title} is not installed, and the job calls it",
        message=f"{how} {title}, of which no distribution is installed",
        why="A job that imports a package which is not there stops at its import.",
        evidence=(*job, Evidence(key, ABSENT, "a release", known.look_up(key), True)),
        references=(),
        alternatives=(Remedy(require={library.distributions[0]: ">=0"}),),
    )


def _nothing_left(rulebook: Rulebook, prediction: Prediction, known: FactResolver) -> Finding:
    """Each candidate that counts with its first reason; what enables one of them is a fix."""
    described = rulebook.libraries[prediction.library]
    library = described.title
    order = order_that_counts(described.preferences, known) or ()
    considered = [item for item in prediction.candidates if item.backend in order] or list(prediction.candidates)
    if len(considered) == 1 and considered[0].reasons and considered[0].reasons[0].rule in rulebook.rules:
        reason = considered[0].reasons[0]  # nothing else was requested: the refusal itself is the finding
        return finding_of(rulebook.rules[reason.rule], known, Severity.ERROR, reason.message)
    rules = dict.fromkeys(candidate.reasons[0].rule for candidate in considered if candidate.reasons)
    known_rules = [rulebook.rules[rule] for rule in rules if rule in rulebook.rules]
    return Finding(
        rule=NO_BACKEND,
        name="no-attention-backend",
        severity=Severity.ERROR,
        verdict=Verdict.FIRES,
        summary=f"no attention backend of {library} serves this job",
        message="; ".join(map(_said, considered)),
        why=f"{library} stops with an error when every backend is ruled out.",
        evidence=(),
        references=tuple(dict.fromkeys(source for rule in known_rules for source in rule.references)),
        alternatives=tuple(item for rule in known_rules for item in rule.alternatives),
        backends=tuple(candidate.backend for candidate in considered),
    )


def _said(candidate: Candidate) -> str:
    reason = candidate.reasons[0] if candidate.reasons else None
    return f"{candidate.title}: {f'{reason.message} [{reason.rule}]' if reason else 'not available'}"
