"""Measure every attention backend that a job could use on this machine, in the interpreter of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from doctor.errors import DoctorError, NoDiagnosis
from doctor.facts.libraries.frameworks import Framework, caller_by_implementation, caller_or_default
from doctor.facts.measurement import Measurement
from doctor.model import ABSENT
from doctor.report.speed_model import Speed, SpeedRow
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import AttentionCall
from doctor.rulebook.rulebook import Rulebook
from doctor.runner.batch import KernelRunner, spent
from doctor.runner.result import KernelResult
from doctor.runner.run import PrewarmedProcess, run_program
from doctor.util.resources import programs_dir

from .carried_words import SDPA, dropped
from .confirm import job_of, words_of
from .examine import examine
from .judge import TOOL, Clock, apply_rules, require_subject
from .prewarm import prewarm_kernels
from .request import Request
from .watch import rulebook_of

PROGRAM = "measure"
#: Seconds of measuring per sequence length, of plain calls and of compiled ones each, after which the rest is "not
#: measured"; a call that runs then may end.
BUDGET = 11.0
#: Words that this program carries and the program `sdpa`, whose list of words is used here, does not.
_CARRIED = frozenset(
    (
        "bias", "alibi_slopes", "softcap", "packing", "padding_free", "use_varlen_attn", "pack_to_max_length",
        "varlen_attn", "torch_compile", "inference_kv_cache", "cache_implementation", "window",
    )
)  # fmt: skip


class Call(NamedTuple):
    """One attention call that can be measured."""

    id: str
    title: str
    select: str
    compiled: bool  # torch.compile may change its speed
    env: Mapping[str, str]
    only_compiled: bool = False  # it exists in compiled form only
    for_errors: bool = False  # it serves to find errors, not to train


@dataclass(frozen=True)
class SpeedPlan:
    """What is measured of one job, and in which interpreter."""

    known: FactResolver
    job: Mapping[str, Any]
    shapes: tuple[Mapping[str, Any], ...]  # the job, at each length
    calls: tuple[Call, ...]
    missing: tuple[str, ...]
    device: str
    compiled: bool
    python: str
    timeout: float
    variables: Mapping[str, str | None]
    target: str
    layers: tuple[str, ...]
    selected: str | None = None  # the call that the job makes, as predicted

    @property
    def budget(self) -> float:
        """Seconds after which nothing more of it is measured."""
        return BUDGET * len(self.shapes)


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
    ahead = prewarm_kernels(request._replace(run=True)) if device != "cpu" else None
    try:
        return run_plans([plan_speed(request, lengths, device, compiled)], on_step, ahead)[0]
    finally:
        if ahead is not None:
            ahead.close()


def plan_speed(request: Request, lengths: Sequence[int], device: str, compiled: bool) -> SpeedPlan:
    """Read the job and find the calls that may compute it; NoDiagnosis where nothing can run."""
    rulebook = rulebook_of(request)
    examined = examine(request, rulebook)
    assessment = apply_rules(rulebook, examined).assessment
    require_subject(rulebook, examined, assessment)
    known = assessment.known
    if examined.python is None:
        raise NoDiagnosis(f"nothing can be measured: {examined.why_not or 'there is no interpreter'}")
    if device != "cpu" and known.value("gpu.sm") in (None, ABSENT):
        gpu = known.look_up("gpu.sm")
        hidden = f": {gpu.problem}" if gpu.problem else ""
        raise NoDiagnosis(f"nothing can be measured: no GPU was found{hidden}", "`--device cpu` measures on the CPU")
    job = {word: value for word, value in job_of(known, words_of(known)).items() if word not in _COUNTS_ONLY}
    if "head_dim_qk" not in job:
        raise DoctorError("the job has no shape to measure", "name it with `--model` or `--workload`")
    calls, missing = calls_of(rulebook, known)
    shapes = tuple(job if length is None else with_length(job, length) for length in lengths or (None,))
    return SpeedPlan(
        known, job, shapes, tuple(calls), missing, device, compiled, examined.python, request.timeout,
        examined.variables, examined.target, tuple(str(layer.name) for layer in examined.layers),
        selected_call(rulebook, known),
    )  # fmt: skip


def run_plans(
    plans: Sequence[SpeedPlan],
    on_step: Callable[[str], None] = lambda text: None,
    ahead: PrewarmedProcess | None = None,
    limit: float | None = None,
) -> list[Speed]:
    """Measure several jobs of one interpreter in as few processes as possible.

    `ahead` has imported torch already; `limit`: seconds for all jobs together, in place of those for each.
    """
    clock = Clock()
    requests: list[list[dict[str, Any]]] = []
    until = 0.0
    for plan in plans:
        until += plan.budget
        requests.append(list(requests_of(plan, until if limit is None else limit)))
    everything = [request for several in requests for request in several]
    on_step(f"measuring {len(everything)} calls in {plans[0].python} …")
    answers = run_requests(plans[0], everything, ahead)
    clock.lap("measure")
    found, place = [], 0
    for plan, several in zip(plans, requests, strict=True):
        found.append(_speed(plan, several, answers[place : place + len(several)], clock))
        place += len(several)
    return found


#: Words that say how many samples a job has, and nothing about one call.
_COUNTS_ONLY = ("gradient_accumulation_steps",)


def calls_of(rulebook: Rulebook, known: FactResolver) -> tuple[list[Call], tuple[str, ...]]:
    """Return the calls of installed libraries that may compute this job, and the distributions that are missing."""
    framework = caller_or_default(known.value("workload.framework"))
    found: list[tuple[int, Call]] = []
    missing: list[str] = []
    for library in rulebook.libraries.values():
        for item in library.attention_calls:
            if item.when is not None and item.when.holds(known) is not True:
                continue
            states = [known.value(f"{name}.version") for name in item.packages]
            if any(state not in (None, ABSENT) for state in states):
                found.append((item.rank, _call(item, framework)))
            elif item.packages[0] not in missing:
                missing.append(item.packages[0])
    found.sort(key=lambda ranked: ranked[0])
    return [call for _, call in found], tuple(missing)


def _call(item: AttentionCall, framework: Framework) -> Call:
    names = (framework.word, framework.library, "*")
    words = next((item.select[name] for name in names if item.select.get(name)), "")
    return Call(item.id, item.title, words, item.compiled, item.env, item.only_compiled, item.for_errors)


def with_length(job: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return the job on sequences of this length; a job with fewer queries than keys keeps its queries."""
    queries, keys = job.get("seq_len_q"), job.get("seq_len_kv")
    if keys is None or queries is None or queries == keys:
        return {**job, "seq_len_q": length, "seq_len_kv": length}
    return {**job, "seq_len_kv": length}


