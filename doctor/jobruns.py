"""The job itself on the GPU: which kernels show its attention, and what their answers say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .known import Known
from .model import ABSENT, Confirmation, Evidence, Fact, Finding, Prediction
from .target import Answer

UNPREDICTED = "UNPREDICTED"

_TE_USERS = ("transformer_engine", "megatron")
_SDPA_USERS = ("torch_sdpa", "transformers", None)
#: Kernel → prefix of the predictions it can contradict.
_PREDICTED_BY = {"te_attention": "te", "sdpa": "sdpa"}


def job_requests(known: Known, job: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(kernel, request) for each kernel that shows the job's own attention; none for a job without a shape."""
    if "head_dim_qk" not in job:
        return []
    requests: list[tuple[str, dict[str, Any]]] = []
    framework = known.value("workload.framework")
    implementation = known.value("workload.attn_implementation")
    te = known.value("transformer-engine.version")
    if framework in _TE_USERS and te not in (None, ABSENT):
        requests.append(("te_attention", dict(job)))
    elif framework in _SDPA_USERS and implementation in (None, ABSENT, "sdpa"):
        requests.append(("sdpa", {**job, "backend": "default"}))
    if known.value("workload.qkv_interleaved"):
        requests.append(("strided_qkv", dict(job)))
    if known.value("workload.step_bottom_right"):
        requests.append(("cudnn_sdpa", {**job, "mask": "causal_bottom_right"}))
    return requests


def judge_run(
    kernel: str, request: Mapping[str, Any], answer: Answer, known: Known, predictions: Sequence[Prediction]
) -> Confirmation:
    """What became of a run of the job: healthy, failed, or inconclusive where nothing was asked of the GPU."""
    verdict, reason = _verdict(kernel, answer, known)
    if verdict == "healthy":
        contradiction = _contradiction(kernel, answer, predictions)
        reason = contradiction or _healthy(answer)
    return Confirmation(verdict, kernel, request, answer.outcome, answer.observed, reason, answer.seconds)


def _verdict(kernel: str, answer: Answer, known: Known) -> tuple[str, str]:
    observed = answer.observed
    if answer.outcome == "unavailable":
        return "inconclusive", answer.reason
    if answer.outcome == "refused":
        if kernel == "cudnn_sdpa" and not _on_cudnn(known):
            return "inconclusive", f"cuDNN refuses it, and the job does not depend on cuDNN: {answer.reason}"
        return "failed", answer.reason
    if answer.outcome != "ran":
        return "failed", answer.reason
    if observed.get("wrong"):
        return "failed", _wrong(observed)
    return "healthy", ""


def _on_cudnn(known: Known) -> bool:
    return bool(known.value("te.selected") == "te.fused" or known.value("sdpa.selected") == "sdpa.cudnn")


def _wrong(observed: Mapping[str, Any]) -> str:
    """The numbers that are wrong, next to the bound."""
    where = observed.get("wrong_backends")
    if where:
        return f"right on contiguous copies, wrong on views of one projection: {', '.join(map(str, where))}"
    errors, bound = observed.get("errors"), observed.get("bound")
    if not isinstance(errors, Mapping) or not isinstance(bound, Mapping):
        return "the result is wrong"
    parts = []
    for name in observed.get("offenders") or errors:
        error = errors.get(name)
        if isinstance(error, Mapping):
            limit = bound.get("out" if name == "out" else "grad")
            parts.append(f"{name} is off by {_number(error.get('rel'))} (bound {_number(limit)})")
    return "the result is wrong: " + ", ".join(parts or ["see `observed`"])


def _healthy(answer: Answer) -> str:
    observed = answer.observed
    parts = []
    chosen = observed.get("selected") or ", ".join(map(str, observed.get("ran") or ()))
    if chosen:
        parts.append(f"on {chosen}")
    errors = observed.get("errors")
    if isinstance(errors, Mapping):
        worst = [
            error["rel"] for error in errors.values() if isinstance(error, Mapping) and _is_number(error.get("rel"))
        ]
        if worst:
            parts.append(f"right to {_number(max(worst))}")
    if observed.get("executed") is False:
        parts.append(f"only asked, not run: {observed.get('not_executed_because')}")
    return ", ".join(parts)


def _contradiction(kernel: str, answer: Answer, predictions: Sequence[Prediction]) -> str:
    """A sentence if the library did something else than was predicted, else nothing."""
    prefix = _PREDICTED_BY.get(kernel)
    prediction = next((item for item in predictions if _prefix(item) == prefix), None)
    if prefix is None or prediction is None or not prediction.could_tell:
        return ""
    observed = answer.observed
    if kernel == "te_attention":
        really = {observed["selected"]} if "selected" in observed else set()
    else:
        really = {f"{prefix}.{family}" for family in observed.get("ran") or ()}
    if not really or prediction.selected in really:
        return ""
    ran = ", ".join(str(item) for item in really)
    return f"{prediction.library} took {ran}, where {prediction.selected or 'no backend'} was predicted"


def _prefix(prediction: Prediction) -> str | None:
    return prediction.candidates[0].backend.split(".")[0] if prediction.candidates else None


def unpredicted(run: Confirmation, predicted: bool) -> Finding | None:
    """A finding for a run that contradicts the rulebook: it failed with no error predicted, or chose otherwise."""
    if run.verdict == "failed" and not predicted:
        severity = "error"
        summary = f"the job's attention does not work here, and no rule says why (`{run.kernel}`: {run.outcome})"
    elif run.verdict == "healthy" and "was predicted" in run.reason:
        severity, summary = "warning", "the library chose another attention backend than predicted"
    else:
        return None
    outcome = Fact("kernel.outcome", run.outcome, f"kernel `{run.kernel}`")
    return Finding(
        rule=UNPREDICTED,
        name="kernel-contradicts-the-rulebook",
        severity=severity,
        verdict="fires",
        summary=summary,
        message=run.reason or run.outcome,
        why="The rulebook knows no cause for what this kernel saw; please report it with a `snapshot` of this machine.",
        evidence=(Evidence("kernel.outcome", run.outcome, "ran, with the right result", outcome, True),),
        references=(),
        confirmation=Confirmation(
            "confirmed", run.kernel, run.request, run.outcome, run.observed, run.reason, run.seconds
        ),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> str:
    return f"{value:.2g}" if _is_number(value) else str(value)
