"""Judge rules that lean on an assumed or a missing value by every value that is usual for it.

A missing value: where a rule fires for every usual one, or for most and the most usual, it is a finding that says so;
where it fires for none, it is silent; else the report names the values for which it fires. A mask tensor is usual but
rare: a rule that it alone silences is a finding that excepts it. Where several values are missing, the rule is judged
by whole jobs that are usual. A missing package that a rule only excludes is taken as not installed, and the finding,
of an error a warning, says so; likewise a package that few environments have, where a choice hangs on it. An assumed
value: where another usual one would make the rule silent, an error becomes a warning that names the assumption. A
backend that fails in a step: where the job names that backend and only missing facts leave open whether it serves the
job, the failure is a warning. Where a library says what usually stands beside its release (`companions`), rules that
also lack those are judged by all of these companions, and fire as warnings where every one agrees. A release
candidate of a bound (2.6.0rc1 for `>=2.6`): a rule that fires for the release itself is a warning that says so; alphas
and nightlies stay undecided.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from doctor.facts.vocabulary import fact as make_fact
from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, Fact, Facts, Finding, Severity, Undetermined

from .backends import order_that_counts
from .evaluate import Assessment, finding_of, know, rule_holds, with_reasons
from .messages import interpolate
from .resolver import FactResolver
from .rule import Rule
from .rulebook import Rulebook

#: What jobs have; a rule that answers alike for all of these is judged without the value. No GPU: there may be none.
USUAL: Mapping[str, tuple[Any, ...]] = {
    "workload.batch_size": (1, 2, 16, 64),
    "workload.dtype": ("bfloat16", "float16"),
    "workload.head_dim_qk": (32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256),
    "workload.mask": ("no_mask", "causal", "padding_causal", "arbitrary"),
    "workload.num_heads": (8, 12, 16, 32, 64),
    "workload.seq_len_q": (128, 512, 2048, 4096, 8192, 32768, 131072),
}
#: GPUs of jobs on a torch for CUDA: a rule that fires on all that it has code for is judged without the GPU.
GPUS = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
#: Jobs that differ in every value; a rule that fires for all of them is judged without these values.
_OF_JOB = ("batch_size", "dtype", "head_dim_qk", "mask", "num_heads", "num_kv_heads", "seq_len_q")
JOBS: tuple[Mapping[str, Any], ...] = tuple(
    dict(zip(_OF_JOB, job, strict=True))
    for job in (
        (1, "bfloat16", 128, "causal", 32, 8, 4096),
        (1, "float16", 128, "no_mask", 24, 24, 32768),
        (16, "float16", 64, "no_mask", 16, 16, 512),
        (2, "bfloat16", 64, "padding_causal", 12, 12, 2048),
        (1, "bfloat16", 256, "causal", 8, 4, 8192),
        (64, "float16", 80, "arbitrary", 32, 32, 128),
        (1, "float16", 40, "no_mask", 8, 8, 4096),
        (1, "bfloat16", 96, "causal", 64, 64, 131072),
    )
)
#: Values that few jobs have: a rule that fires for all others is a finding that names these.
_RARE: Mapping[str, tuple[Any, ...]] = {"workload.mask": ("arbitrary",)}
#: Of these an assumption may be wrong; the others follow from what the framework does.
_DOUBTED = {
    "workload.torch_compile": (True, False),
    **{f"workload.{name}": USUAL[f"workload.{name}"] for name in ("batch_size", "dtype", "mask", "seq_len_q")},
}
_SOURCE = "a usual value"
_CANDIDATE = "the release of this candidate"
#: Ends of the keys of choices that a library makes: no user states them.
_CHOICES = (".selected", ".selected_by_default", ".variant")
_VERSION = ".version"
_CUDNN = "cudnn.version"
_TORCH = "torch.version"  # missing where cuDNN is, which it would imply
#: Findings of these severities are reported where most usual jobs have them; a note needs all.
_GRAVE = (Severity.ERROR, Severity.WARNING)

Judged = Callable[[str, Any], FactResolver]


def weigh(rulebook: Rulebook, facts: Facts, assessment: Assessment) -> Assessment:
    """Return the assessment with rules judged by usual values, where a value is missing or assumed."""
    resolvers: dict[tuple[str, Any], FactResolver] = {}

    def with_value(key: str, value: Any) -> FactResolver:
        found = resolvers.get((key, value))
        if found is None:
            found = resolvers[key, value] = know(rulebook, facts.with_(make_fact(key, value, _SOURCE)))[0]
        return found

    doubted = [key for key in _DOUBTED if key in facts and facts[key].assumed and facts[key].known]
    findings = [_doubted(rulebook, item, facts, doubted, with_value) for item in assessment.findings]
    added: list[Finding] = []
    open_: list[Undetermined] = []
    jobs: tuple[FactResolver, ...] = ()
    beside = _Companions(rulebook, facts, assessment)
    finals = {key: final for key, item in facts.items() if (final := _final_release(item)) is not None}
    for whole in assessment.undetermined:
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
        elif key == "gpu.sm" and _has_a_gpu(assessment.known):
            found = [item for rule in rules if (item := _on_all_gpus(rulebook, rule, with_value)) is not None]
            added += found
            open_ += _without(group, found)
        elif assessment.known.has_workload and all(map(_of_job, group.missing)):
            jobs = jobs or tuple(_whole_job(rulebook, facts, job) for job in JOBS)
            found = [
                item
                for rule in rules
                if (item := _for_all_jobs(rulebook, rule, group.missing, jobs) or beside.judge(rule, group.missing))
            ]
            added += found
            open_ += _without(group, found)
        elif beside.cover(group.missing):
            found = [item for rule in rules if (item := beside.judge(rule, group.missing)) is not None]
            added += found
            open_ += _without(group, found)
        else:
            open_.append(group)
    if not added and open_ == list(assessment.undetermined) and findings == list(assessment.findings):
        return assessment
    added = [with_reasons(rulebook, item, assessment.known, assessment.predictions) for item in added]
    order = sorted((*findings, *added), key=lambda item: item.severity.rank)
    return replace(assessment, findings=tuple(order), undetermined=tuple(open_))


class _Companions:
    """What usually stands beside the release of a library that the job runs, where nothing says what does."""

    def __init__(self, rulebook: Rulebook, facts: Facts, assessment: Assessment) -> None:
        self._rulebook, self._facts = rulebook, facts
        self._seldom = [f"{name}.version" for name in rulebook.seldom_packages]
        self._usual: Mapping[str, tuple[Any, ...]] = {}
        self._worlds: dict[tuple[tuple[Any, ...], int], FactResolver] = {}
        known = assessment.known
        if not known.has_workload:
            return
        for library in rulebook.libraries.values():
            if library.companions and library.applies is not None and library.applies.holds(known) is True:
                table = next((usual for when, usual in library.companions if when.holds(known) is True), {})
                self._usual = {key: values for key, values in table.items() if known.value(key) is None}

    def cover(self, missing: Sequence[str]) -> bool:
        """Whether companions and usual jobs have a value for all that is missing."""
        return bool(self._usual) and all(
            key in self._usual or key in self._seldom or key == _TORCH or _of_job(key) for key in missing
        )

    def judge(self, rule: Rule, missing: Sequence[str]) -> Finding | None:
        """Return the finding of a rule that fires for most usual jobs whatever is beside it, and for the first."""
        if rule.severity not in _GRAVE or not self._usual:
            return None
        beside = list(product(*self._usual.values()))
        if 2 * sum(self._fires(rule, values, 0) for values in beside) <= len(beside):
            return None
        if not all(
            2 * sum(self._fires(rule, values, job) for job in range(len(JOBS))) > len(JOBS) for values in beside
        ):
            return None
        without = [key for key, values in self._usual.items() if key in missing and values == (ABSENT,)]
        names = [_package(key) for key in self._usual if key in missing and key not in without]
        names += ["cudnn"] if _CUDNN in self._usual and _TORCH in missing else []
        names += [_short(key) for key in missing if _short(key) in JOBS[0]]
        parts = [f"if {' and '.join(map(_package, without))} is not installed"] if without else []
        parts += [f"with usual values of what is not given: {', '.join(names)}"] if names else []
        said = "; ".join(parts) or "with usual values of what is not given"
        first = next(values for values in beside if self._fires(rule, values, 0))
        return _assuming(rule, self._world(first, 0), said)

    def _fires(self, rule: Rule, values: tuple[Any, ...], job: int) -> bool:
        """Whether a rule fires with these companions and this usual job."""
        return rule_holds(self._rulebook, rule, self._world(values, job)) is True

    def _world(self, values: tuple[Any, ...], job: int) -> FactResolver:
        """Return what is known with these companions and this usual job for whatever is missing."""
        found = self._worlds.get((values, job))
        if found is None:
            added = [make_fact(key, value, _SOURCE) for key, value in zip(self._usual, values, strict=True)]
            added += [make_fact(key, ABSENT, _SOURCE) for key in self._seldom if self._facts.value(key) is None]
            found = _whole_job(self._rulebook, self._facts.with_(*added), JOBS[job])
            self._worlds[values, job] = found
        return found


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
                    found.append(_assuming(rule, assessment.known, said))
    return found


def _unlisted_packages(rulebook: Rulebook, group: Undetermined, facts: Facts) -> list[Finding]:
    """Return the findings of rules that fire where packages are not installed that they only exclude, as warnings.

    Likewise of rules about a choice which only packages that few environments have leave open.
    """
    packages = [key for key in group.missing if not key.endswith(_CHOICES)]
    rules = [rulebook.rules[name] for name in group.rules]
    grave = (rule for rule in rules if rule.severity in _GRAVE)
    excluding = [
        rule for rule in grave
        if all(
            _only_excludes(rule, key) or (_package(key) in rulebook.seldom_packages and _about_a_choice(rule, key))
            for key in packages
        )
    ]  # fmt: skip
    if not excluding or not packages:
        return []
    known = know(rulebook, facts.with_(*(make_fact(key, ABSENT, _SOURCE) for key in packages)))[0]
    said = f"if {', '.join(map(_package, packages))} is not installed"
    return [_assuming(rule, known, said) for rule in excluding if rule_holds(rulebook, rule, known) is True]


def _release_candidates(
    rulebook: Rulebook, group: Undetermined, facts: Facts, finals: Mapping[str, str]
) -> list[Finding]:
    """Return what fires for the releases of which these are candidates, of rules that lack nothing else; as warnings.

    `finals`: the key of each candidate and its release. A candidate is cut from the branch of its release: what the
    release breaks it breaks, but for late repairs.
    """
    if group.missing or not finals:
        return []
    rules = [rule for rule in (rulebook.rules[name] for name in group.rules) if rule.severity in _GRAVE]
    if not rules:
        return []
    known = know(rulebook, facts.with_(*(make_fact(key, final, _CANDIDATE) for key, final in finals.items())))[0]
    found: list[Finding] = []
    for rule in rules:
        if rule_holds(rulebook, rule, known) is True:
            bounded = [key for key in finals if key in {leaf.key for leaf in rule.gate.leaves()}]
            said = ", ".join(f"{_package(key)} {facts.value(key)} taken as {finals[key]}" for key in bounded or finals)
            found.append(_assuming(rule, known, said))
    return found


def _final_release(item: Fact) -> str | None:
    """Return the release of a candidate such as 2.6.0rc1+cu124, with the CUDA of its label; None for anything else."""
    if not item.key.endswith(_VERSION) or not isinstance(item.value, str) or "rc" not in item.value:
        return None
    version = parse_version(item.value)
    if version.pre is None or version.pre[0] != "rc":
        return None
    label = version.local if version.local and re.fullmatch(r"cpu|cu\d{2,3}|rocm[\d.]+", version.local) else None
    return f"{version.base_version}+{label}" if label else version.base_version


def _only_excludes(rule: Rule, key: str) -> bool:
    """Whether a rule wants this package absent and says nothing else of it: its absence is not the flaw."""
    if not key.endswith(_VERSION) or not _wants_absent(rule.body["when"], key):
        return False
    body = rule.body
    texts = (body["summary"], body.get("message"), body.get("needs"), body.get("fix"))
    return _plain(_package(key)) not in _plain(str(texts))


def _about_a_choice(rule: Rule, key: str) -> bool:
    """Whether a rule is about what a library chooses and says nothing of this package, on which the choice hangs."""
    keys = {leaf.key for leaf in rule.when.leaves()}
    return key not in keys and any(leaf.endswith(_CHOICES) for leaf in keys)


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


def _package(key: str) -> str:
    """Return the package of a key such as `flash-attn.version`."""
    return key.removesuffix(_VERSION)


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
            said = f"if {_short(key)}, which is not given, is not {assumed.value}"
            return finding._replace(severity=Severity.WARNING, message=f"{finding.message} ({said})", assumption=said)
        others = (value for value in _DOUBTED[key] if value != assumed.value)
        if any(rule_holds(rulebook, rule, with_value(key, value)) is False for value in others):
            said = f"assumed {_short(key)} {assumed.value}: {assumed.source.removeprefix('assumed: ')}"
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
        common = [value for value in USUAL[key] if value not in _RARE.get(key, ())]
        values = [value for value, verdict in verdicts.items() if verdict is True]
        if all(verdicts[value] is True for value in common):
            found.append(_for_all(rule, key, values, with_value(key, common[0])))
        elif None in verdicts.values():
            left.setdefault("", []).append(rule.id)
        elif rule.severity in _GRAVE and verdicts[job := JOBS[0][_short(key)]] and _most(verdicts):
            found.append(_assuming(rule, with_value(key, job), f"for most usual {_short(key)}: {_span(values)}"))
        elif values:
            left.setdefault(f"; it applies to {_short(key)} {', '.join(map(str, values))}", []).append(rule.id)
    return found, [(tuple(names), said) for said, names in left.items()]


def _has_a_gpu(known: FactResolver) -> bool:
    """Whether a job that names no GPU has one all the same: its torch is built for CUDA and no fact denies a GPU."""
    cuda = known.value("torch.cuda")
    return known.has_workload and cuda not in (None, ABSENT) and known.value("gpu.count") is None


def _on_all_gpus(rulebook: Rulebook, rule: Rule, with_value: Judged) -> Finding | None:
    """Return the finding of a rule that fires on every usual GPU; of an error a warning."""
    if rule.severity not in _GRAVE:
        return None
    known = (with_value("gpu.sm", gpu) for gpu in GPUS)
    verdicts = [rule_holds(rulebook, rule, job) for job in known if job.value("torch.serves_gpu") is not False]
    if not verdicts or not all(verdicts):
        return None
    return _assuming(rule, with_value("gpu.sm", GPUS[0]), "on every usual GPU; none is given")


def _most(verdicts: Mapping[Any, bool | None]) -> bool:
    """Whether a rule fires for more than half of the values."""
    return 2 * list(verdicts.values()).count(True) > len(verdicts)


def _of_job(key: str) -> bool:
    """Whether a usual job has a value for `key`; a choice that no fact is known to decide may hang on any of them."""
    return _short(key) in JOBS[0] or key.endswith(_CHOICES)


def _whole_job(rulebook: Rulebook, facts: Facts, job: Mapping[str, Any]) -> FactResolver:
    """Return what is known where the job has these values for whatever is missing.

    Key/value heads belong to the job's own query heads: without them there are as many as query heads.
    """
    missing = {key: value for name, value in job.items() if facts.value(key := f"workload.{name}") is None}
    if "workload.num_heads" not in missing:
        missing.pop("workload.num_kv_heads", None)
    return know(rulebook, facts.with_(*(make_fact(key, value, _SOURCE) for key, value in missing.items())))[0]


def _for_all_jobs(
    rulebook: Rulebook, rule: Rule, missing: Sequence[str], jobs: Sequence[FactResolver]
) -> Finding | None:
    """Return the finding of a rule that fires for every usual job, or for most of them; of an error a warning."""
    verdicts = [rule_holds(rulebook, rule, job) for job in jobs]
    left_out = [job for job, verdict in zip(jobs, verdicts, strict=True) if verdict is not True]
    if len(left_out) == len(jobs):
        return None
    rare = [_rare_values(job, missing) for job in left_out]
    names = ", ".join(_short(key) for key in missing if not key.endswith(_CHOICES))
    if all(rare):
        but = f", except {', '.join(sorted({text for texts in rare for text in texts}))}" if rare else ""
        return _assuming(rule, jobs[0], f"whatever is usual for {names or 'what is missing'}{but}")
    if verdicts[0] is False or 2 * len(left_out) > len(jobs) or rule.severity not in _GRAVE:
        return None
    return _assuming(rule, jobs[0], f"in most usual jobs; {names or 'what decides it'} not given")


def _rare_values(job: FactResolver, missing: Sequence[str]) -> list[str]:
    """Return what few jobs have of the values that this usual job has for what is missing."""
    keys = [key for key in missing if job.value(key) in _RARE.get(key, ())]
    return [f"{_short(key)} {job.value(key)}" for key in keys]


def _for_all(rule: Rule, key: str, values: Sequence[Any], known: FactResolver) -> Finding:
    """Return the finding of a rule that fires for these usual values; of an error a warning, since others exist."""
    return _assuming(rule, known, f"for every usual {_short(key)}: {_span(values)}")


def _span(values: Sequence[Any]) -> str:
    """Return these values, of many the first and the last."""
    return f"{values[0]} to {values[-1]}" if len(values) > 4 else ", ".join(map(str, values))


def _short(key: str) -> str:
    """Return a key of the workload as users write it."""
    return key.removeprefix("workload.")


def _assuming(rule: Rule, known: FactResolver, said: str) -> Finding:
    """Return the finding of a rule that was judged with usual values, which its message names."""
    severity = Severity.WARNING if rule.severity == Severity.ERROR else rule.severity or Severity.NOTE
    finding = finding_of(rule, known, severity, f"{interpolate(rule.message, known)} ({said})")
    evidence = tuple(item for item in finding.evidence if item.fact.source != _SOURCE)
    return finding._replace(evidence=evidence, assumption=said)
