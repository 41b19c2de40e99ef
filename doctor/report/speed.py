"""Measured attention backends in every format: the fastest first, and what selects each."""

from __future__ import annotations

import json
from typing import Any

from doctor.facts.measurement import MORE_MEMORY, SLOWER, Measurement
from doctor.util.redact import shortened
from doctor.util.units import human_bytes

from . import sections
from .bar_chart import bar_chart
from .line_chart import line_chart
from .sections import Answer, Cell, Section, Table
from .speed_model import Speed, SpeedRow
from .style import Style

_HEAD = ("backend", "ms", "±", "forward", "TFLOP/s", "of peak", "memory", "error", "same bits", "to select it")


def as_text(speed: Speed, style: Style) -> str:
    """Return the measurements as text."""
    return sections.text(answer_of(speed), style)


def as_markdown(speed: Speed, style: Style) -> str:
    """Return the measurements as Markdown."""
    return sections.markdown(answer_of(speed), style)


def as_html(speed: Speed, style: Style) -> str:
    """Return the measurements as one page with a plot."""
    return sections.html(answer_of(speed), style)


def as_json(speed: Speed, style: Style) -> str:
    """Return the measurements as one JSON object; each is a record of `doctor/facts/measurement.py`."""
    best = {length: next((row for row in speed.at(length) if row.usable), None) for length in speed.lengths}
    content = {
        "schema": speed.schema,
        "tool": speed.tool,
        "target": speed.target,
        "job": dict(speed.job),
        "selected": speed.selected,
        "fastest": speed.fastest.measurement.backend if speed.fastest else None,
        "as_fast": [row.name for row in speed.as_fast],
        "matrix_tflops": speed.matrix_tflops,
        "measurements": [_record(row, best[row.measurement.seq_len_kv]) for row in speed.rows],
        "not_installed": list(speed.not_installed),
        "not_measured": dict(speed.lost),
        "notes": list(speed.notes),
        "timing": dict(speed.timing),
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _record(row: SpeedRow, best: SpeedRow | None) -> dict[str, Any]:
    one = row.measurement
    times = None
    if best is not None and one.ms is not None and best.measurement.ms:
        times = round(one.ms / best.measurement.ms, 3)
    own = {"title": row.title, "select": row.select, "times_fastest": times, "seconds": row.seconds}
    return {**one.as_record(), **own}


def answer_of(speed: Speed) -> Answer:
    """Return the measurements in sections."""
    look, word, sentence = _verdict(speed)
    lines = [("Job", _job(speed))]
    if speed.rows:
        one = speed.rows[0].measurement
        where = "the CPU, whose times say nothing of a GPU" if one.clock == "host" else one.gpu
        rate = f"; a matrix product of {one.dtype} runs at {speed.matrix_tflops:.0f} TFLOP/s" if _big(speed) else ""
        lines.append(("On", f"{where}, torch {one.torch}{rate}"))
    if speed.selected:
        lines.append(("Selected", f"{speed.selected}, as predicted for this job"))
    parts = [_table(speed)]
    if len(speed.lengths) > 1:
        parts.insert(0, _by_length(speed))
    parts += [part for part in (_memory(speed), _others(speed), _notes(speed)) if part is not None]
    return Answer(look, word, sentence, tuple(lines), tuple(parts), speed.tool)


def _big(speed: Speed) -> bool:
    return speed.matrix_tflops is not None and speed.matrix_tflops >= 1


def _job(speed: Speed) -> str:
    job = speed.job
    heads = f"{job['num_heads']} heads"
    if job["num_kv_heads"] != job["num_heads"]:
        heads += f" over {job['num_kv_heads']}"
    width = str(job["head_dim_qk"])
    if job["head_dim_v"] != job["head_dim_qk"]:
        width += f"/{job['head_dim_v']}"
    queries, keys = job["seq_len_q"], speed.lengths[-1] if speed.lengths else job["seq_len_kv"]
    length = (
        f"{keys} tokens"
        if queries == job["seq_len_kv"]
        else f"{queries} {'query' if queries == 1 else 'queries'} on {keys} keys"
    )
    words = [f"batch {job['batch_size']}", length, heads, f"head dim {width}", job["dtype"], f"mask {job['mask']}"]
    words += [f"window {job['window'][0]}"] if job.get("window") else []
    words += [f"bias {job['bias']}"] if job.get("bias") not in (None, "no_bias") else []
    words += [f"soft cap {job['softcap']:g}"] if job.get("softcap") else []
    words += ["packed"] if job.get("packed") else []
    words.append("forward and backward" if job["training"] else "forward")
    return ", ".join(words)


def _verdict(speed: Speed) -> tuple[str, str, str]:
    best, current = speed.fastest, speed.current
    if best is None or best.measurement.ms is None:
        return "unclear", "NOT MEASURED", "no backend ran this job"
    time = _ms(best.measurement.ms)
    if current is None:
        return "ok", "FASTEST", f"{' and '.join(row.name for row in speed.as_fast)}, {time} ms"
    chosen, own = f"{current.name}, which this job selects,", _ms(current.measurement.ms)
    if not current.measurement.ran:
        return "error", "DOES NOT RUN", f"{chosen} did not run: {shortened(current.measurement.reason, 200)}"
    if not current.usable:
        error = f"{current.measurement.max_error:.1e}"
        return "error", "WRONG", f"{chosen} is off by {error} from float64; the fastest that is right is {best.name}"
    if current in speed.as_fast:
        others = [row.name for row in speed.as_fast if row is not current]
        same = f", and so {'does' if len(others) == 1 else 'do'} {' and '.join(others)}" if others else ""
        return "ok", "FASTEST", f"{chosen} takes {own} ms{same}"
    times = (current.measurement.ms or 0.0) / best.measurement.ms
    if times < SLOWER:
        return "ok", "FAST", f"{chosen} takes {own} ms; the fastest is {best.name}, {time} ms"
    return "warning", "SLOW", f"{chosen} takes {own} ms: {times:.1f} times as long as {best.name} ({time} ms)"


def _table(speed: Speed) -> Section:
    rows = [_row(row, speed) for row in speed.main if row.measurement.ran]
    length = speed.lengths[-1] if len(speed.lengths) > 1 else None
    title = "Backends, the fastest first" + (f", at {_tokens(length)} tokens" if length else "")
    share = [
        (row.name, row.measurement.peak_share)
        for row in speed.main
        if row.measurement.ran and row.measurement.peak_share is not None
    ]
    chart = bar_chart(share, "Share of the rate of a matrix product in this dtype, measured in the same run")
    return Section(title, table=Table(_HEAD, tuple(rows)) if rows else None, chart=chart)


def _row(row: SpeedRow, speed: Speed) -> tuple[Cell | str, ...]:
    one = row.measurement
    marked = f"{row.name} *" if row is speed.current else row.name
    error = "not checked" if one.max_error is None else f"{one.max_error:.1e}"
    if one.right is False:
        error += " wrong"
    same = {True: "yes", False: "no", None: "?"}[one.deterministic]
    spread = "" if one.ms is None or one.ms_spread is None else f"{100 * one.ms_spread / max(one.ms, 1e-9):.0f} %"
    return (
        Cell(marked, "ok" if row in speed.as_fast else ""), _ms(one.ms), spread, _ms(one.ms_forward),
        "" if one.tflops is None else f"{one.tflops:.3g}",
        "" if one.peak_share is None else f"{100 * one.peak_share:.0f} %",
        "" if one.bytes_peak is None else human_bytes(one.bytes_peak),
        Cell(error, "error" if one.right is False else ""), same, row.select,
    )  # fmt: skip


def _by_length(speed: Speed) -> Section:
    names = list(dict.fromkeys(row.name for row in sorted(speed.rows, key=lambda row: -row.measurement.seq_len_kv)))
    times: dict[str, dict[int, float]] = {name: {} for name in names}
    failed: dict[tuple[str, int], str] = {}
    for row in speed.rows:
        one = row.measurement
        if one.ran and one.ms is not None:
            times[row.name][one.seq_len_kv] = one.ms
        else:
            failed[row.name, one.seq_len_kv] = _short(one)
    rows = []
    for name in names:
        if times[name]:
            cells = [_ms(times[name].get(length)) or failed.get((name, length), "?") for length in speed.lengths]
            rows.append((name, *cells))
    chart = line_chart(times, "Milliseconds against tokens, both axes logarithmic", _tokens, "ms")
    head = ("ms at", *(_tokens(length) for length in speed.lengths))
    return Section("Time by sequence length", table=Table(head, tuple(rows)), lines_chart=chart)


def _memory(speed: Speed) -> Section | None:
    """Where the memory of a step goes, by part."""
    rows = []
    for row in speed.main:
        parts = row.measurement.memory
        if row.measurement.ran and parts:
            saved, work = (
                parts.get("saved", 0),
                max(parts.get("forward_workspace", 0), parts.get("backward_workspace", 0)),
            )
            numbers = (parts.get("inputs"), parts.get("mask"), parts.get("output"), saved, work, parts.get("gradients"))
            rows.append((row.name, *("" if number is None else human_bytes(number) for number in numbers)))
    head = ("backend", "q, k, v", "mask", "output", "saved for backward", "while it runs", "gradients")
    return Section("Memory of one layer, by part", table=Table(head, tuple(rows))) if rows else None


def _others(speed: Speed) -> Section | None:
    lines = []
    for row in speed.main:
        if not row.measurement.ran:
            forward = row.measurement.ms_forward
            seen = f" (forward alone: {_ms(forward)} ms)" if forward is not None else ""
            reason = shortened(row.measurement.reason, 300)
            lines.append(("", f"{row.name}: {row.measurement.outcome}: {reason}{seen}"))
    if speed.not_installed:
        lines.append(("", f"not installed: {', '.join(speed.not_installed)}"))
    return Section("Did not run", tuple(lines)) if lines else None


def _notes(speed: Speed) -> Section | None:
    lines = [("warning", text) for text in warnings_of(speed)]
    lines += [
        ("note", f"{row.name}: the kernels that ran are of {', '.join(row.foreign)}")
        for row in speed.main
        if row.foreign
    ]
    lines += [("note", f"measured without `workload.{word}`: {reason}") for word, reason in speed.lost.items()]
    for row in speed.rows[:1]:
        one = row.measurement
        lines += [("note", f"assumed, {word}: {reason}") for word, reason in one.assumed.items()]
        made = ", ".join(f"{word} {now} for {before}" for word, (before, now) in one.shrunk.items())
        lines += [("note", f"measured smaller, to fit: {made}")] if made else []
        if one.checked:
            lines.append(("note", f"compared with float64: {one.checked}"))
    lines += [("note", note) for note in speed.notes]
    return Section("Notes", tuple(lines)) if lines else None


def warnings_of(speed: Speed) -> tuple[str, ...]:
    """Return what the selected backend costs more than another that is right for this job."""
    best, current = speed.fastest, speed.current
    if best is None or current is None or not current.measurement.ran:
        return ()
    found = []
    times = (current.measurement.ms or 0.0) / (best.measurement.ms or 1.0)
    if current is not best and times >= SLOWER:
        found.append(f"{best.name} is {times:.1f} times as fast as {current.name}; to select it: {best.select}")
    peak = current.measurement.bytes_peak
    leaner = [row for row in speed.main if row.usable and row.measurement.bytes_peak]
    least = min(leaner, key=lambda row: row.measurement.bytes_peak or 0, default=None)
    if peak and least is not None and peak >= MORE_MEMORY * (least.measurement.bytes_peak or peak):
        found.append(
            f"{current.name} holds {human_bytes(peak)} in one layer, {least.name} "
            f"{human_bytes(least.measurement.bytes_peak or 0)}; to select it: {least.select}"
        )
    launched = [row for row in speed.main[:1] if _launch_bound(row.measurement)]
    if launched:
        found.append(
            "the CPU needs longer to start a step than the GPU to run it: CUDA graphs or larger batches help more "
            "than another backend"
        )
    return tuple(found)


def _launch_bound(one: Measurement) -> bool:
    return one.ms is not None and one.ms_launch is not None and one.ms_launch > 2 * one.ms


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value < 10 else f"{value:.4g}"


def _tokens(length: int) -> str:
    return f"{length / 1024:g}k" if length >= 1024 else str(length)


def _short(one: Measurement) -> str:
    return "no memory" if "out of memory" in one.reason else one.outcome