def run_requests(
    plan: SpeedPlan, requests: Sequence[Mapping[str, Any]], ahead: PrewarmedProcess | None
) -> list[KernelResult]:
    """Run plain calls, and then those that need the compiler, in a process that has loaded it meanwhile."""
    later = [
        number for number, request in enumerate(requests) if plan.device != "cpu" and is_compiled(request, plan.calls)
    ]
    sooner = [number for number in range(len(requests)) if number not in set(later)]
    compiler = PrewarmedProcess(plan.python, PROGRAM) if later and not plan.variables else None
    try:
        ready = ahead if ahead is not None and ahead.python == plan.python else None
        runner = KernelRunner(plan.python, plan.timeout, programs_dir(), ready, plan.variables)
        found = dict(zip(sooner, runner.run({PROGRAM: [requests[number] for number in sooner]})[PROGRAM], strict=True))
        cases = [requests[number] for number in later]
        compiled = run_program(
            plan.python, PROGRAM, cases, timeout=plan.timeout, env=plan.variables, prewarmed=compiler
        )  # fmt: skip
        found.update(zip(later, compiled, strict=True))
    finally:
        if compiler is not None:
            compiler.close()
    return [found[number] for number in range(len(requests))]


def is_compiled(request: Mapping[str, Any], calls: Sequence[Call]) -> bool:
    """Return whether a call goes through torch.compile."""
    only = (call.id for call in calls if call.only_compiled)
    return bool(request["compiled"]) or request["measured"] in only


