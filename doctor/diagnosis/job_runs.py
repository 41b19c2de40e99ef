"""The job itself on the GPU: which kernels show its attention, and what their answers say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from doctor.facts.libraries.frameworks import Framework, caller_or_default
from doctor.model import ABSENT, Confirmation, Evidence, Fact, Finding, Prediction, RunVerdict, Severity, Verdict
from doctor.packages.release_wheels import PACKAGE
from doctor.rulebook.resolver import FactResolver
from doctor.runner.result import KernelOutcome, KernelResult, out_of_memory

from .carried_words import sentence

UNPREDICTED = "UNPREDICTED"

#: Kernel programs by what they run: TransformerEngine, torch or what replaces it there, flash-attn.
_TE, _SDPA, _FLASH_ALONE = "te_attention", "sdpa", "flash_attention"
#: What TransformerEngine calls its ways to communicate, the default first.
_CP_OF_TE = ("p2p", "all_gather", "a2a", "a2a+p2p")
#: Generation of flash-attn → its distribution.
_FLASH = {"2": PACKAGE, "3": "flash-attn-3", "4": "flash-attn-4"}
#: Kernel → prefix of the predictions it can contradict.
_PREDICTED_BY = {_TE: "te", _SDPA: "sdpa"}
#: Prefix of predictions → of the engines of `context_parallel` that run the same library over several ranks.
_OVER_RANKS = {"te": "te.", "sdpa": "torch."}
#: Engine of context parallelism → the `cp_comm_type` that it runs.
_COMM_OF = {"torch.allgather": "all_gather", "torch.alltoall": "a2a", "ring_flash_attn.llama3": "all_gather"}
_SWITCHES = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
#: Megatron's attention backend → the switches of TransformerEngine that it sets.
#: Source: Megatron-LM, LanguageModule._set_attention_backend.
_SWITCHED = {"auto": "111", "flash": "100", "fused": "010", "unfused": "001"}
#: Words that say that a batch is packed, which a layout of packed sequences says as well.
_PACKED = ("packing", "padding_free", "use_varlen_attn", "pack_to_max_length")
#: Backend of TransformerEngine → family that its kernels' names belong to; unfused attention has no name of its own.
_TE_FAMILIES = {"te.fused": "cudnn", "te.flash2": "flash", "te.flash3": "flash", "te.flash4": "flash"}


def job_requests(known: FactResolver, job: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(kernel, request) for each kernel that shows the job's own attention; none for a job without a shape.

    A word that a request expresses in another way, as `cp_comm_type` by the engine, is not in it.
    """
    if "head_dim_qk" not in job:
        return []
    requests: list[tuple[str, dict[str, Any]]] = []
    framework = caller_or_default(known.value("workload.framework"))
    implementation = known.value("workload.attn_implementation")
    te = known.value("transformer-engine.version")
    if framework.kernel == _TE and te not in (None, ABSENT):
        requests.append((_TE, _without_packing(_with_switches(job))))
    elif framework.kernel == _SDPA and implementation in (None, ABSENT, "sdpa"):
        requests.append((_SDPA, {**job, "backend": "default"}))
    flash = _flash(known, framework, implementation)
    if flash is not None:
        requests.append((_FLASH_ALONE, {**job, "backend": flash}))
    if known.value("workload.qkv_interleaved"):
        requests.append(("strided_qkv", {**job, **_who_reads_views(framework, implementation, job)}))
    requests += _context_parallel(known, job)
    if known.value("workload.step_bottom_right"):
        requests.append(("cudnn_sdpa", _bottom_right_step(known, job)))
    return requests


def _with_switches(job: Mapping[str, Any]) -> dict[str, Any]:
    """The job with Megatron's attention backend as the variables that Megatron sets for it."""
    request = dict(job)
    switched = _SWITCHED.get(str(job.get("attention_backend")))
    if switched is not None:
        del request["attention_backend"]
        request["env"] = dict(zip(_SWITCHES, switched, strict=True))
    return request


