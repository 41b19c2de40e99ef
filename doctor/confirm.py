"""Asks the GPU: runs the kernels that findings and the job call for, and says what that means for the findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .jobruns import job_requests, judge_run, unpredicted
from .known import Known
from .model import ABSENT, SEVERITIES, Confirmation, Finding, Prediction
from .records import dataclass, replace
from .target import Answer, run_program
from .versions import split_clauses
from .vocabulary import TERMS, parse

#: What confirms a finding whose rule does not say it: no answer but a refusal, a death, or a wrong result.
BAD_IF_ANY: Sequence[Mapping[str, Any]] = ({"outcome": ["refused", "failed", "crashed"]}, {"wrong": "true"})


class Confirmed(NamedTuple):
    """The findings as they stand after the runs, the runs of the job itself, and what is to be said about it."""

    findings: tuple[Finding, ...]
    runs: tuple[Confirmation, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bench:
    """Where kernels run: the patient's interpreter, the longest wait, and the folder with the programs."""

    python: str
    timeout: float
    kernels: Path

    def run(self, cases: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Answer]]:
        """Answers per kernel, in the order of its cases; one process per kernel as long as none crashes."""
        answers = {}
        for kernel, requests in cases.items():
            program = self.kernels / f"{kernel}.py"
            if kernel.startswith("_") or not kernel.isidentifier() or not program.is_file():
                answers[kernel] = [Answer("unavailable", reason=f"there is no kernel `{kernel}`")] * len(requests)
            else:
                answers[kernel] = run_program(self.python, str(program), list(requests), timeout=self.timeout)
        return answers


def confirm(
    findings: Sequence[Finding],
    known: Known,
    predictions: Sequence[Prediction],
    job: Mapping[str, Any],
    bench: Bench,
    tell: Callable[[str], None] = lambda text: None,
) -> Confirmed:
    """Run what is called for and judge it. `job` is the workload without its prefix, as kernels read it."""
    cases: dict[str, list[dict[str, Any]]] = {}
    asked: list[tuple[str, int]] = []  # for each finding with a kernel: where its answer will be
    for finding in findings:
        if finding.confirm:
            request = {**job, **typed(finding.confirm.get("request") or {})}
            asked.append(_place(cases, str(finding.confirm.get("kernel")), request))
    own = [_place(cases, kernel, request) for kernel, request in job_requests(known, job)]
    if cases:
        total = sum(map(len, cases.values()))
        tell(f"running {total} case{'s' if total > 1 else ''} on the GPU: {', '.join(cases)} …")
    answers = bench.run(cases)
    settled: list[Finding] = []
    places = iter(asked)
    for finding in findings:
        if finding.confirm:
            kernel, index = next(places)
            settled.append(_settle(finding, kernel, cases[kernel][index], answers[kernel][index]))
        else:
            settled.append(finding)
    runs = tuple(judge_run(kernel, cases[kernel][i], answers[kernel][i], known, predictions) for kernel, i in own)
    predicted = any(finding.severity == "error" for finding in settled)
    for run in runs:
        surprise = unpredicted(run, predicted)
        if surprise is not None:
            settled.append(surprise)
    settled.sort(key=lambda finding: SEVERITIES.index(finding.severity))  # stable: the order within stays
    notes = []
    if predicted and any(run.verdict == "failed" for run in runs):
        notes.append("the job's own attention failed when it was run here, as the findings say")
    return Confirmed(tuple(settled), runs, tuple(notes))


def _place(cases: dict[str, list[dict[str, Any]]], kernel: str, request: dict[str, Any]) -> tuple[str, int]:
    """The place of this case, an equal one being run only once."""
    requests = cases.setdefault(kernel, [])
    if request not in requests:
        requests.append(request)
    return kernel, requests.index(request)


def _settle(finding: Finding, kernel: str, request: Mapping[str, Any], answer: Answer) -> Finding:
    """The finding with its confirmation; a refuted one is kept, as a note."""
    assert finding.confirm is not None
    verdict = verdict_of(finding.confirm.get("bad_if_any") or BAD_IF_ANY, answer)
    confirmation = Confirmation(
        verdict, kernel, request, answer.outcome, answer.observed, answer.reason, answer.seconds
    )
    severity = "note" if verdict == "refuted" else finding.severity
    return replace(finding, confirmation=confirmation, severity=severity)


def verdict_of(bad_if_any: Sequence[Mapping[str, Any]], answer: Answer) -> str:
    """`confirmed` if a condition holds, `refuted` if there is an answer and none can hold, else `inconclusive`."""
    observed = {**answer.observed, "outcome": answer.outcome, "reason": answer.reason, "signal": answer.signal}
    verdicts = [matches(condition, observed) for condition in bad_if_any]
    if True in verdicts:
        return "confirmed"
    answered = answer.outcome in ("ran", "refused")
    return "refuted" if answered and verdicts and None not in verdicts else "inconclusive"


def matches(condition: Mapping[str, Any], observed: Mapping[str, Any]) -> bool | None:
    """A condition on what a kernel observed: like a rule's `when`, on dotted names (`errors.out.rel: ">0.01"`)."""
    verdicts: list[bool | None] = []
    for key, wanted in condition.items():
        if key in ("any", "all") and isinstance(wanted, (list, tuple)):
            parts = [matches(part, observed) for part in wanted]
            decisive = key == "any"
            verdicts.append(decisive if decisive in parts else None if None in parts else not decisive)
        elif key == "not" and isinstance(wanted, Mapping):
            inner = matches(wanted, observed)
            verdicts.append(None if inner is None else not inner)
        else:
            verdicts.append(_holds(_look(observed, str(key)), wanted))
    return False if False in verdicts else None if None in verdicts else True


def _look(observed: Any, key: str) -> Any:
    """The value under a dotted name; a name that holds dots itself (`sdpa.flash`) is found too."""
    if not isinstance(observed, Mapping):
        return None
    if key in observed:
        return observed[key]
    parts = key.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        head = ".".join(parts[:cut])
        if head in observed:
            return _look(observed[head], ".".join(parts[cut:]))
    return None


def _holds(value: Any, wanted: Any) -> bool | None:
    if value is None:
        return None
    if isinstance(wanted, (list, tuple)):
        verdicts = [_equal(value, item) for item in wanted]
        return any(verdicts)
    clauses = split_clauses(str(wanted))
    if not clauses:
        return _equal(value, wanted)
    try:
        number = float(value)
        bounds = [(operator, float(bound)) for operator, bound in clauses]
    except (TypeError, ValueError):
        return None  # a text is neither above nor below a number
    if number != number:
        return True  # NaN where a bound was set: as far from a healthy result as can be
    return all(_COMPARE[operator](number, bound) for operator, bound in bounds)


def _equal(value: Any, wanted: Any) -> bool:
    """Equal as a YAML author means it; a list equals what it holds."""
    if isinstance(value, (list, tuple)):
        return any(_equal(item, wanted) for item in value)
    return str(value).lower() == str(wanted).lower()


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda a, b: a >= b, "<=": lambda a, b: a <= b, "==": lambda a, b: a == b, "~=": lambda a, b: a == b,
    "!=": lambda a, b: a != b, ">": lambda a, b: a > b, "<": lambda a, b: a < b,
}  # fmt: skip


def job_of(known: Known, keys: Sequence[str]) -> dict[str, Any]:
    """The workload as kernels read it: no prefix, nothing unknown, nothing absent."""
    job = {}
    for key in keys:
        value = known.value(key)
        if value is not None and value != ABSENT:
            job[key.removeprefix("workload.")] = list(value) if isinstance(value, tuple) else value
    return job


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
