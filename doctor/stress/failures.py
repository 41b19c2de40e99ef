"""Failing cases, grouped by the smallest case of each fault, with a script that shows it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from doctor.runner.result import KernelOutcome, KernelResult
from doctor.runner.run import run_alone

from .verdict import BAD, fault_kinds, verdict
from .worker import Worker

CATEGORIES = (
    "mask", "bias_shape", "bias_grad", "alone", "layout", "sequences", "grad", "how", "before", "dropout", "softcap",
    "alibi", "scale", "deterministic",
)  # fmt: skip
PLAINEST = {
    "mask": "no_mask", "before": "nothing", "layout": "bhsd", "grad": "dense", "how": "eager", "dropout": 0.0,
    "softcap": 0.0, "alibi": False, "deterministic": False, "training": True, "bias_shape": "b1ss", "bias_grad": False,
    "alone": False, "sequences": "some_empty", "scale": None,
}  # fmt: skip
#: Layouts that take another path through a library's checks than a plain tensor.
ODD_LAYOUTS = ("offset1", "expanded", "thd")
SECONDS_EACH = 12.0  # for minimizing one failure
SCRIPT_SHARE = 0.3  # of the time that is left before the deadline, for running the scripts


COMPILER_CHECK = "triton"  # the check of the compiler, among the backends of the sweep


@dataclass
class Failure:
    """One fault: where it was seen, its smallest case, and how to see it again."""

    backend: str
    kinds: tuple[str, ...]
    case: dict[str, Any]  # as first seen
    reason: str
    result: KernelResult
    small: dict[str, Any] | None = None
    errors: Mapping[str, Any] | None = None
    bound: Mapping[str, float] | None = None  # the bounds that the errors of the smallest case exceed
    script: str | None = None
    shown: bool | None = None  # whether the script, run on its own, exits with 1
    said: str = ""  # the last output of the script
    tried: int = 0
    seen: int = 1
    rules: tuple[str, ...] | None = None  # rules that predict it; empty: unpredicted; None: not compared with the rules

    @property
    def prediction(self) -> str | None:
        """Return `predicted by` its rules, `unpredicted`, or None if it was not compared with the rules."""
        if self.rules is None:
            return None
        return f"predicted by {', '.join(self.rules)}" if self.rules else "unpredicted"

    def explains(self, case: Mapping[str, Any], kinds: Sequence[str]) -> bool:
        """Return whether a failing case is this fault again: the same kind, with all that the smallest case needs."""
        if case["backend"] != self.backend or not set(kinds) & set(self.kinds):
            return False
        if self.small is None:  # not minimized: one entry for the kind
            return True
        small = self.small
        for name in CATEGORIES:
            wanted = small.get(name, PLAINEST[name])
            if wanted != PLAINEST[name] and case.get(name, PLAINEST[name]) != wanted:
                return False
        return True


class _Progress:
    """Counts the failing cases that are minimized."""

    def __init__(self, total: int, report: Callable[[int, int], None]) -> None:
        self.total, self.done, self.report = total, 0, report
        report(0, total)

    def advance(self) -> None:
        """Count one more failure."""
        self.done += 1
        self.report(self.done, self.total)


def collect_failures(
    failing: Sequence[tuple[dict[str, Any], KernelResult]],
    worker: Worker,
    *,
    seconds: float,
    deadline: float = math.inf,
    each: float = SECONDS_EACH,
    on_step: Callable[[str], None] = lambda text: None,
    minimized: Callable[[int, int], None] = lambda done, total: None,
) -> list[Failure]:
    """Return one Failure per fault.

    Minimizing takes at most `seconds`; nothing continues after `deadline`, a time of the monotonic clock. `minimized`
    is called with (cases minimized, cases to minimize), `on_step` with the step that follows.
    """
    now = time.monotonic()
    until = min(now + seconds, deadline - (SCRIPT_SHARE * (deadline - now) if deadline < math.inf else 0.0))
    first: dict[tuple[Any, ...], Failure] = {}
    for case, result in failing:
        kinds = fault_kinds(result)
        at = (case["backend"], tuple(kinds), case["mask"], case["layout"] in ODD_LAYOUTS)
        if at not in first:
            first[at] = Failure(case["backend"], tuple(kinds), dict(case), result.reason, result)
            first[at].errors = result.observed.get("errors")
    faults = list(first.values())
    progress = _Progress(len(faults), minimized)
    inside = [item for item in faults if _keeps_process(item.result)]
    if seconds > 0:
        _shrink_inside(inside, worker, each, until, progress)
    for item in faults:
        if item not in inside and time.monotonic() < until:
            _shrink_from_outside(item, worker, _plain(item), min(each, until - time.monotonic()), deadline)
            progress.advance()
    failures = _merged(faults, failing)
    scripts = sum(item.script is not None for item in failures)
    if scripts:
        on_step(f"running {scripts} reproduction script{'s' if scripts != 1 else ''}")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: _verify_script(item, worker, deadline), failures))
    return failures


def _merged(faults: Sequence[Failure], failing: Sequence[tuple[dict[str, Any], KernelResult]]) -> list[Failure]:
    """Drop the faults that another one explains, and count the cases that show each of the others."""
    ranked = sorted(faults, key=lambda item: (item.small is None, len(_odd(item))))
    merged: list[Failure] = []
    for item in ranked:
        kinds = fault_kinds(item.result)
        if not any(other.explains(item.case, kinds) for other in merged):
            merged.append(item)
    for item in merged:
        item.seen = 0
    for case, result in failing:
        known = next((item for item in merged if item.explains(case, fault_kinds(result))), None)
        if known is not None:
            known.seen += 1
    return merged


def _odd(item: Failure) -> list[str]:
    small = item.small or item.case
    return [name for name in CATEGORIES if small.get(name, PLAINEST[name]) != PLAINEST[name]]


def _plain(item: Failure) -> dict[str, Any]:
    return {name: value for name, value in item.case.items() if name not in ("profile", "memory_bytes")}


def _shrink_inside(
    faults: Sequence[Failure], worker: Worker, each: float, until: float, progress: _Progress
) -> None:  # fmt: skip
    """Minimize all in one process, because starting one takes longer than minimizing."""
    left = list(faults)
    # Less than what is left, because starting the process takes its share: a result is worth more than a small case.
    seconds = max(0.5, min(each, (until - time.monotonic()) / 3))
    requests = [{"op": "shrink", "case": _plain(item), "kinds": list(item.kinds), "seconds": seconds} for item in left]

    def on_result(_: Mapping[str, Any], result: KernelResult) -> None:
        item, found = left.pop(0), result.observed
        if result.outcome == KernelOutcome.RAN and found.get("reproduced"):
            item.small, item.script = dict(found["case"]), found["script"]
            item.errors, item.tried = found.get("errors") or item.errors, int(found.get("tried") or 0)
            item.bound = found.get("bound")
            item.kinds = tuple(found.get("faults") or item.kinds)
        progress.advance()

    worker.run(requests, on_result, until)
    for item in faults:
        if item.small and item.small.get("before", "nothing") != "nothing" and time.monotonic() < until:
            _without_before(item, worker, until)


def _without_before(failure: Failure, worker: Worker, until: float) -> None:
    """Check whether the fault needs the earlier call, in a process of its own that had none."""
    assert failure.small is not None
    plain = {**failure.small, "before": PLAINEST["before"]}
    kinds = set(fault_kinds(worker.run_one(plain, until))) & set(failure.kinds)
    if kinds:
        failure.small, failure.kinds = plain, tuple(kind for kind in failure.kinds if kind in kinds)
        failure.script = _script(failure, plain, worker, until)


def _keeps_process(result: KernelResult) -> bool:
    """Return whether the fault leaves its process usable."""
    if result.outcome not in (KernelOutcome.RAN, KernelOutcome.FAILED):
        return False
    return "CUDA error" not in result.reason and "device-side assert" not in result.reason


def _shrink_from_outside(
    failure: Failure, worker: Worker, case: dict[str, Any], seconds: float, deadline: float
) -> None:  # fmt: skip
    """Minimize a fault that ends its process: one process after the other, the host decides."""
    until, wanted = time.monotonic() + seconds, set(failure.kinds)
    small = case
    moved = True
    while moved and time.monotonic() < until:
        moved = False
        simpler = worker.run_one({"op": "simpler", "case": small}, deadline)
        for candidate in simpler.observed.get("cases") or []:
            if time.monotonic() >= until:
                break
            result = worker.run_one(candidate, deadline)
            failure.tried += 1
            if time.monotonic() >= deadline:  # a timeout of ours is none of the case
                break
            if verdict(result) in BAD and wanted & set(fault_kinds(result)):
                small, moved = candidate, True
                break
    failure.small = small
    failure.script = _script(failure, small, worker, deadline)


def _script(failure: Failure, case: Mapping[str, Any], worker: Worker, until: float) -> str | None:
    request = {"op": "script", "case": case, "kinds": list(failure.kinds), "bound": failure.bound}
    text = worker.run_one(request, until).observed.get("script")
    return None if text is None else str(text)


def _verify_script(failure: Failure, worker: Worker, deadline: float) -> None:
    """Run the script on its own: a reproduction that does not reproduce must be marked."""
    if not failure.script:
        return
    _run_script(failure, worker, deadline)
    if failure.shown is False and failure.small:  # the fault may depend on an earlier call
        plain = failure.script
        case = {**failure.small, "primed": True}
        failure.script = _script(failure, case, worker, deadline)
        _run_script(failure, worker, deadline)
        if not failure.shown:
            failure.script, failure.shown = plain, False


def _run_script(failure: Failure, worker: Worker, deadline: float) -> None:
    left = deadline - time.monotonic()
    if failure.script is None or left <= 0:
        return
    timeout = min(worker.timeout, left)
    result = run_alone(worker.python, failure.script, timeout=timeout, env=worker.env)
    if result.outcome == KernelOutcome.TIMEOUT and timeout < worker.timeout:
        return  # the budget ended it: nothing was shown
    failure.said = str(result.observed.get("said") or result.reason)
    code, died = result.observed.get("code"), "Traceback" in failure.said
    raised = [kind.partition(":")[2] for kind in failure.kinds if kind.startswith("failed:")]
    if KernelOutcome.TIMEOUT in failure.kinds:
        failure.shown = result.outcome == KernelOutcome.TIMEOUT
    elif raised:
        failure.shown = code == 1 and any(name in failure.said for name in raised)
    elif KernelOutcome.CRASHED in failure.kinds:
        failure.shown = isinstance(code, int) and code not in (0, 1)
    else:
        failure.shown = code == 1 and not died
