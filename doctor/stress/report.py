"""A sweep's outcome as text and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from .compare_rules import Comparison
from .failures import Failure
from .sweep import SweepResult, by_backend, margins

COLUMNS = ("right", "wrong", "failed", "crashed", "timeout", "no memory", "refused", "unavailable", "not reached")


def as_json(outcome: SweepResult, beside: Comparison | None = None) -> dict[str, Any]:
    """One object; `schema` is its version. `beside` is the sweep compared with the rulebook."""
    return {
        "schema": 1,
        "verdict": "bad" if outcome.bad else "good",
        "complete": outcome.complete,
        "stack": {name: outcome.hello.get(name) for name in ("torch", "cuda", "versions", "devices", "device")},
        "unavailable": {name: why for name, why in (outcome.hello.get("backends") or {}).items() if why},
        "cases": {
            "planned": len(outcome.plan.cases),
            "devices": len(outcome.lanes),
            "answered": len(outcome.records),
            "resumed": outcome.resumed,
            "became": outcome.totals,
        },
        "pairs": {name: {"covered": covered, "of": total} for name, (covered, total) in outcome.plan.pairs.items()},
        "backends": {name: dict(counts) for name, counts in by_backend(outcome).items()},
        "margins": {f"{name} {dtype}": round(value, 3) for (name, dtype), value in margins(outcome.records).items()},
        "speed": speeds(outcome),
        "failures": [_failure_json(item) for item in outcome.failures],
        "disagreements": outcome.disagreements,
        "vanished": [{"gpu": label, "said": said} for label, said in outcome.vanished],
        "rulebook": None if beside is None else _beside_json(beside),
        "notes": outcome.notes,
        "seconds": {name: round(value, 2) for name, value in outcome.seconds.items()},
    }


def _failure_json(item: Failure) -> dict[str, Any]:
    return {
        "backend": item.backend, "kinds": list(item.kinds), "seen": item.seen, "first": item.case,
        "smallest": item.small, "errors": item.errors, "reason": item.reason, "script": item.script,
        "script_shows_it": item.shown, "script_said": item.said, "tried": item.tried,
        "prediction": None if item.rules is None else "foretold" if item.rules else "unpredicted",
        "rules": list(item.rules or ()),
    }  # fmt: skip


def _beside_json(beside: Comparison) -> dict[str, Any]:
    return {
        "asked": beside.asked,
        "foretold": [{"rule": rule, "became": became, "cases": seen.count, "first": seen.case}
                     for (rule, became), seen in beside.foretold.items()],
        "refuted": [{"rule": rule, "backend": backend, "cases": seen.count, "first": seen.case}
                    for (rule, backend), seen in beside.refuted.items()],
        "refused_without_rule": [{"backend": backend, "cases": seen.count, "first": seen.case, "reason": seen.reason}
                                 for backend, seen in beside.unruled.items()],
        "undetermined": beside.undetermined,
    }  # fmt: skip


def speeds(outcome: SweepResult) -> dict[str, dict[str, Any]]:
    """Per backend: median time of a forward and backward, memory beside what the case needs, kernels that ran."""
    gathered: dict[str, dict[str, list[Any]]] = {}
    for _, case, answer in outcome.records:
        seen = answer.observed
        if answer.outcome != "ran" or "run_seconds" not in seen:
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


def as_text(outcome: SweepResult, beside: Comparison | None = None) -> str:
    """For reading, complete without colour."""
    lines = [_headline(outcome), ""]
    lines += _table(outcome)
    missing = {name: why for name, why in (outcome.hello.get("backends") or {}).items() if why}
    if missing:
        lines += ["", "not here"]
        lines += [f"  {name}: {' '.join(why.split())[:110]}" for name, why in missing.items()]
    for number, item in enumerate(outcome.failures, 1):
        lines += ["", *_failure(number, item)]
    for label, said in outcome.vanished:
        lines += ["", f"lost on the way: {label}: {' '.join(said.split())[:300]}"]
    for told in outcome.disagreements[:10]:
        lines += ["", f"GPUs disagree: {' and '.join(told['gpus'])}, {told['difference']}", f"  {short(told['case'])}"]
    if beside is not None:
        lines += ["", *_beside(beside)]
    if outcome.notes:
        lines += ["", "notes", *(f"  {note}" for note in outcome.notes)]
    lines += ["", _timing(outcome)]
    return "\n".join(lines) + "\n"


def _headline(outcome: SweepResult) -> str:
    devices = ", ".join(lane.label for lane in outcome.lanes)
    asked = f"{len(outcome.records)} cases on {devices}, torch {outcome.hello.get('torch')}"
    missed = outcome.totals.get("not reached")
    left = f"; {missed} more were planned and not reached" if missed else ""
    if not outcome.bad:
        return f"nothing wrong in {asked}{left}"
    faults = len(outcome.failures)
    parts = [f"{faults} fault{'s' if faults != 1 else ''}"] if faults else []
    parts += [f"{len(outcome.disagreements)} cases in which GPUs disagree"] if outcome.disagreements else []
    lost = len({label for label, _ in outcome.vanished})
    parts += [f"{lost} device{'s' if lost > 1 else ''} lost on the way"] if lost else []
    return f"{' and '.join(parts)} in {asked}{left}"


def _table(outcome: SweepResult) -> list[str]:
    table, speed, worst = by_backend(outcome), speeds(outcome), margins(outcome.records)
    used = [name for name in COLUMNS if any(counts[name] for counts in table.values())]
    head = ["backend", *used, "pairs", "ms", "error/bound"]
    rows = []
    for name, counts in table.items():
        covered, total = outcome.plan.pairs.get(name, (0, 0))
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
    """A case on one line: what differs from the plainest."""
    heads = f"b{case['batch_size']} h{case['num_heads']}/{case['num_kv_heads']}"
    dims = f"d{case['head_dim_qk']}/{case['head_dim_v']} s{case['seq_len_q']}/{case['seq_len_kv']}"
    names = ("bias_shape", "bias_grad", "alone", "layout", "sequences", "grad", "how", "before", "dropout", "softcap",
             "alibi", "scale", "deterministic")  # fmt: skip
    plain = (None, False, 0.0, "bhsd", "dense", "eager", "nothing", "b1ss", "some_empty")
    odd = [f"{name}={case[name]}" for name in names if case.get(name) not in plain]
    return " ".join([case["dtype"], heads, dims, str(case["mask"]), *odd])


def _failure(number: int, item: Failure) -> list[str]:
    told = f"; {item.foretold}" if item.foretold else ""
    lines = [f"fault {number}: `{item.backend}`, {', '.join(item.kinds)}; seen in {item.seen} cases{told}"]
    if "mask" in item.case:
        lines.append(f"  first seen  {short(item.case)}")
    if item.small:
        lines.append(f"  smallest    {short(item.small)}")
    if item.reason:
        lines.append(f"  said        {' '.join(item.reason.split())[:300]}")
    for name, error in (item.errors or {}).items():
        if "row" in error:
            text = f"relative {float(error['rel']):.2g}, worst row {float(error['row']):.2g}"
            lines.append(f"  {name:<12}{text}, non-finite {error['nonfinite']}")
    if item.script:
        state = {
            True: "run on its own, it shows the fault",
            False: "run on its own, it does NOT show the fault",
            None: "not run",
        }
        lines += [f"  reproduction ({state[item.shown]})", *(f"    {line}" for line in item.script.splitlines())]
    return lines


def _beside(beside: Comparison) -> list[str]:
    """What the rulebook got right, what it does not know, and where the GPU proves it wrong."""
    foretold = sum(seen.count for seen in beside.foretold.values())
    lines = [f"beside the rulebook: {beside.asked} answers that rules speak of, {foretold} noes foretold"]
    for (rule, became), seen in sorted(beside.foretold.items()):
        lines.append(f"  {rule} foretold: {seen.count} {became}")
    for (rule, backend), seen in sorted(beside.refuted.items()):
        lines.append(f"  {rule} refuted: {seen.count} cases ran right on `{backend}`, first {short(seen.case)}")
    for backend, seen in sorted(beside.unruled.items()):
        why = " ".join(seen.reason.split())[:160]
        lines.append(f"  no rule foretold {seen.count} refusals of `{backend}`, first {short(seen.case)}: {why}")
    if beside.undetermined:
        lines.append(f"  {beside.undetermined} refusals of which the rules could not tell")
    return lines


def _timing(outcome: SweepResult) -> str:
    told = outcome.seconds
    parts = [f"import {told.get('import', 0):.1f} s", f"context {told.get('context', 0):.1f} s"]
    parts += [f"cases {told.get('cases', 0):.1f} s", f"wall {told.get('wall', 0):.1f} s"]
    parts += [f"shrinking {told['shrink']:.1f} s"] if "shrink" in told else []
    resumed = f"; {outcome.resumed} answers from the journal" if outcome.resumed else ""
    return f"time: {', '.join(parts)}{resumed}"