def requests_of(plan: SpeedPlan, until: float) -> Iterator[dict[str, Any]]:
    """Yield the requests: every call, shape by shape, and then the calls compiled, for as long as the time lasts."""

    def one(shape: Mapping[str, Any], call: Call, by_torch: bool) -> dict[str, Any]:
        env = {"env": dict(call.env)} if call.env else {}
        words = {"measured": call.id, "compiled": by_torch, "device": plan.device, "budget": until}
        return {**shape, **env, **words}

    for shape in plan.shapes:
        yield from (one(shape, call, False) for call in plan.calls if not call.for_errors)
    if plan.compiled and plan.device != "cpu":
        for shape in plan.shapes:
            yield from (one(shape, call, True) for call in plan.calls if call.compiled)
    for shape in plan.shapes:
        yield from (one(shape, call, False) for call in plan.calls if call.for_errors)


def _speed(
    plan: SpeedPlan, requests: Sequence[Mapping[str, Any]], answers: Sequence[KernelResult], clock: Clock
) -> Speed:
    by_id = {call.id: call for call in plan.calls}
    rows = []
    for request, answer in zip(requests, answers, strict=True):
        call = by_id[request["measured"]]
        rows.append(SpeedRow(measurement_of(request, answer), call.title, call.select, answer.seconds))
    rows.sort(key=lambda row: (row.measurement.ms is None, row.measurement.ms or 0.0))
    shown = [row for row in rows if not (row.measurement.compiled and _repeats_refusal(row, rows))]
    rate = next((a.observed["matrix_tflops"] for a in answers if "matrix_tflops" in a.observed), None)
    first = next((row.measurement for row in rows if row.measurement.ran), rows[0].measurement if rows else None)
    words = {} if first is None else first.as_record()
    # The process of compiled calls starts when the one of plain calls ends, and sees its load.
    plain = [answer for request, answer in zip(requests, answers, strict=True) if not is_compiled(request, plan.calls)]
    states = [answer.observed.get("gpu_state") for answer in plain]
    busy = dict.fromkeys(state["busy"] for state in states if isinstance(state, Mapping) and state.get("busy"))
    notes = [f"{text}; times and memory say little" for text in busy]
    if plan.layers:
        notes.append(f"the model has other layers that were not measured: {', '.join(plan.layers)}")
    whole = {**plan.job, **{word: words.get(word) for word in _SHOWN if words.get(word) is not None}}
    return Speed(
        tool=TOOL, target=plan.target, job=whole, rows=tuple(shown), selected=plan.selected,
        matrix_tflops=rate, not_installed=plan.missing, notes=tuple(notes),
        timing={**clock.laps(), **spent({PROGRAM: answers})},
        lost={word: why for word, why in dropped(SDPA, plan.job).items() if word not in _CARRIED},
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


def selected_call(rulebook: Rulebook, known: FactResolver) -> str | None:
    """Return the call that the job makes, by the predictions of its framework; None where it is unknown."""
    return _selected_of(rulebook, caller_or_default(known.value("workload.framework")), known)


def _selected_of(rulebook: Rulebook, framework: Framework, known: FactResolver) -> str | None:
    library = rulebook.libraries.get(framework.library)
    if library is None or library.prefix is None or not library.attention_calls:
        return None
    chosen = known.value(f"{library.prefix}.selected")
    if not isinstance(chosen, str) or not chosen.startswith(f"{library.prefix}."):
        return None
    calls = (call for one in rulebook.libraries.values() for call in one.attention_calls)
    made = next((call.id for call in calls if chosen in call.backends), None)
    if made is not None or not framework.takes_attn_implementation:
        return made or chosen
    called = caller_by_implementation(chosen.partition(".")[2])  # it leaves the choice to another library
    return None if called is None else _selected_of(rulebook, called, known)
