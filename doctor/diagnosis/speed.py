"""Measure every attention backend that a job could use on this machine, in the interpreter of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from doctor.errors import DoctorError, NoDiagnosis
from doctor.facts.measurement import Measurement
from doctor.model import ABSENT
from doctor.report.speed_model import Speed, SpeedRow
from doctor.rulebook.conditions import parse_conditions
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Library, as_tuple
from doctor.rulebook.rulebook import Rulebook, load_rulebook
from doctor.runner.batch import KernelRunner, spent
from doctor.runner.result import KernelResult
from doctor.util.resources import programs_dir

from .carried_words import SDPA, dropped
from .confirm import job_of, words_of
from .examine import examine
from .judge import TOOL, Clock, apply_rules, require_subject
from .request import Request

PROGRAM = "measure"
#: Seconds of measuring per sequence length, after which the rest is "not measured"; a case that runs then may end.
BUDGET = 22.0
#: Words that this program carries and the program `sdpa`, whose list of words is used here, does not.
_CARRIED = frozenset(
    (
        "bias", "alibi_slopes", "softcap", "packing", "padding_free", "use_varlen_attn", "pack_to_max_length",
        "varlen_attn", "torch_compile", "inference_kv_cache", "cache_implementation", "window",
    )
)  # fmt: skip
#: Backend that transformers selects -> the call that is measured.
_OF_TRANSFORMERS = {
    "hf.eager": "hf.eager", "hf.flash_attention_2": "fa.flash2", "hf.flash_attention_3": "fa.flash3",
    "hf.flash_attention_4": "fa.flash4", "hf.flex_attention": "flex.triton",
}  # fmt: skip
_TE_USERS = ("transformer_engine", "megatron")
#: Framework -> the prefix of its prediction.
_PREFIX = {"flash_attn": "fa", "xformers": "xf", "flex_attention": "flex", **dict.fromkeys(_TE_USERS, "te")}


class Call(NamedTuple):
    """One attention call that can be measured."""

    id: str
    title: str
    select: str
    compiled: bool  # torch.compile may change its speed
    env: Mapping[str, str]


def measure_speed(
    request: Request,
    lengths: Sequence[int] = (),
    device: str = "cuda",
    on_step: Callable[[str], None] = lambda text: None,
    compiled: bool = True,
) -> Speed:
    """Measure the backends of one job. NoDiagnosis where nothing can run.

    `lengths` in tokens replace its own; `compiled`: measure what torch.compile changes, too.
    """
    clock = Clock()
    rulebook = load_rulebook((*request.defaults.rules, *request.rules))
    examined = examine(request, rulebook)
    assessment = apply_rules(rulebook, examined).assessment
    require_subject(rulebook, examined, assessment)
    known = assessment.known
    clock.lap("facts")
    if examined.python is None:
        raise NoDiagnosis(f"nothing can be measured: {examined.why_not or 'there is no interpreter'}")
    if device == "cuda" and known.value("gpu.sm") in (None, ABSENT):
        gpu = known.look_up("gpu.sm")
        hidden = f": {gpu.problem}" if gpu.problem else ""
        raise NoDiagnosis(f"nothing can be measured: no GPU was found{hidden}", "`--device cpu` measures on the CPU")
    job = {word: value for word, value in job_of(known, words_of(known)).items() if word not in _COUNTS_ONLY}
    if "head_dim_qk" not in job:
        raise DoctorError("the job has no shape to measure", "name it with `--model` or `--workload`")
    calls, missing = calls_of(rulebook, known)
    shapes = [job if length is None else with_length(job, length) for length in lengths or (None,)]
    requests = list(requests_of(shapes, calls, device, compiled))
    on_step(f"measuring {len(requests)} calls in {examined.python} …")
    runner = KernelRunner(examined.python, request.timeout, programs_dir(), None, examined.variables)
    answers = runner.run({PROGRAM: requests})[PROGRAM]
    clock.lap("measure")
    return _speed(known, job, calls, requests, answers, missing, clock, examined.target, examined.layers)


#: Words that say how many samples a job has, and nothing about one call.
_COUNTS_ONLY = ("gradient_accumulation_steps",)


def calls_of(rulebook: Rulebook, known: FactResolver) -> tuple[list[Call], tuple[str, ...]]:
    """Return the calls of installed libraries that may compute this job, and the distributions that are missing."""
    framework = str(known.value("workload.framework") or "torch_sdpa")
    found, missing = [], []
    for library in rulebook.libraries.values():
        for item in library.attention_calls:
            if "when" in item and parse_conditions(item["when"]).holds(known) is not True:
                continue
            names = as_tuple(item.get("package")) or library.distributions[:1]
            states = [known.value(f"{name}.version") for name in names]
            if any(state not in (None, ABSENT) for state in states):
                found.append(_call(item, library, framework))
            elif names[0] not in missing:
                missing.append(names[0])
    order = {"sdpa": 0, "hf": 1, "torch": 2, "fa": 2, "te": 2, "flex": 4}
    found.sort(key=lambda call: order.get(call.id.partition(".")[0], 3))  # what takes seconds to compile goes last
    return found, tuple(missing)


def _call(item: Mapping[str, Any], library: Library, framework: str) -> Call:
    select = item["select"]
    words = select.get("transformers" if framework == "xtuner" else framework) or select.get("*") or ""
    compiled = str(item.get("compiled")).lower() == "true"
    return Call(item["id"], item["title"], words, compiled, {k: str(v) for k, v in (item.get("env") or {}).items()})


def with_length(job: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return the job on sequences of this length; a job with fewer queries than keys keeps its queries."""
    queries, keys = job.get("seq_len_q"), job.get("seq_len_kv")
    if keys is None or queries is None or queries == keys:
        return {**job, "seq_len_q": length, "seq_len_kv": length}
    return {**job, "seq_len_kv": length}


