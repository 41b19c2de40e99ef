"""What a report is about, in one line each: the verdict, the machine, the job."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from doctor.facts.libraries.titles import SHOWN, TITLES
from doctor.model import ABSENT, Case, Evidence, Facts, Finding, Prediction, ReadInput, Reason, Report, Severity
from doctor.util.units import human_bytes

from .undetermined import count, relevant

TODAY = "what pip installs today"
MOST_SHOWN_ELSEWHERE = 3  # inputs: the lines of target and workload show one environment and one job
MOST_GIVEN = 4  # facts of one input by name
FAIL, WARN, OK, INCOMPLETE = "FAIL", "WARN", "OK", "INCOMPLETE"


def conclusion(report: Report) -> tuple[str, str, str]:
    """Return the look, the verdict word and the sentence behind it, with the number of skipped checks for OK."""
    look, word, sentence = verdict(report)
    skipped = relevant(report)
    if word == OK and skipped and not report.cases:
        more = f"{count(skipped)} skipped"
        sentence = f"{sentence}; {more}" if sentence.endswith(")") else f"{sentence} ({more})"
    return look, word, sentence


def verdict(report: Report) -> tuple[str, str, str]:
    """Return (look, FAIL | WARN | OK | INCOMPLETE, sentence) for the workload, or for several cases."""
    suppressed = (*report.known, *report.ignored)
    if report.cases:
        return _verdict_of_cases(report)
    errors = [finding for finding in report.findings if finding.severity == Severity.ERROR]
    warnings = [finding for finding in report.findings if finding.severity == Severity.WARNING]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return "error", FAIL, f"{errors[0].summary}{more}"
    had = any(finding.severity == Severity.ERROR for finding in suppressed)  # what breaks the predictions is no news
    judged = () if had else report.predictions
    failing = _failing(judged)
    if failing is not None and not report.today:
        return "error", FAIL, failing
    runs_on = ", ".join(title_of(item, item.selected) for item in judged if item.selected)
    runs = f"; attention uses {runs_on}" if runs_on else ""
    if warnings:
        more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
        return "warning", WARN, f"{warnings[0].summary}{more}{runs}"
    if report.unread:
        return (
            "unclear",
            INCOMPLETE,
            f"{len(report.unread)} declared file{'s' if len(report.unread) > 1 else ''} not read",
        )
    if report.today:
        return "unclear", INCOMPLETE, f"no release is stated; {failing or 'no known problems'} with {TODAY}{runs}"
    unknown = next((item for item in judged if not item.could_tell), None)
    if unknown is not None:
        return "unclear", INCOMPLETE, f"cannot predict the attention backend of {library_title(unknown.library)}"
    if report.unrecorded or report.unexamined:
        return "unclear", INCOMPLETE, f"no known problems, but {_not_examined(report)}{runs}"
    none = f"no new findings ({_suppressed(report)})" if suppressed else "no known problems"
    if not report.facts.has_workload:
        return "unclear", INCOMPLETE, f"{none} in this environment; no workload was given"
    return "ok", OK, f"{none}{'' if suppressed else runs}"


def _failing(predictions: Sequence[Prediction]) -> str | None:
    """Return why the attention of a library fails or refuses this job; None also where that is unknown."""
    broken = next((reason for item in predictions if (reason := certain_failure(item)) is not None), None)
    if broken is not None:
        return broken.message
    left = next((item for item in predictions if item.could_tell and item.selected is None), None)
    return None if left is None else f"no attention backend of {library_title(left.library)} serves this job"


def _not_examined(report: Report) -> str:
    """Return what was not examined: a release that is newer than the records, a package without rules, the job."""
    newer = [
        f"{item.package} {item.version} is newer than the records ({item.newest} of {report.records})"
        for item in report.unrecorded
    ]
    found = [*newer, *report.unexamined]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{found[0]}{more}"


def _suppressed(report: Report) -> str:
    """Return what the baseline has or the project ignores, in words."""
    parts = []
    if report.known:
        parts.append(f"{len(report.known)} known finding{'s' if len(report.known) > 1 else ''} in the baseline")
    if report.ignored:
        parts.append(f"ignored by the project: {', '.join(dict.fromkeys(item.rule for item in report.ignored))}")
    return "; ".join(parts)


def alone(report: Report, case: Case) -> Report:
    """The report of one of several cases: what a check of it alone would show, without fixes."""

    def of_case(findings: Sequence[Finding]) -> tuple[Finding, ...]:
        return tuple(item for item in findings if any(report.cases[number] is case for number in item.cases))

    known = {item.rule for item in of_case(report.known)}
    return report._replace(
        facts=case.facts, predictions=case.predictions, undetermined=case.undetermined, fixes=(), notes=(),
        cases=(), findings=tuple(finding for finding in case.findings if finding.rule not in known),
        known=tuple(finding for finding in case.findings if finding.rule in known),
        ignored=of_case(report.ignored),
    )  # fmt: skip


def _verdict_of_cases(report: Report) -> tuple[str, str, str]:
    """The worst that happens to any, and to how many."""
    every = [verdict(alone(report, case)) for case in report.cases]
    for wanted in ("error", "warning", "unclear"):
        hit = [sentence for look, _, sentence in every if look == wanted]
        if not hit:
            continue
        word = next(word for look, word, _ in every if look == wanted)
        summaries = [finding.summary for finding in report.findings if finding.severity == wanted]
        more = f" (and {len(summaries) - 1} more)" if len(summaries) > 1 else ""
        what = f"{summaries[0]}{more}" if summaries else hit[0]
        return wanted, word, f"{len(hit)} of {len(every)} cases: {what}"
    if any(finding.severity == Severity.WARNING for finding in report.findings):  # of the project, not of a case
        return (
            "warning",
            WARN,
            next(item.summary for item in report.findings if item.severity == Severity.WARNING),
        )
    if report.unrecorded or report.unexamined:
        return "unclear", INCOMPLETE, f"no known problems in {len(every)} cases, but {_not_examined(report)}"
    if report.known or report.ignored:
        return "ok", OK, f"no new findings in {len(every)} cases ({_suppressed(report)})"
    return "ok", OK, f"no known problems in any of {len(every)} cases"


def certain_failure(prediction: Prediction) -> Reason | None:
    """What stops the library at import or in a step; None also where that is unknown."""
    for reason in (prediction.import_error, prediction.fails_at_run):
        if reason is not None and reason.holds:
            return reason
    return None


def title_of(prediction: Prediction, backend: str | None) -> str:
    """`FusedAttention (cuDNN)` for te.fused; the selected one names the backend of prefill where that is another."""
    title = next((item.title for item in prediction.candidates if item.backend == backend), backend or "no backend")
    if backend != prediction.selected or prediction.prefill in (None, backend):
        return title
    return f"{title} for decode, {title_of(prediction, prediction.prefill)} for prefill,"


def library_title(library: str) -> str:
    """`TransformerEngine` for transformer_engine."""
    return TITLES.get(library, library)


def target_line(report: Report) -> str:
    """Return what was examined: the interpreter with its Python, or the files that state the facts."""
    return report.target


def inputs_line(report: Report) -> str:
    """Return what was read and what each input gave; empty where the other lines show it."""
    if len(report.read) < MOST_SHOWN_ELSEWHERE and not any(item.kind == "script" for item in report.read):
        return ""
    return "; ".join(f"{item.path} ({_given(item)})" for item in report.read)


def _given(item: ReadInput) -> str:
    packages = sum(key.endswith(".version") for key in item.gave)
    others = [key.partition(".")[2] for key in item.gave if not key.endswith(".version")]
    more = [f"{len(others) - MOST_GIVEN} more"] if len(others) > MOST_GIVEN else []
    counted = [f"{packages} package{'s' * (packages > 1)}"] if packages else []
    shown = ", ".join([*counted, *others[:MOST_GIVEN], *more])
    return f"{item.kind}: {shown}" if shown else item.kind


def machine_line(report: Report) -> str:
    """Return GPU and driver."""
    facts = report.facts
    gpu, sm = _known(facts, "gpu.name"), _known(facts, "gpu.sm")
    gpus = tuple(dict.fromkeys(case.gpu for case in report.cases if case.gpu))
    driver = _known(facts, "driver.version")
    if len(gpus) > 1:
        named = " | ".join(gpus)
    elif gpu or sm:
        count = facts.value("gpu.count")
        times = f"{count} × " if isinstance(count, int) and count > 1 else ""
        named = f"{times}{gpu} (sm {sm})" if gpu and sm else f"{times}{gpu or f'sm {sm}'}"
    elif facts.value("gpu.name") == ABSENT or facts.value("gpu.count") == 0:
        named = "no GPU"
    else:
        named = "GPU unknown (hint: `--gpu h100` checks for one)"
    return f"{named}, driver {driver}" if driver else named


def stack_line(report: Report) -> str:
    """Return the versions that decide, Python, torch, attention libraries, cuDNN, and the date of the records."""
    packages = ((f"{package}.version", name) for package, (_, name) in sorted(SHOWN.items(), key=itemgetter(1)))
    keys = (("python.version", "Python"), *packages, ("cudnn.version", "cuDNN"))
    found = [(name, _known(report.facts, key)) for key, name in keys]
    versions = ", ".join(f"{name} {version}" for name, version in found if version)
    return f"{versions} (records of {report.records})" if versions and report.records else versions


def job_line(report: Report) -> str:
    """The workload in a few words."""
    jobs = tuple(dict.fromkeys(case.workload for case in report.cases if case.workload))
    if len(jobs) > 1:
        return " | ".join(jobs)
    job = {
        key.removeprefix("workload."): fact.value for key, fact in report.facts.items() if key.startswith("workload.")
    }
    job = {key: value for key, value in job.items() if value is not None and value != ABSENT}
    if not job:
        return "no workload given"
    parts = [str(job[key]) for key in ("framework", "dtype", "mask") if key in job]
    if "head_dim_qk" in job:
        qk, v = job["head_dim_qk"], job.get("head_dim_v", job["head_dim_qk"])
        parts.append(f"head_dim {qk}" if qk == v else f"head_dim {qk}/{v}")
    if "num_heads" in job:
        groups = job.get("num_kv_heads", job["num_heads"])
        parts.append(f"{job['num_heads']} heads" + ("" if groups == job["num_heads"] else f" on {groups} kv heads"))
    if "seq_len_q" in job:
        q, kv = job["seq_len_q"], job.get("seq_len_kv", job["seq_len_q"])
        parts.append(f"{q} tokens" if q == kv else f"{q} × {kv} tokens")
    if isinstance(job.get("cp_size"), int) and job["cp_size"] > 1:
        parts.append(
            f"context parallel {job['cp_size']}" + (f" {job['cp_comm_type']}" if "cp_comm_type" in job else "")
        )
    return ", ".join(parts) or ", ".join(f"{key} {shown(value)}" for key, value in list(job.items())[:6])


def shown(value: Any, key: str = "") -> str:
    """Return a value as people write it; `key` decides the unit."""
    if value is None:
        return "unknown"
    if value == ABSENT:
        return "not set" if key.startswith("env.") else "not installed" if key.endswith(".version") else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_bytes") and isinstance(value, int):
        return human_bytes(value)
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


#: How a condition writes what is not wanted.
_NOT = ("not ", "none of ")


def needed(evidence: Evidence) -> str:
    """What would clear this condition, as people say it."""
    text = evidence.needs
    if text == ABSENT:  # the rule is about everyone who has it: only a variable is fixed by its absence
        return "it unset" if evidence.key.startswith("env.") else ""
    if not text.startswith(_NOT):
        return "one" if text == "present" else text
    if evidence.key.startswith("platform."):  # no job moves to another system
        return ""
    text = text.removeprefix("not ")
    if isinstance(evidence.fact.value, bool):
        return "no" if evidence.fact.value else "yes"
    return f"a value outside {text}" if text[:1] in "<>=!~" else "another value"


def _known(facts: Facts, key: str) -> Any:
    value = facts.value(key)
    return None if value == ABSENT else value


def why_not(report: Report, finding: Finding) -> str | None:
    """Why nothing clears an error, in sentences, and what would help instead; None where a fix does."""
    found = next((item for item in report.no_fix if item.rule == finding.rule), None)
    if found is None:
        return finding.no_pin
    return " ".join((*found.because, found.instead or "")).strip()
