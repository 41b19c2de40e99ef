"""Judge rules that lean on an assumed or a missing value by every value that is usual for it.

A missing value: where a rule fires for every usual one, or for most and the most usual, it is a finding that says so;
where it fires for none, it is silent; else the report names the values for which it fires. A mask tensor is usual but
rare: a rule that it alone silences is a finding that excepts it. Where several values are missing, or the GPU, or what
goes with a library, the rule is judged by whole jobs and environments that are usual (`usual_values`). A missing
package that a rule only excludes is taken as not installed, and the finding, of an error a warning, says so; likewise a
package that few environments have, where a choice hangs on it. An assumed value: where another usual one would make the
rule silent, an error becomes a warning that names the assumption. A backend that fails in a step: where the job names
that backend and only missing facts leave open whether it serves the job, the failure is a warning. A release candidate
of a bound (2.6.0rc1 for `>=2.6`): a rule that fires for the release itself is a warning that says so; alphas and
nightlies stay undecided.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from doctor.facts.vocabulary import fact as make_fact
from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, Fact, Facts, Finding, Severity, Undetermined

from .backends import order_that_counts
from .evaluate import Assessment, know, rule_holds, with_reasons
from .resolver import FactResolver
from .rule import Rule
from .rulebook import Rulebook
from .usual_values import CHOICES, GRAVE, JOBS, RARE, SOURCE, USUAL, VERSION, Completions, assuming, package, short

#: Of these an assumption may be wrong; the others follow from what the framework does.
_DOUBTED = {
    "workload.torch_compile": (True, False),
    **{f"workload.{name}": USUAL[f"workload.{name}"] for name in ("batch_size", "dtype", "mask", "seq_len_q")},
}
_CANDIDATE = "the release of this candidate"

Judged = Callable[[str, Any], FactResolver]


def weigh(rulebook: Rulebook, facts: Facts, assessment: Assessment) -> Assessment:
    """Return the assessment with rules judged by usual values, where a value is missing or assumed."""
    resolvers: dict[tuple[str, Any], FactResolver] = {}

    def with_value(key: str, value: Any) -> FactResolver:
        found = resolvers.get((key, value))
        if found is None:
            found = resolvers[key, value] = know(rulebook, facts.with_(make_fact(key, value, SOURCE)))[0]
        return found

    doubted = [key for key in _DOUBTED if key in facts and facts[key].assumed and facts[key].known]
    findings = [_doubted(rulebook, item, facts, doubted, with_value) for item in assessment.findings]
    added: list[Finding] = []
    open_: list[Undetermined] = []
    usual = Completions(rulebook, facts, assessment.known)
    finals = {key: final for key, item in facts.items() if (final := _final_release(item)) is not None}
    graph, ways = rulebook.call_graph, rulebook.call_graph.ways(assessment.known)
    for every in assessment.undetermined:
        kept = tuple(name for name in every.rules if not graph.excludes(rulebook.rules[name], ways))
        if not kept:
            continue
        whole = every._replace(rules=kept)
        failing = (
            _named_backends(rulebook, whole, assessment)
            or _unlisted_packages(rulebook, whole, facts)
            or _release_candidates(rulebook, whole, facts, finals)
        )
        added += failing
        group = next(_without(whole, failing), None)
        if group is None:
            continue
        key = group.missing[0] if len(group.missing) == 1 else ""
        rules = [rulebook.rules[name] for name in group.rules]
        if assessment.known.has_workload and key in USUAL:
            found, left = _by_usual_values(rulebook, rules, key, with_value)
            added += found
            open_ += [group._replace(rules=names, problem=f"{group.problem}{said}") for names, said in left]
        else:
            found = [item for rule in rules if (item := usual.judge(rule, group.missing)) is not None]
            added += found
            open_ += _without(group, found)
    if not added and open_ == list(assessment.undetermined) and findings == list(assessment.findings):
        return assessment
    added = [with_reasons(rulebook, item, assessment.known, assessment.predictions) for item in added]
    order = sorted((*findings, *added), key=lambda item: item.severity.rank)
    return assessment._replace(findings=tuple(order), undetermined=tuple(open_))


def _without(group: Undetermined, found: Sequence[Finding]) -> Iterator[Undetermined]:
    """Yield what is left of a group without the rules of these findings, if anything is."""
    judged = {finding.rule for finding in found}
    if left := tuple(name for name in group.rules if name not in judged):
        yield group._replace(rules=left)


def _named_backends(rulebook: Rulebook, group: Undetermined, assessment: Assessment) -> list[Finding]:
    """Return what would fail in a step of the one backend that the job names, as warnings."""
    found: list[Finding] = []
    for name in group.rules:
        rule = rulebook.rules[name]
        library = rulebook.by_prefix.get(rule.fails_at_run[0].split(".")[0]) if rule.fails_at_run else None
        if library is None or rule.severity is None or rule.gate.holds(assessment.known) is not True:
            continue
        order = order_that_counts(library.preferences, assessment.known)
        for prediction in assessment.predictions:
            for candidate in prediction.candidates:
                if order == (candidate.backend,) and order[0] in rule.fails_at_run and candidate.available is None:
                    said = f"if {candidate.title} serves the job: {', '.join(group.missing)} not given"
                    found.append(assuming(rule, assessment.known, said))
    return found


def _unlisted_packages(rulebook: Rulebook, group: Undetermined, facts: Facts) -> list[Finding]:
    """Return the findings of rules that fire where packages are not installed that they only exclude, as warnings.

    Likewise of rules about a choice which only packages that few environments have leave open.
    """
    packages = [key for key in group.missing if not key.endswith(CHOICES)]
    rules = [rulebook.rules[name] for name in group.rules]
    grave = (rule for rule in rules if rule.severity in GRAVE)
    excluding = [
        rule for rule in grave
        if all(
            _only_excludes(rule, key) or (package(key) in rulebook.seldom_packages and _about_a_choice(rule, key))
            for key in packages
        )
    ]  # fmt: skip
    if not excluding or not packages:
        return []
    known = know(rulebook, facts.with_(*(make_fact(key, ABSENT, SOURCE) for key in packages)))[0]
    said = f"if {', '.join(map(package, packages))} is not installed"
    return [assuming(rule, known, said) for rule in excluding if rule_holds(rulebook, rule, known) is True]


def _release_candidates(
    rulebook: Rulebook, group: Undetermined, facts: Facts, finals: Mapping[str, str]
) -> list[Finding]:
    """Return what fires for the releases of which these are candidates, of rules that lack nothing else; as warnings.

    `finals`: the key of each candidate and its release. A candidate is cut from the branch of its release: what the
    release breaks it breaks, but for late repairs.
    """
    if group.missing or not finals:
        return []
    rules = [rule for rule in (rulebook.rules[name] for name in group.rules) if rule.severity in GRAVE]
    if not rules:
        return []
    known = know(rulebook, facts.with_(*(make_fact(key, final, _CANDIDATE) for key, final in finals.items())))[0]
    found: list[Finding] = []
    for rule in rules:
        if rule_holds(rulebook, rule, known) is True:
            bounded = [key for key in finals if key in {leaf.key for leaf in rule.gate.leaves()}]
            said = ", ".join(f"{package(key)} {facts.value(key)} taken as {finals[key]}" for key in bounded or finals)
            found.append(assuming(rule, known, said))
    return found


def _final_release(item: Fact) -> str | None:
    """Return the release of a candidate such as 2.6.0rc1+cu124, with the CUDA of its label; None for anything else."""
    if not item.key.endswith(VERSION) or not isinstance(item.value, str) or "rc" not in item.value:
        return None
    version = parse_version(item.value)
    if version.pre is None or version.pre[0] != "rc":
        return None
    label = version.local if version.local and re.fullmatch(r"cpu|cu\d{2,3}|rocm[\d.]+", version.local) else None
    return f"{version.base_version}+{label}" if label else version.base_version


def _only_excludes(rule: Rule, key: str) -> bool:
    """Whether a rule wants this package absent and says nothing else of it: its absence is not the flaw."""
    if not key.endswith(VERSION) or not _wants_absent(rule.condition, key):
        return False
    return _plain(package(key)) not in _plain(" ".join(rule.texts))


def _about_a_choice(rule: Rule, key: str) -> bool:
    """Whether a rule is about what a library chooses and says nothing of this package, on which the choice hangs."""
    keys = {leaf.key for leaf in rule.when.leaves()}
    return key not in keys and any(leaf.endswith(CHOICES) for leaf in keys)


def _wants_absent(condition: Any, key: str) -> bool:
    """Whether a condition, as a rule writes it, holds only without this package, at the top or in an alternative."""
    if isinstance(condition, Mapping):
        return condition.get(key) == ABSENT or any(
            _wants_absent(condition[part], key) for part in ("any", "all") if part in condition
        )
    return isinstance(condition, list) and any(_wants_absent(part, key) for part in condition)


def _plain(text: str) -> str:
    """Return a text in which `transformer-engine`, `transformer_engine` and TransformerEngine are the same."""
    return re.sub(r"[-_ ]", "", text).lower()


def _doubted(rulebook: Rulebook, finding: Finding, facts: Facts, doubted: Sequence[str], with_value: Judged) -> Finding:
    """Return a finding that another usual value of an assumed fact would silence as a warning that says so."""
    if finding.severity == Severity.NOTE:
        return finding
    rule = rulebook.rules[finding.rule]
    keys = {leaf.key for leaf in rule.when.leaves()}
    if "workload.seq_len_assumed" in keys:
        return finding  # the rule says itself that the length is assumed
    for key in doubted:
        assumed = facts[key]
        if f"{key}.given" in keys and rule_holds(rulebook, rule, with_value(key, assumed.value)) is False:
            said = f"if {short(key)}, which is not given, is not {assumed.value}"
            return finding._replace(severity=Severity.WARNING, message=f"{finding.message} ({said})", assumption=said)
        others = (value for value in _DOUBTED[key] if value != assumed.value)
        if any(rule_holds(rulebook, rule, with_value(key, value)) is False for value in others):
            said = f"assumed {short(key)} {assumed.value}: {assumed.source.removeprefix('assumed: ')}"
            return finding._replace(severity=Severity.WARNING, message=f"{finding.message} ({said})", assumption=said)
    return finding


def _by_usual_values(
    rulebook: Rulebook, rules: Sequence[Rule], key: str, with_value: Judged
) -> tuple[list[Finding], list[tuple[tuple[str, ...], str]]]:
    """Return findings that hold for most usual values, and (rules, the values for which they fire) of the others."""
    found: list[Finding] = []
    left: dict[str, list[str]] = {}
    for rule in rules:
        verdicts = {value: rule_holds(rulebook, rule, with_value(key, value)) for value in USUAL[key]}
        common = [value for value in USUAL[key] if value not in RARE.get(key, ())]
        values = [value for value, verdict in verdicts.items() if verdict is True]
        if all(verdicts[value] is True for value in common):
            found.append(_for_all(rule, key, values, with_value(key, common[0])))
        elif None in verdicts.values():
            left.setdefault("", []).append(rule.id)
        elif rule.severity in GRAVE and verdicts[job := JOBS[0][short(key)]] and _most(verdicts, common):
            found.append(assuming(rule, with_value(key, job), f"for most usual {short(key)}: {_span(values)}"))
        elif values:
            left.setdefault(f"; it applies to {short(key)} {', '.join(map(str, values))}", []).append(rule.id)
    return found, [(tuple(names), said) for said, names in left.items()]


def _most(verdicts: Mapping[Any, bool | None], common: Sequence[Any]) -> bool:
    """Whether a rule fires for more than half of the values that are not rare."""
    return 2 * sum(verdicts[value] is True for value in common) > len(common)


def _for_all(rule: Rule, key: str, values: Sequence[Any], known: FactResolver) -> Finding:
    """Return the finding of a rule that fires for these usual values; of an error a warning, since others exist."""
    return assuming(rule, known, f"for every usual {short(key)}: {_span(values)}")


def _span(values: Sequence[Any]) -> str:
    """Return these values, of many the first and the last."""
    return f"{values[0]} to {values[-1]}" if len(values) > 4 else ", ".join(map(str, values))