def _without_packing(job: Mapping[str, Any]) -> dict[str, Any]:
    """The job without the words that its layout of packed sequences expresses."""
    packed = str(job.get("qkv_layout") or "").startswith("t")
    return {word: value for word, value in job.items() if not packed or word not in _PACKED}


def _bottom_right_step(known: FactResolver, job: Mapping[str, Any]) -> dict[str, Any]:
    """The step of the job that needs the bottom-right mask: under all-gather, a chunk of queries and all keys."""
    masks = known.value("workload.step_masks") or ()
    mask = next((mask for mask in masks if mask.endswith("bottom_right")), "causal_bottom_right")
    step = {word: value for word, value in job.items() if word not in ("cp_size", "cp_comm_type")}
    ranks, queries = job.get("cp_size"), job.get("seq_len_q")
    if isinstance(ranks, int) and ranks > 1 and isinstance(queries, int):
        step.update(seq_len_q=max(queries // (2 * ranks), 1), seq_len_kv=job.get("seq_len_kv") or queries)
    return {**step, "mask": mask}


def _context_parallel(known: FactResolver, job: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The job's context parallelism on real ranks, where two GPUs are there: one per rank, as many as there are."""
    ranks, gpus = known.value("workload.cp_size"), known.value("gpu.count")
    if not isinstance(ranks, int) or ranks < 2 or not isinstance(gpus, int) or gpus < 2:
        return []
    framework = caller_or_default(known.value("workload.framework"))
    comm = known.value("workload.cp_comm_type")
    request = dict(job)
    if framework.kernel == _TE and known.value("transformer-engine.version") not in (None, ABSENT):
        engine = f"te.{comm if comm in _CP_OF_TE else _CP_OF_TE[0]}"
        request = _with_switches(job)
    elif known.value("ring-flash-attn.version") not in (None, ABSENT):
        engine = "ring_flash_attn.llama3"  # what its adapter puts into transformers, for packed batches
    elif framework.kernel == _SDPA:
        engine = "torch.alltoall" if comm == "a2a" else "torch.allgather"
    else:
        return []
    if _COMM_OF.get(engine, engine.removeprefix("te.")) == comm:
        request.pop("cp_comm_type", None)
    packed = str(job.get("qkv_layout") or "").startswith("thd") or engine == "ring_flash_attn.llama3"
    if packed:
        request = {word: value for word, value in request.items() if word not in _PACKED}
    return [("context_parallel", {**request, "engine": engine, "packed": packed, "ranks": min(ranks, gpus)})]


def _flash(known: FactResolver, framework: Framework, implementation: object) -> str | None:
    """The flash-attn that the job calls by itself, if it is installed."""
    is_flash = framework.kernel == _FLASH_ALONE
    may_name_it = framework.takes_attn_implementation or known.value("workload.framework") is None
    generation = "2" if is_flash else str(implementation).removeprefix("flash_attention_")
    distribution = _FLASH.get(generation) if is_flash or (framework.kernel and may_name_it) else None
    if distribution is None or known.value(f"{distribution}.version") in (None, ABSENT):
        return None
    return f"flash{generation}"


def _who_reads_views(framework: Framework, implementation: object, job: Mapping[str, Any]) -> dict[str, list[str]]:
    """The backends that a job of torch alone can come to: importing the others takes seconds and adds nothing."""
    if framework.kernel != _SDPA:
        return {}
    if job.get("sdpa_backend") is not None:
        return {"backends": [f"sdpa.{job['sdpa_backend']}"]}
    flash = ["flash_attn"] if str(implementation).startswith("flash_attention") else []
    return {"backends": ["sdpa.flash", "sdpa.efficient", "sdpa.cudnn", "sdpa.math", "cudnn.frontend", *flash]}


def judge_run(
    kernel: str,
    request: Mapping[str, Any],
    answer: KernelResult,
    known: FactResolver,
    predictions: Sequence[Prediction],
    lost: Mapping[str, str],
) -> Confirmation:
    """What became of a run of the job: healthy, failed, or inconclusive where nothing ran or another job did.

    `lost`: words of the job that did not reach the kernel, with the reasons.
    """
    verdict, reason = _verdict(kernel, answer, known)
    contradiction = ""
    if verdict == RunVerdict.HEALTHY:
        contradiction = "" if lost else _contradiction(kernel, request, answer, predictions)
        reason = ", ".join(part for part in (contradiction or _healthy(answer), cost(answer.observed)) if part)
    made = Confirmation(
        verdict, kernel, request, answer.outcome, answer.observed, reason, own_time(answer), bool(contradiction)
    )
    return if_carried(made, answer, lost)


def if_carried(made: Confirmation, answer: KernelResult, lost: Mapping[str, str]) -> Confirmation:
    """The confirmation, inconclusive where words of the job did not reach the kernel; each is named.

    What fails before the call, in an import or in making the context, fails whatever the words say.
    """
    if not lost or made.verdict == RunVerdict.INCONCLUSIVE or _before_the_call(answer):
        return made
    seen = f"; the run without {'it' if len(lost) == 1 else 'them'}: {made.reason}" if made.reason else ""
    observed = {**made.observed, "not_carried": dict(lost)}
    reason = sentence(lost) + seen
    return made._replace(verdict=RunVerdict.INCONCLUSIVE, observed=observed, reason=reason, contradicts=False)


def _before_the_call(answer: KernelResult) -> bool:
    ended = answer.outcome in (KernelOutcome.FAILED, KernelOutcome.CRASHED, KernelOutcome.TIMEOUT)
    where = answer.where or ""
    return ended and (where.startswith("import ") or where == "cuda context")


def own_time(answer: KernelResult) -> float:
    """Seconds of the case itself, without what starting, importing and the CUDA context took."""
    return answer.spent.get("case", answer.seconds)


def no_memory(answer: KernelResult) -> bool:
    """Whether the case ran out of memory: kernels need little, so other processes hold it."""
    return out_of_memory(answer)


def _verdict(kernel: str, answer: KernelResult, known: FactResolver) -> tuple[RunVerdict, str]:
    observed = answer.observed
    if answer.outcome == "unavailable":
        return RunVerdict.INCONCLUSIVE, answer.reason
    if no_memory(answer):
        gpu = observed.get("gpu")
        busy = gpu.get("busy") if isinstance(gpu, Mapping) else None
        return RunVerdict.INCONCLUSIVE, f"{busy}: {answer.reason}" if busy else answer.reason
    if answer.outcome == "refused":
        if kernel == "cudnn_sdpa" and not _on_cudnn(known):
            return RunVerdict.INCONCLUSIVE, f"cuDNN refuses it, and the job does not depend on cuDNN: {answer.reason}"
        return RunVerdict.FAILED, answer.reason
    if answer.outcome != "ran":
        return RunVerdict.FAILED, answer.reason
    if observed.get("wrong"):
        return RunVerdict.FAILED, _wrong(observed)
    return RunVerdict.HEALTHY, ""


def what_was_seen(answer: KernelResult) -> str:
    """Return the numbers of a case that ran: those that are wrong, else the largest error."""
    return _wrong(answer.observed) if answer.observed.get("wrong") else _healthy(answer)


def _on_cudnn(known: FactResolver) -> bool:
    return bool(known.value("te.selected") == "te.fused" or known.value("sdpa.selected") == "sdpa.cudnn")


def _wrong(observed: Mapping[str, Any]) -> str:
    """The numbers that are wrong, next to the bound."""
    where = observed.get("wrong_backends")
    if where:
        return f"right on contiguous copies, wrong on views of one projection: {', '.join(map(str, where))}"
    errors, bound = observed.get("errors"), observed.get("bound")
    if not isinstance(errors, Mapping) or not isinstance(bound, Mapping):
        return "the result is wrong"
    if not errors and observed.get("offenders"):  # under dropout, its mean, its scatter and its gradients are judged
        return f"the result is wrong: {', '.join(map(str, observed['offenders']))}"
    parts = []
    for name in observed.get("offenders") or errors:
        error = errors.get(name)
        if isinstance(error, Mapping):
            limit = bound.get(name, bound.get("grad"))
            parts.append(f"{name} is off by {_number(error.get('rel'))} (bound {_number(limit)})")
    return "the result is wrong: " + ", ".join(parts or ["see `observed`"])


def _healthy(answer: KernelResult) -> str:
    observed = answer.observed
    parts = []
    chosen = observed.get("selected") or ", ".join(map(str, observed.get("ran") or ()))
    if chosen:
        parts.append(f"on {chosen}")
    backends = observed.get("backends")
    if isinstance(backends, Mapping):
        names = [
            str(name)
            for name, per_layout in backends.items()
            if isinstance(per_layout, Mapping) and _all_ran(per_layout)
        ]
        parts.append(f"views of one projection are read right by {', '.join(names)}" if names else "no backend ran")
    errors = observed.get("errors")
    if isinstance(errors, Mapping):
        worst = [
            error["rel"] for error in errors.values() if isinstance(error, Mapping) and _is_number(error.get("rel"))
        ]
        if worst:
            parts.append(f"right to {_number(max(worst))}")
    if observed.get("executed") is False:
        parts.append(f"only queried, not run: {observed.get('not_executed_because')}")
    if observed.get("behind_others"):
        parts.append(f"in a process of its own; behind other cases it showed: {observed['behind_others']}")
    return ", ".join(parts)


def _all_ran(layouts: Mapping[str, Any]) -> bool:
    """Whether a backend ran every layout that it was given."""
    results = [result for result in layouts.values() if isinstance(result, Mapping)]
    return bool(results) and all(result.get("outcome") == "ran" for result in results)


def cost(observed: Mapping[str, Any]) -> str:
    """Time and memory against what the case needs: `2.1 ms (1.8× its FLOPs in a matrix product), 40 MiB (1.1× …)`."""
    parts = []
    seconds, peak = _number_or_none(observed.get("seconds")), _number_or_none(observed.get("peak_bytes"))
    flops, size = _number_or_none(observed.get("times_flops")), _number_or_none(observed.get("times_bytes"))
    if seconds is not None:
        compared = f" ({_times(flops)} a matrix product of its FLOPs)" if flops is not None else ""
        parts.append(f"{seconds * 1e3:.3g} ms{compared}")
    if peak is not None:
        compared = f" ({_times(size)} its tensors)" if size is not None else ""
        parts.append(f"{peak / 2**20:.3g} MiB{compared}")
    return ", ".join(parts)


def _times(ratio: float) -> str:
    return f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.1f}×"


def _contradiction(
    kernel: str, request: Mapping[str, Any], answer: KernelResult, predictions: Sequence[Prediction]
) -> str:
    """A sentence if the library did something else than was predicted, else nothing."""
    over_ranks = kernel == "context_parallel" and str(request.get("engine")).startswith(_OVER_RANKS["sdpa"])
    prefix = "sdpa" if over_ranks else _PREDICTED_BY.get(kernel)
    prediction = next((item for item in predictions if _prefix(item) == prefix), None)
    if prefix is None or prediction is None or not prediction.could_tell:
        return ""
    observed = answer.observed
    families = {str(family) for family in observed.get("ran") or ()}
    wanted = prediction.selected or "no backend"
    if kernel == _TE:
        chosen = observed.get("selected")
        if "selected" in observed and chosen != prediction.selected:
            return f"{prediction.library} took {chosen}, where {wanted} was predicted"
        family = _TE_FAMILIES.get(str(prediction.selected))
        if families and family and family not in families:
            ran = ", ".join(sorted(families))
            return f"{prediction.library} took {chosen}, but the kernels that ran are of {ran}: {wanted} was predicted"
        return ""
    if not families or str(prediction.selected).partition(".")[2] in families:
        return ""
    ran = ", ".join(f"{prefix}.{family}" for family in sorted(families))
    return f"{prediction.library} took {ran}, where {wanted} was predicted"


def _prefix(prediction: Prediction) -> str | None:
    return prediction.candidates[0].backend.split(".")[0] if prediction.candidates else None


#: What a run of the job says of a finding that predicts its failure.
_OF_JOB = {RunVerdict.FAILED: RunVerdict.CONFIRMED, RunVerdict.HEALTHY: RunVerdict.REFUTED}


def confirmed_over_ranks(
    finding: Finding, predictions: Sequence[Prediction], runs: Sequence[Confirmation]
) -> Confirmation | None:
    """Confirm a predicted failure of the job by its run over context-parallel ranks, if that failed; else None."""
    for prediction in predictions:
        if prediction.fails_at_run is None or prediction.fails_at_run.rule != finding.rule:
            continue
        run = _over_ranks(prediction, runs)
        if run is not None and run.verdict == RunVerdict.FAILED:
            return run._replace(verdict=RunVerdict.CONFIRMED)
    return None


def _over_ranks(prediction: Prediction, runs: Sequence[Confirmation]) -> Confirmation | None:
    """Return the job's run over several ranks through the library of the prediction."""
    engine = _OVER_RANKS.get(str(_prefix(prediction)))
    for run in runs:
        if run.kernel == "context_parallel" and engine and str(run.request.get("engine")).startswith(engine):
            return run
    return None


def _of_one_rank(run: Confirmation) -> bool:
    """Whether the run left out what the job does: the library was only queried, or one rank ran for several."""
    ranks = run.request.get("cp_size")
    return run.observed.get("executed") is False or (isinstance(ranks, int) and ranks > 1)


def confirmation_from_job_run(
    finding: Finding, predictions: Sequence[Prediction], runs: Sequence[Confirmation]
) -> Confirmation | None:
    """What the job's own run says of a finding that names no kernel, but that its library cannot import or will fail.

    None where the finding says no such thing, or nothing of that library was run.
    """
    for prediction in predictions:
        run = next((run for run in runs if _PREDICTED_BY.get(run.kernel) == _prefix(prediction)), None)
        if run is None:
            continue
        if prediction.import_error is not None and prediction.import_error.rule == finding.rule:
            imported = run.outcome in ("ran", "refused")
            verdict = RunVerdict.CONFIRMED if run.verdict == RunVerdict.FAILED else RunVerdict.INCONCLUSIVE
            verdict = RunVerdict.REFUTED if imported else verdict
        elif prediction.fails_at_run is not None and prediction.fails_at_run.rule == finding.rule:
            verdict = _OF_JOB.get(run.verdict, RunVerdict.INCONCLUSIVE)
            if verdict == RunVerdict.REFUTED and _of_one_rank(run):
                verdict = RunVerdict.INCONCLUSIVE
        else:
            continue
        return run._replace(verdict=verdict)
    return None


def unpredicted(run: Confirmation, foreseen: bool) -> Finding | None:
    """A finding for a run that contradicts the rulebook: it failed with no error predicted, or chose otherwise."""
    if run.verdict == RunVerdict.FAILED and not foreseen:
        severity = Severity.ERROR
        summary = f"the job's attention does not work here, and no rule says why (`{run.kernel}`: {_became(run)})"
    elif run.verdict == RunVerdict.HEALTHY and run.contradicts:
        severity, summary = Severity.WARNING, "the library chose another attention backend than predicted"
    else:
        return None
    outcome = Fact("kernel.outcome", run.outcome, f"kernel `{run.kernel}`")
    return Finding(
        rule=UNPREDICTED,
        name="kernel-contradicts-the-rulebook",
        severity=severity,
        verdict=Verdict.UNPREDICTED,
        summary=summary,
        message=run.reason or run.outcome,
        why="The rulebook knows no cause for what this kernel saw; please report it with a `snapshot` of this machine.",
        evidence=(Evidence("kernel.outcome", run.outcome, "ran, with the right result", outcome, True),),
        references=(),
        confirmation=run._replace(verdict=RunVerdict.UNPREDICTED),
    )


def _became(run: Confirmation) -> str:
    return "wrong result" if run.outcome == "ran" else run.outcome


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number_or_none(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _number(value: Any) -> str:
    return f"{value:.2g}" if _is_number(value) else str(value)
