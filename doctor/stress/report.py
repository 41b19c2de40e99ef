"""The result of a sweep as text and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from doctor.runner.result import KernelOutcome
from doctor.stress.devices import stack_of
from doctor.util.redact import shortened

from .compare_rules import Comparison
from .failures import Failure
from .sweep import SweepResult, by_backend, margins
from .verdict import CaseVerdict


def as_json(result: SweepResult, comparison: Comparison | None = None) -> dict[str, Any]:
    """Return one object with a versioned `schema`; `comparison` is the sweep compared with the rulebook."""
    return {
        "schema": 1,
        "verdict": "bad" if result.bad else "good",
        "complete": result.complete,
        "stack": {**stack_of(result.hello), "devices": result.hello.get("devices")},
        "unavailable": {name: why for name, why in (result.hello.get("backends") or {}).items() if why},
        "cases": {
            "planned": len(result.plan.cases),
            "devices": len(result.devices),
            "answered": len(result.records),
            "resumed": result.resumed,
            "became": result.totals,
        },
        "pairs": {name: {"covered": covered, "of": total} for name, (covered, total) in result.plan.pairs.items()},
        "backends": {name: dict(counts) for name, counts in by_backend(result).items()},
        "margins": {f"{name} {dtype}": round(value, 3) for (name, dtype), value in margins(result.records).items()},
        "speed": speeds(result),
        "failures": [_failure_json(item) for item in result.failures],
        "disagreements": result.disagreements,
        "vanished": [{"gpu": label, "said": said} for label, said in result.vanished],
        "rulebook": None if comparison is None else _comparison_json(comparison),
        "notes": result.notes,
        "seconds": {name: round(value, 2) for name, value in result.seconds.items()},
    }


def _failure_json(item: Failure) -> dict[str, Any]:
    return {
        "backend": item.backend, "kinds": list(item.kinds), "seen": item.seen, "first": item.case,
        "smallest": item.small, "errors": item.errors, "reason": item.reason, "script": item.script,
        "script_shows_it": item.shown, "script_said": item.said, "tried": item.tried,
        "prediction": None if item.rules is None else "predicted" if item.rules else "unpredicted",
        "rules": list(item.rules or ()),
    }  # fmt: skip


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "covered": comparison.covered,
        "predicted": [{"rule": rule, "became": became, "cases": group.count, "first": group.case}
                     for (rule, became), group in comparison.predicted.items()],
        "refuted": [{"rule": rule, "backend": backend, "cases": group.count, "first": group.case}
                    for (rule, backend), group in comparison.refuted.items()],
        "refused_without_rule": [{"backend": backend, "cases": group.count, "first": group.case, "reason": group.reason}
                                 for backend, group in comparison.unpredicted.items()],
        "undetermined": comparison.undetermined,
    }  # fmt: skip


def speeds(result: SweepResult) -> dict[str, dict[str, Any]]:
    """Return per backend the median time of a forward and backward, memory over need, and the kernels that ran."""
    gathered: dict[str, dict[str, list[Any]]] = {}
    for _, case, one in result.records:
        seen = one.observed
        if one.outcome != KernelOutcome.RAN or "run_seconds" not in seen:
            continue
        item = gathered.setdefault(str(case["backend"]), {"ms": [], "memory": [], "ran": []})
        item["ms"].append(1e3 * seen["run_seconds"])
        if seen.get("bytes", 0) > 1 << 20 and "peak_bytes" in seen:
            item["memory"].append(seen["peak_bytes"] / seen["bytes"])
        item["ran"] += seen.get("ran") or []
    return {
        name: {
            "median_ms": round(statistics.median(item["ms"]), 3),
            "memory_over_need": round(statistics.median(item["memory"]), 2) if item["memory"] else None,
            "worst_memory_over_need": round(max(item["memory"]), 1) if item["memory"] else None,
            "ran": {family: item["ran"].count(family) for family in sorted(set(item["ran"]))},
        }
        for name, item in gathered.items()
    }


def as_text(result: SweepResult, comparison: Comparison | None = None) -> str:
    """Return the report for reading, complete without colour."""
    lines = [headline(result), ""]
    lines += _table(result)
    missing = {name: why for name, why in (result.hello.get("backends") or {}).items() if why}
    if missing:
        lines += ["", "unavailable"]
        lines += [f"  {name}: {shortened(' '.join(why.split()), 110)}" for name, why in missing.items()]
    for number, failure in enumerate(result.failures, 1):
        lines += ["", *_failure(number, failure)]
    for label, message in result.vanished:
        lines += ["", f"lost during the sweep: {label}: {shortened(' '.join(message.split()), 300)}"]
    for item in result.disagreements[:10]:
        lines += ["", f"GPUs disagree: {' and '.join(item['gpus'])}, {item['difference']}", f"  {short(item['case'])}"]
    if comparison is not None:
        lines += ["", *_comparison(comparison)]
    if result.notes:
        lines += ["", "notes", *(f"  {note}" for note in result.notes)]
    lines += ["", timing(result)]
    return "\n".join(lines) + "\n"


def headline(result: SweepResult) -> str:
    """Return the result in one sentence."""
    devices = ", ".join(device.label for device in result.devices)
    scope = f"{len(result.records)} cases on {devices}, torch {result.hello.get('torch')}"
    missed = result.totals.get(CaseVerdict.NOT_REACHED)
    left = f"; {missed} more were planned and not reached" if missed else ""
    if not result.bad:
        return f"nothing wrong in {scope}{left}"
    faults = len(result.failures)
    parts = [f"{faults} fault{'s' if faults != 1 else ''}"] if faults else []
    parts += [f"{len(result.disagreements)} cases in which GPUs disagree"] if result.disagreements else []
    lost = len({label for label, _ in result.vanished})
    parts += [f"{lost} device{'s' if lost > 1 else ''} lost during the sweep"] if lost else []
    return f"{' and '.join(parts)} in {scope}{left}"


def _table(result: SweepResult) -> list[str]:
    table, speed, worst = by_backend(result), speeds(result), margins(result.records)
    used = [name for name in CaseVerdict if any(counts[name] for counts in table.values())]
    head = ["backend", *map(str, used), "pairs", "ms", "error/bound"]
    rows = []
    for name, counts in table.items():
        covered, total = result.plan.pairs.get(name, (0, 0))
        about = speed.get(name, {}).get("median_ms")
        near = max((value for (backend, _), value in worst.items() if backend == name), default=None)
        rows.append([
            name if len(name) <= 40 else f"…{name[-39:]}", *(str(counts[column]) for column in used),
            f"{covered}/{total}", "" if about is None else f"{about:.2f}", "" if near is None else f"{near:.2f}",
        ])  # fmt: skip
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in [head, *rows]
    ]


def short(case: Mapping[str, Any]) -> str:
    """Return a case on one line: what differs from the plainest case."""
    heads = f"b{case['batch_size']} h{case['num_heads']}/{case['num_kv_heads']}"
    dims = f"d{case['head_dim_qk']}/{case['head_dim_v']} s{case['seq_len_q']}/{case['seq_len_kv']}"
    names = ("bias_shape", "bias_grad", "alone", "layout", "sequences", "grad", "how", "before", "dropout", "softcap",
             "alibi", "scale", "deterministic")  # fmt: skip
    plain = (None, False, 0.0, "bhsd", "dense", "eager", "nothing", "b1ss", "some_empty")
    odd = [f"{name}={case[name]}" for name in names if case.get(name) not in plain]
    return " ".join([case["dtype"], heads, dims, str(case["mask"]), *odd])


def _failure(number: int, item: Failure) -> list[str]:
    prediction = f"; {item.prediction}" if item.prediction else ""
    cases = f"seen in {item.seen} case{'s' if item.seen != 1 else ''}"
    lines = [f"fault {number}: `{item.backend}`, {', '.join(item.kinds)}; {cases}{prediction}"]
    if "mask" in item.case:
        lines.append(f"  first seen  {short(item.case)}")
    if item.small:
        lines.append(f"  smallest    {short(item.small)}")
    if item.reason:
        lines.append(f"  message     {shortened(' '.join(item.reason.split()), 300)}")
    lines += [f"  {name:<12}{text}" for name, text in error_lines(item)]
    if item.script:
        lines += [f"  reproduction ({SHOWN_BY[item.shown]})", *(f"    {line}" for line in item.script.splitlines())]
    return lines


#: Whether the script of a fault, run on its own, shows it.
SHOWN_BY = {
    True: "run on its own, it shows the fault",
    False: "run on its own, it does NOT show the fault",
    None: "not run",
}


def error_lines(item: Failure) -> Iterator[tuple[str, str]]:
    """Yield (tensor, its errors) of the smallest case."""
    for name, error in (item.errors or {}).items():
        if "row" in error:
            text = f"relative {float(error['rel']):.2g}, worst row {float(error['row']):.2g}"
            yield name, f"{text}, non-finite {error['nonfinite']}"


def _comparison(comparison: Comparison) -> list[str]:
    """Return what the rules predicted, what they do not know, and where the GPU refutes them."""
    predicted = sum(group.count for group in comparison.predicted.values())
    lines = [f"compared with the rules: {comparison.covered} covered cases, {predicted} refusals and faults predicted"]
    for (rule, became), group in sorted(comparison.predicted.items()):
        lines.append(f"  {rule} predicted: {group.count} {became}")
    for (rule, backend), group in sorted(comparison.refuted.items()):
        lines.append(f"  {rule} refuted: {group.count} cases ran right on `{backend}`, first {short(group.case)}")
    for backend, group in sorted(comparison.unpredicted.items()):
        why = " ".join(group.reason.split())[:160]
        lines.append(f"  no rule predicted {group.count} refusals of `{backend}`, first {short(group.case)}: {why}")
    if comparison.undetermined:
        lines.append(f"  {comparison.undetermined} refusals whose rules lack facts")
    return lines


def timing(result: SweepResult) -> str:
    """Return how long each part of the sweep took."""
    seconds = result.seconds
    parts = [f"import {seconds.get('import', 0):.1f} s", f"context {seconds.get('context', 0):.1f} s"]
    parts += [f"cases {seconds.get('cases', 0):.1f} s", f"wall {seconds.get('wall', 0):.1f} s"]
    parts += [f"minimizing {seconds['shrink']:.1f} s"] if "shrink" in seconds else []
    resumed = f"; {result.resumed} results from the journal" if result.resumed else ""
    return f"time: {', '.join(parts)}{resumed}"