def requests_of(
    shapes: Sequence[Mapping[str, Any]], calls: Sequence[Call], device: str, compiled: bool
) -> Iterator[dict[str, Any]]:
    """Yield the requests: every call, shape by shape, and then the calls compiled, for as long as the budget lasts."""
    budget = BUDGET * len(shapes)

    def one(shape: Mapping[str, Any], call: Call, by_torch: bool) -> dict[str, Any]:
        env = {"env": dict(call.env)} if call.env else {}
        return {**shape, **env, "measured": call.id, "compiled": by_torch, "device": device, "budget": budget}

    for shape in shapes:
        yield from (one(shape, call, False) for call in calls)
    if compiled and device != "cpu":
        for shape in shapes:
            yield from (one(shape, call, True) for call in calls if call.compiled)


def _speed(
    known: FactResolver,
    job: Mapping[str, Any],
    calls: Sequence[Call],
    requests: Sequence[Mapping[str, Any]],
    answers: Sequence[KernelResult],
    missing: tuple[str, ...],
    clock: Clock,
    target: str,
    layers: Sequence[Any],
) -> Speed:
    by_id = {call.id: call for call in calls}
    rows = []
    for request, answer in zip(requests, answers, strict=True):
        call = by_id[request["measured"]]
        rows.append(SpeedRow(measurement_of(request, answer), call.title, call.select))
    rows.sort(key=lambda row: (row.measurement.ms is None, row.measurement.ms or 0.0))
    shown = [row for row in rows if not (row.measurement.compiled and _repeats_refusal(row, rows))]
    rate = next((a.observed["matrix_tflops"] for a in answers if "matrix_tflops" in a.observed), None)
    first = next((row.measurement for row in rows if row.measurement.ran), rows[0].measurement if rows else None)
    words = {} if first is None else first.as_record()
    states = [a.observed.get("gpu_state") for a in answers]
    busy = dict.fromkeys(state["busy"] for state in states if isinstance(state, Mapping) and state.get("busy"))
    notes = [f"{text}; times and memory say little" for text in busy]
    if layers:
        names = ", ".join(str(layer.name) for layer in layers)
        notes.append(f"the model has other layers that were not measured: {names}")
    whole = {**job, **{word: words.get(word) for word in _SHOWN if words.get(word) is not None}}
    return Speed(
        tool=TOOL, target=target, job=whole, rows=tuple(shown), selected=selected_call(known), matrix_tflops=rate,
        not_installed=missing, notes=tuple(notes), timing={**clock.laps(), **spent({PROGRAM: answers})},
        lost={word: why for word, why in dropped(SDPA, job).items() if word not in _CARRIED},
    )  # fmt: skip


_SHOWN = (
    "dtype", "batch_size", "num_heads", "num_kv_heads", "head_dim_qk", "head_dim_v", "seq_len_q", "seq_len_kv",
    "mask", "window", "bias", "softcap", "packed", "training",
)  # fmt: skip


def _repeats_refusal(row: SpeedRow, rows: Sequence[SpeedRow]) -> bool:
    """Return whether this compiled call did not run, and neither did the plain one."""
    one = row.measurement
    if one.ran:
        return False
    return any(
        other.measurement.backend == one.backend
        and not other.measurement.compiled
        and not other.measurement.ran
        and other.measurement.seq_len_kv == one.seq_len_kv
        for other in rows
    )


def measurement_of(request: Mapping[str, Any], answer: KernelResult) -> Measurement:
    """Return the record of one answer; a crash or a hang is one, too."""
    names = {item.name for item in fields(Measurement)}
    values = {name: value for name, value in answer.observed.items() if name in names}
    for name in ("window", "kernels"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    if "gpu" not in values:  # the process died, or torch is missing
        keys = request.get("seq_len_kv") or request.get("seq_len_q") or 0
        values = {
            "gpu": "unknown", "sm": None, "torch": "unknown", "dtype": request.get("dtype") or "bfloat16",
            "batch_size": request.get("batch_size") or 1, "num_heads": request.get("num_heads") or 0,
            "num_kv_heads": request.get("num_kv_heads") or request.get("num_heads") or 0,
            "head_dim_qk": request.get("head_dim_qk") or 0,
            "head_dim_v": request.get("head_dim_v") or request.get("head_dim_qk") or 0,
            "seq_len_q": request.get("seq_len_q") or 0, "seq_len_kv": keys, "mask": request.get("mask") or "no_mask",
            "training": bool(request.get("training", True)), "compiled": bool(request.get("compiled")),
            "library": None,
        }  # fmt: skip
    values.setdefault("library", None)
    values.update(backend=request["measured"], outcome=str(answer.outcome), reason=answer.reason)
    return Measurement(**values)


def selected_call(known: FactResolver) -> str | None:
    """Return the call that the job makes, by the predictions of its framework; None where it is unknown."""
    framework = known.value("workload.framework")
    if framework in ("transformers", "xtuner"):
        chosen = known.value("hf.selected")
        if chosen != "hf.sdpa":
            return _OF_TRANSFORMERS.get(str(chosen))
        framework = "torch_sdpa"
    prefix = _PREFIX.get(str(framework), "sdpa" if framework in (None, "torch_sdpa") else None)
    if prefix is None:
        return None
    chosen = known.value(f"{prefix}.selected")
    if not isinstance(chosen, str) or not chosen.startswith(f"{prefix}."):
        return None
    if chosen.startswith("te.flash"):
        return "te.flash"
    return "xformers" if prefix == "xf" else chosen
