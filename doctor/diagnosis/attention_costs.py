"""What the job's attention costs with each backend that serves it, and the finding where another one is far better.

Times come from the recorded curves, memory from the shapes. Another backend is right for the job only if the rules find
nothing against it that they do not find against the selected one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from doctor.facts.measurement import MORE_MEMORY, SLOWER
from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, AttentionCost, BackendCost, Facts, Finding, Severity
from doctor.rulebook.backends import INAPPLICABLE, Predictor, order_that_counts
from doctor.rulebook.conditions import parse_conditions
from doctor.rulebook.evaluate import Assessment, evaluate
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.speed.curves import Machine, Records, load_records, peak
from doctor.rulebook.speed.shape import CallShape, Unshaped, needs_of, shape_of

_RULES = ("SPEED001", "SPEED002", "SPEED003", "SPEED004")
_LEAST_MEMORY, _PART_OF_GPU = 4 << 30, 20
#: The part of a layer's time that another backend must save.
_LEAST_SHARE = 0.1
_SOURCE = "compared with the other backends of the job"
_HELD_BACK = ("workload.packing", "workload.padding_free", "workload.varlen_attn", "workload.use_varlen_attn")


class Option(NamedTuple):
    """One backend of the job, how it is selected, and which facts of the job then change."""

    backend: str
    select: str
    changes: Facts


class Comparison(NamedTuple):
    """The backends of one call with their figures; `options[0]` is the selected one."""

    options: tuple[Option, ...]
    costs: tuple[BackendCost, ...]  # in the order of the options
    basis: str
    shape: CallShape | None
    machine: Machine | None


def compare(rulebook: Rulebook, known: FactResolver, *, every: bool = True) -> Comparison | None:
    """Return the backends of the job with their predicted cost; None where none is selected.

    Without `every`, the selected one alone where the records know none that is far better on this GPU.
    """
    selected = selected_backend(rulebook, known)
    if selected is None:
        return None
    records = load_records()
    own = Option(selected, "", Facts())
    shape = _shape(known)
    machine = records.machine(known.value("gpu.sm"), _text(known.value("gpu.name")))
    if not every and (shape is None or not _may_be_beaten(records, machine, known, own, shape)):
        return Comparison((own,), (), "", None, machine)
    options = (own, *_others(rulebook, known, records, selected))
    if shape is None:
        return Comparison(options, (), "", None, machine)
    costs = tuple(_cost(records, machine, known, option, shape, option.backend == selected) for option in options)
    return Comparison(options, costs, _basis(machine), shape, machine)


def _shape(known: FactResolver) -> CallShape | None:
    """Return the shape of the job's call, or None where the job does not describe one."""
    found = shape_of(known.value)
    return None if found is None or isinstance(found, Unshaped) or not _describes(known) else found


def _may_be_beaten(
    records: Records, machine: Machine | None, known: FactResolver, own: Option, shape: CallShape
) -> bool:
    """Whether any recorded backend would be far better, whether or not this job can use it."""
    mine = _cost(records, machine, known, own, shape, True)
    for backend in records.traits:
        other = _cost(records, machine, known, Option(backend, "", Facts()), shape, False)
        if mine.milliseconds and other.milliseconds and mine.milliseconds >= SLOWER * other.milliseconds:
            return True
        if mine.peak and other.peak and _far_leaner(known, mine.peak, other.peak):
            return True
    return machine is None and shape.written_mask


def costs_of(
    rulebook: Rulebook, known: FactResolver, compared: Comparison | None, layer: str = ""
) -> tuple[AttentionCost, ...]:
    """Return what each backend takes for one kind of layer, and for full layers next to layers with a window."""
    kinds, window = known.value("workload.layer_types"), known.value("workload.window")
    mixed = isinstance(kinds, tuple) and {"sliding_attention", "full_attention"} <= {*kinds} and not layer
    if not mixed or not isinstance(window, tuple):
        return _cost_of(compared, layer)
    changes = Facts((fact("workload.window", ABSENT, "the full layers have none"),))
    full = known.with_(changes, Predictor(rulebook))
    windowed = _cost_of(compared, "sliding_attention layers")
    return (*windowed, *_cost_of(compare(rulebook, full), "full_attention layers"))


def _cost_of(compared: Comparison | None, layer: str) -> tuple[AttentionCost, ...]:
    if compared is None or compared.shape is None or not any(item.memory for item in compared.costs):
        return ()
    unknown = float("inf")
    ordered = sorted(compared.costs, key=lambda item: unknown if item.milliseconds is None else item.milliseconds)
    return (AttentionCost(layer, _words(compared.shape), compared.basis, tuple(ordered)),)


