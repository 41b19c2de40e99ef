"""Run the kernels that findings and the job need on the GPU, and apply the results to the findings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from doctor.facts.vocabulary import TERMS, parse
from doctor.model import ABSENT, Confirmation, Finding, Prediction, RunVerdict, Severity
from doctor.rulebook.conditions import Observations, observation, parse_conditions
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import as_tuple
from doctor.runner.batch import KernelRunner, spent
from doctor.runner.result import KernelResult

from .carried_words import RANKS, changed_words, dropped, unknown_words
from .job_runs import (
    confirmation_from_job_run,
    confirmed_over_ranks,
    if_carried,
    job_requests,
    judge_run,
    no_memory,
    own_time,
    unpredicted,
    what_was_seen,
)
from .reproduce import reproduction

#: What confirms a finding whose rule does not say it: no answer but a refusal, a death, or a wrong result.
BAD_IF_ANY: Sequence[Mapping[str, Any]] = ({"outcome": ["refused", "failed", "crashed"]}, {"wrong": "true"})


class Confirmed(NamedTuple):
    """The findings after the runs, the runs of the job itself, and what is to be said about it."""

    findings: tuple[Finding, ...]
    runs: tuple[Confirmation, ...] = ()
    notes: tuple[str, ...] = ()
    predictions: tuple[Prediction, ...] = ()  # less the failures that a run refuted
    spent: Mapping[str, float] = {}  # seconds: kernels.start, .import (of torch), .library, .context, .case


class Judged(NamedTuple):
    """What the rulebook says of a job: the rules that fire, and the backends."""

    rules: frozenset[str]
    predictions: tuple[Prediction, ...]


#: Judges the job again with some workload keys changed: a kernel runs a smaller job, and its result is for that one.
Reassess = Callable[[Mapping[str, Any]], Judged]


def confirm(
    findings: Sequence[Finding],
    known: FactResolver,
    predictions: Sequence[Prediction],
    job: Mapping[str, Any],
    bench: KernelRunner,
    on_step: Callable[[str], None] = lambda text: None,
    reassess: Reassess | None = None,
) -> Confirmed:
    """Run what is called for and judge it. `job` is the workload without its prefix, as kernels read it."""
    cases: dict[str, list[dict[str, Any]]] = {}
    requests = job_requests(known, job)
    places = [_place_of(cases, finding, job, requests) for finding in findings]
    own = [_place(cases, kernel, request) for kernel, request in requests]
    if not cases:
        return Confirmed(tuple(findings), predictions=tuple(predictions))
    total = sum(map(len, cases.values()))
    on_step(f"running {total} case{'s' if total > 1 else ''} on the GPU: {', '.join(cases)} …")
    answers = bench.run(cases)
    again = _Again(findings, predictions, reassess, known.value("workload.tensor_parallel_size"))
    runs = []
    for kernel, index in own:
        answer, request = answers[kernel][index], cases[kernel][index]
        lost = _lost(kernel, request, answer, known)
        runs.append(judge_run(kernel, request, answer, known, again(answer).predictions, lost))
    confirmed: list[Finding] = []
    for finding, place in zip(findings, places, strict=True):
        its_own = place is not None and place[0] == RANKS
        over_ranks = None if its_own else confirmed_over_ranks(finding, predictions, runs)
        if over_ranks is not None:
            confirmed.append(_settle(finding, over_ranks))
        elif place is not None:
            kernel, index = place
            answer, request = answers[kernel][index], cases[kernel][index]
            verdict = verdict_of((finding.confirm or {}).get("bad_if_any") or BAD_IF_ANY, answer)
            reason = answer.reason or what_was_seen(answer)
            made = Confirmation(verdict, kernel, request, answer.outcome, answer.observed, reason, own_time(answer))
            made = if_carried(made, answer, _lost(kernel, request, answer, known, _decided(finding)))
            confirmed.append(_settle(finding, _about_the_job(made, finding, again(answer))))
        else:
            said = confirmation_from_job_run(finding, predictions, runs)
            confirmed.append(_settle(finding, _about_the_job(said, finding, again(said))) if said else finding)
    foreseen = any(finding.severity == Severity.ERROR or _is_confirmed(finding) for finding in confirmed)
    for run, (kernel, index) in zip(runs, own, strict=True):
        surprise = unpredicted(run, foreseen)
        if surprise is not None:
            on_step(f"writing down how to see again what `{kernel}` saw …")
            script = reproduction(bench, kernel, cases[kernel][index], answers[kernel][index], run.reason)
            confirmed.append(surprise._replace(reproduction=script))
    confirmed.sort(key=lambda finding: finding.severity.rank)  # stable: the order within stays
    notes = list(dict.fromkeys(busy for several in answers.values() for answer in several for busy in _busy(answer)))
    if foreseen and any(run.verdict == RunVerdict.FAILED for run in runs):
        notes.append("the job's own attention failed when it was run here, as the findings say")
    refuted = {found.rule for found in confirmed if found.refuted}
    left = tuple(_without(prediction, refuted) for prediction in predictions)
    return Confirmed(tuple(confirmed), tuple(runs), tuple(notes), left, spent(answers))


def _lost(
    kernel: str, request: Mapping[str, Any], answer: KernelResult, known: FactResolver, decided: Collection[str] = ()
) -> dict[str, str]:
    """The words of the job that did not reach the kernel, with the reasons."""
    unknown = [key for key in known.given if key.startswith("workload.") and known.value(key) is None]
    return {
        **unknown_words(kernel, unknown, decided),
        **dropped(kernel, request, decided),
        **changed_words(answer.observed.get("shrunk"), decided),
    }


def _decided(finding: Finding) -> frozenset[str]:
    """The words that the rule of a finding decides: by its request, or because its claim holds whatever they say."""
    block = finding.confirm or {}
    request = block.get("request") or {}
    pinned = ("sdpa_backend",) if "backend" in request else ()
    return frozenset((*request, *pinned, *as_tuple(block.get("regardless_of"))))


class _Again:
    """What the rulebook says of the job as a kernel ran it, each smaller job judged once."""

    def __init__(
        self,
        findings: Sequence[Finding],
        predictions: Sequence[Prediction],
        reassess: Reassess | None,
        ranks: Any,
    ) -> None:
        self.as_it_is = Judged(frozenset(finding.rule for finding in findings), tuple(predictions))
        self.reassess = reassess
        self.ranks = ranks if isinstance(ranks, int) else 1  # that share the heads; a kernel runs those of one
        self.judged_by: dict[str, Judged] = {}

    def __call__(self, answer: KernelResult | Confirmation) -> Judged:
        shrunk = answer.observed.get("shrunk")
        if not isinstance(shrunk, Mapping) or not shrunk or self.reassess is None:
            return self.as_it_is
        changes = {key: item[1] for key, item in shrunk.items() if isinstance(item, (list, tuple)) and len(item) == 2}
        changes |= {key: changes[key] * self.ranks for key in _HEADS if isinstance(changes.get(key), int)}
        at = repr(sorted(changes.items(), key=str))
        if at not in self.judged_by:
            self.judged_by[at] = self.reassess(changes)
        return self.judged_by[at]


def _about_the_job(said: Confirmation, finding: Finding, judged: Judged) -> Confirmation:
    """A healthy run of a smaller job refutes only what would befall the smaller job as well."""
    if said.verdict != RunVerdict.REFUTED or finding.rule in judged.rules:
        return said
    shrunk = said.observed.get("shrunk") or {}
    smaller = ", ".join(f"{key} {item[1]} for {item[0]}" for key, item in shrunk.items())
    return said._replace(
        verdict=RunVerdict.INCONCLUSIVE, reason=f"it was run smaller, with {smaller}, where the rule is silent"
    )


def _busy(answer: KernelResult) -> list[str]:
    gpu = answer.observed.get("gpu")
    judged_by = gpu.get("busy") if isinstance(gpu, Mapping) else None
    return [f"{judged_by}; times and memory say little"] if judged_by else []


def _without(prediction: Prediction, refuted: set[str]) -> Prediction:
    """The prediction without a failure that a run has refuted."""
    import_error, fails_at_run = (
        None if reason is not None and reason.rule in refuted else reason
        for reason in (prediction.import_error, prediction.fails_at_run)
    )
    return prediction._replace(import_error=import_error, fails_at_run=fails_at_run)


def _place_of(
    cases: dict[str, list[dict[str, Any]]],
    finding: Finding,
    job: Mapping[str, Any],
    requests: Sequence[tuple[str, Mapping[str, Any]]],
) -> tuple[str, int] | None:
    """The place of the case that the rule of this finding names; None without one, or where the ranks do not run."""
    block = finding.confirm
    if not block:
        return None
    kernel, base = str(block.get("kernel")), job
    if kernel == RANKS:
        ranks = next((request for name, request in requests if name == RANKS), None)
        if ranks is None:
            return None
        base = ranks
    return _place(cases, kernel, {**base, **typed(block.get("request") or {})})


def _is_confirmed(finding: Finding) -> bool:
    return finding.confirmation is not None and finding.confirmation.verdict == RunVerdict.CONFIRMED


def _place(cases: dict[str, list[dict[str, Any]]], kernel: str, request: dict[str, Any]) -> tuple[str, int]:
    """The place of this case, an equal one being run only once."""
    requests = cases.setdefault(kernel, [])
    if request not in requests:
        requests.append(request)
    return kernel, requests.index(request)


def _settle(finding: Finding, said: Confirmation) -> Finding:
    """The finding with its confirmation; a refuted one is kept, as a note, and so fails no check."""
    severity = Severity.NOTE if said.verdict == RunVerdict.REFUTED else finding.severity
    return finding._replace(confirmation=said, severity=severity)


def verdict_of(bad_if_any: Sequence[Mapping[str, Any]], answer: KernelResult) -> RunVerdict:
    """Return CONFIRMED if a condition holds, REFUTED if the kernel answered and none can hold, else INCONCLUSIVE."""
    if no_memory(answer):
        return RunVerdict.INCONCLUSIVE  # memory that others use is no property of the workload
    seen = Observations(
        {**answer.observed, "outcome": answer.outcome, "reason": answer.reason, "signal": answer.signal}
    )
    verdicts = [parse_conditions(condition, observation).holds(seen) for condition in bad_if_any]
    if True in verdicts:
        return RunVerdict.CONFIRMED
    answered = answer.outcome in ("ran", "refused")
    return RunVerdict.REFUTED if answered and verdicts and None not in verdicts else RunVerdict.INCONCLUSIVE


_HEADS = ("num_heads", "num_kv_heads")


def job_of(known: FactResolver, keys: Iterable[str]) -> dict[str, Any]:
    """The workload as kernels read it: no prefix, nothing unknown, nothing absent, the heads of one rank."""
    job: dict[str, Any] = {}
    for key in keys:
        value = known.value(key)
        if value is not None and value != ABSENT:
            job[key.removeprefix("workload.")] = list(value) if isinstance(value, tuple) else value
    ranks, heads = job.get("tensor_parallel_size"), job.get("num_heads")
    if isinstance(ranks, int) and isinstance(heads, int) and ranks > 0 and heads % ranks == 0:
        del job["tensor_parallel_size"]
        for word in _HEADS:
            if isinstance(count := job.get(word), int):
                job[word] = max(count // ranks, 1)
    return job


def words_of(known: FactResolver) -> list[str]:
    """Return the keys of the job's words: those given, and those that follow and differ from what is usual."""
    given = known.given
    return [
        key
        for key, term in TERMS.items()
        if key.startswith("workload.") and not term.derived and (key in given or known.value(key) != term.default)
    ]


def typed(request: Mapping[str, Any]) -> dict[str, Any]:
    """A rule's request with its types: rule files are read as text, kernels want numbers."""
    return {key: _typed(key, value) for key, value in request.items()}


def _typed(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_typed("", item) for item in value]
    if not isinstance(value, str):
        return value
    if f"workload.{key}" in TERMS:
        parsed = parse(f"workload.{key}", value)
        return list(parsed) if isinstance(parsed, tuple) else None if parsed == ABSENT else parsed
    if value in ("true", "false"):
        return value == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