def with_better_backend(
    rulebook: Rulebook, known: FactResolver, compared: Comparison | None, found: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """Return the findings, and one that names a far better backend; where another names the same, it says so too."""
    facts = _judged(rulebook, known, compared, found)
    if facts is None:
        return found
    more = evaluate(rulebook.only(_RULES), known.given.with_(*facts.values())).findings
    for item in more:
        general = [name for name in rulebook.rules[item.rule].yields_to if name not in _RULES]
        same = next((other for other in found if other.rule in general), None)
        if same is None:
            found = (*found, item)
        else:
            longer = same._replace(message=f"{same.message}; {item.message}")
            found = tuple(longer if other is same else other for other in found)
    return tuple(sorted(found, key=lambda item: item.severity.rank))


def selected_backend(rulebook: Rulebook, known: FactResolver) -> str | None:
    """Return the backend whose kernels run: of the library that the chosen implementation calls; None if unknown."""
    outer = None
    for prefix, library in rulebook.by_prefix.items():
        if library.applies is not None and library.applies.holds(known) is not True:
            continue
        selected = known.value(f"{prefix}.selected")
        if selected in (None, ABSENT, INAPPLICABLE):
            continue
        if prefix != "hf":
            return str(selected)
        outer = str(selected)
    return outer if outer == "hf.eager" else None


def _only_backend(rulebook: Rulebook, known: FactResolver) -> str | None:
    """Return the backend that runs if any does, where a fact is missing to know that it does."""
    for library in rulebook.by_prefix.values():
        if library.applies is None or library.applies.holds(known) is not True or len(library.backends) < 2:
            continue
        order = order_that_counts(library.preferences, known)
        possible = [name for name in order or () if known.value(f"{name}.available") is not False]
        return possible[0] if len(possible) == 1 else None
    return None


def _others(rulebook: Rulebook, known: FactResolver, records: Records, selected: str) -> Iterator[Option]:
    """Yield the other backends: of the same library where they are available, and of other calls of the framework."""
    seen = {selected}
    prefix = selected.partition(".")[0]
    for backend in rulebook.by_prefix[prefix].backends:
        if backend.id not in records.own_choice or backend.id in seen:
            continue
        if known.value(f"{backend.id}.available") is True and _holds_for(records, backend.id, known):
            seen.add(backend.id)
            changes = Facts(fact(key, value, _SOURCE) for key, value in records.own_choice[backend.id].items())
            yield Option(backend.id, f"`{records.select[backend.id]}`", changes)
    framework = known.value("workload.framework")
    for call in records.other_calls:
        if framework not in call["framework"]:
            continue
        changes = Facts(fact(key, value, _SOURCE) for key, value in call["facts"].items())
        there = known.with_(changes, Predictor(rulebook))
        backend_there = selected_backend(rulebook, there)
        if backend_there is not None and backend_there not in seen and _holds_for(records, backend_there, there):
            seen.add(backend_there)
            yield Option(backend_there, f"`{call['select']}`", changes)


def _holds_for(records: Records, backend: str, known: FactResolver) -> bool | None:
    """Whether the records speak of these releases; None where that is unknown."""
    wanted = records.holds_for.get(backend)
    return wanted is None or parse_conditions(wanted).holds(known)


def _describes(known: FactResolver) -> bool:
    """Whether one call of this shape is what a layer does: no packed rows, no context parallelism, no dropout."""
    layout = known.value("workload.qkv_layout")
    return not (
        any(known.value(key) is True for key in _HELD_BACK)
        or (isinstance(layout, str) and layout.startswith("t"))
        or (known.value("workload.cp_size") or 1) not in (1, ABSENT)
        or (known.value("workload.dropout") or 0) not in (0, ABSENT)
        or known.value("workload.deterministic") is True
    )


def _cost(
    records: Records, machine: Machine | None, known: FactResolver, option: Option, shape: CallShape, selected: bool
) -> BackendCost:
    if option.backend.startswith("sdpa.") and known.value("workload.sdpa_mask_tensor") is True:
        shape = shape._replace(arbitrary=True)
    counts = machine is not None and _holds_for(records, option.backend, known)
    milliseconds = records.milliseconds(machine, option.backend, shape) if machine is not None and counts else None
    memory = records.memory_of(option.backend, shape)
    return BackendCost(
        option.backend, selected, option.select, milliseconds, memory or {}, None if memory is None else peak(memory)
    )


def _judged(
    rulebook: Rulebook, known: FactResolver, compared: Comparison | None, found: tuple[Finding, ...]
) -> Facts | None:
    """Return the facts `speed.*` where another backend is far better and right for this job."""
    values: dict[str, Any] = {}
    if compared is not None and compared.costs:
        values.update(_faster(rulebook, known, compared, found))
        values.update(_leaner(rulebook, known, compared, found, values))
        if "speed.best" not in values:
            values.update(_skipping(rulebook, known, compared, found))
    own = _only_backend(rulebook, known) if compared is None else compared.options[0].backend
    if own is not None and "speed.best" not in values:
        values.update(_published(rulebook, known, own, found))
    if not values:
        return None
    values["speed.selected"] = own
    return Facts(fact(key, value, _SOURCE) for key, value in values.items())


def _faster(
    rulebook: Rulebook, known: FactResolver, compared: Comparison, found: tuple[Finding, ...]
) -> Mapping[str, Any]:
    own, machine, shape = compared.costs[0], compared.machine, compared.shape
    if own.milliseconds is None or machine is None or shape is None or _waits_for_launches(own, machine, shape):
        return {}
    pairs = zip(compared.options, compared.costs, strict=True)
    timed = sorted((cost.milliseconds, option) for option, cost in pairs if cost.milliseconds is not None)
    for milliseconds, option in timed:
        share = (own.milliseconds - milliseconds) / (own.milliseconds + _linear_layers(shape, machine))
        if own.milliseconds < SLOWER * milliseconds or share < _LEAST_SHARE:
            break
        if _right(rulebook, known, option, found):
            return {
                "speed.best": option.backend, "speed.times": round(own.milliseconds / milliseconds, 1),
                "speed.share": round(100 * share), "speed.select": option.select, "speed.basis": compared.basis,
            }  # fmt: skip
    return {}


def _far_leaner(known: FactResolver, own: int, other: int) -> bool:
    memory = known.value("gpu.memory_bytes")
    least = memory / _PART_OF_GPU if isinstance(memory, int) and memory > 0 else _LEAST_MEMORY
    return own >= MORE_MEMORY * other and own - other >= least


def _waits_for_launches(own: BackendCost, machine: Machine, shape: CallShape) -> bool:
    """Whether the call is so small that launching it takes longer than computing it: nothing is gained in a job."""
    curve = load_records().curve_of(machine, own.backend, shape.training)
    return curve is None or (own.milliseconds or 0.0) < SLOWER * curve.at_least


def _skipping(
    rulebook: Rulebook, known: FactResolver, compared: Comparison, found: tuple[Finding, ...]
) -> Mapping[str, Any]:
    """Return a backend that leaves out blocks which the selected one computes, on a GPU without records."""
    shape, records = compared.shape, load_records()
    if compared.machine is not None or shape is None or not shape.written_mask:
        return {}

    def operations(backend: str) -> float:
        return needs_of(shape, records.traits_of(backend), 1).tflop

    own = operations(compared.options[0].backend) if records.traits_of(compared.options[0].backend) else 0.0
    for option in compared.options[1:]:
        other = operations(option.backend) if records.traits_of(option.backend) else 0.0
        if not other or own < MORE_MEMORY * other or not _right(rulebook, known, option, found):
            continue
        share = (own - other) / (own + _linear_operations(shape) / 1e12)
        return {
            "speed.skipping": option.backend, "speed.blocks_times": round(own / other, 1),
            "speed.share": round(100 * share), "speed.select": option.select,
        }  # fmt: skip
    return {}


def _linear_operations(shape: CallShape) -> float:
    width = shape.num_heads * shape.head_dim_qk
    return 24 * shape.batch_size * shape.seq_len_q * width**2 * (3 if shape.training else 1)


def _linear_layers(shape: CallShape, machine: Machine) -> float:
    """Return the milliseconds of the linear layers of a transformer block: 12 width² weights, at 0.7 of the peak."""
    return _linear_operations(shape) / (0.7 * machine.matrix_tflops[shape.precision] * 1e12) * 1000


def _leaner(
    rulebook: Rulebook,
    known: FactResolver,
    compared: Comparison,
    found: tuple[Finding, ...],
    faster: Mapping[str, Any],
) -> Mapping[str, Any]:
    own = compared.costs[0]
    if own.peak is None:
        return {}
    pairs = list(zip(compared.options, compared.costs, strict=True))
    pairs.sort(key=lambda pair: (pair[0].backend != faster.get("speed.best"), pair[1].milliseconds or 0.0))
    for option, cost in pairs:
        if cost.peak is None or not _far_leaner(known, own.peak, cost.peak):
            continue
        if option.backend == faster.get("speed.best") or _right(rulebook, known, option, found):
            workspace = own.peak - own.memory["output"] - own.memory["gradients"]
            return {
                "speed.lean": option.backend, "speed.memory_times": round(own.peak / cost.peak, 1),
                "speed.memory_bytes": own.peak, "speed.lean_bytes": cost.peak, "speed.scores_bytes": workspace,
                "speed.select": option.select, "speed.basis": faster.get("speed.basis", "predicted from the shapes"),
            }  # fmt: skip
    return {}


def _published(rulebook: Rulebook, known: FactResolver, own: str, found: tuple[Finding, ...]) -> Mapping[str, Any]:
    """Return what others published of this GPU; the other backend may be unknown, but nothing may speak against it."""
    records = load_records()
    kernel = records.same_kernel.get(own, own)
    for figure in records.figures:
        if figure["selected"] not in (own, kernel) or known.value("gpu.sm") not in figure["sm"]:
            continue
        if not _matters(records, known, own, float(figure["times"])):
            continue
        for select, changes in _ways_to(records, known, figure["best"]):
            there = evaluate(rulebook, known.given.with_(*changes.values()), name_missing=False)
            best = there.known.value(f"{figure['best']}.available")
            if (
                best is False
                or _holds_for(records, figure["best"], there.known) is False
                or _speaks_against(there, found)
            ):
                continue
            return {
                "speed.best": figure["best"], "speed.published_times": figure["times"], "speed.select": select,
                "speed.basis": f"{figure['says']}: {figure['source']}",
            }  # fmt: skip
    return {}


def _matters(records: Records, known: FactResolver, own: str, times: float) -> bool:
    """Whether a layer gains enough by a backend that is so many times as fast; True where the shape is unknown.

    Without records of this GPU, attention counts by its operations, at the rate of the linear layers.
    """
    shape, traits = _shape(known), records.traits_of(own)
    if shape is None or not traits:
        return True
    attention = needs_of(shape, traits, 1).tflop
    return attention * (1 - 1 / times) >= _LEAST_SHARE * (attention + _linear_operations(shape) / 1e12)


def _ways_to(records: Records, known: FactResolver, backend: str) -> Iterator[tuple[str, Facts]]:
    """Yield how a job comes to a backend: by a choice of its own library, else by another call of its framework."""
    framework = known.value("workload.framework")
    prefix = backend.partition(".")[0]
    selected = known.value(f"{prefix}.selected")
    if selected not in (INAPPLICABLE, ABSENT) and backend in records.own_choice:
        choice = records.own_choice[backend].items()
        yield f"`{records.select[backend]}`", Facts(fact(key, value, _SOURCE) for key, value in choice)
        return
    for call in records.other_calls:
        if framework in call["framework"] and call.get("to") == prefix:
            yield f"`{call['select']}`", Facts(fact(key, value, _SOURCE) for key, value in call["facts"].items())


def _right(rulebook: Rulebook, known: FactResolver, option: Option, found: tuple[Finding, ...]) -> bool:
    """Whether the rules find nothing against the job with this backend that they do not find as it is."""
    if not option.select:
        return False
    there = evaluate(rulebook, known.given.with_(*option.changes.values()), name_missing=False)
    return not _speaks_against(there, found) and selected_backend(rulebook, there.known) == option.backend


def _speaks_against(there: Assessment, found: tuple[Finding, ...]) -> bool:
    now = {item.rule for item in found if item.severity != Severity.NOTE}
    if any(item.severity != Severity.NOTE and item.rule not in now for item in there.findings):
        return True
    return any(item.fails_at_run or item.import_error for item in there.predictions)


def _basis(machine: Machine | None) -> str:
    if machine is None:
        return "times: not measured on this GPU; memory: predicted from the shapes"
    return f"predicted from measurements on an {machine.gpu} with torch {machine.torch}"


def _words(shape: CallShape) -> str:
    heads = f"{shape.num_heads}/{shape.num_kv_heads}" if shape.grouped else str(shape.num_heads)
    wide = str(shape.head_dim_qk) if shape.head_dim_qk == shape.head_dim_v else shape.width
    long = str(shape.seq_len_q) if shape.seq_len_q == shape.seq_len_kv else f"{shape.seq_len_q} of {shape.seq_len_kv}"
    window = f", window {shape.window}" if shape.window is not None else ""
    passes = "forward and backward" if shape.training else "forward"
    return f"{shape.batch_size} x {long} tokens, {heads} heads of {wide}, {shape.dtype}{window}, {passes}"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value != ABSENT else None
