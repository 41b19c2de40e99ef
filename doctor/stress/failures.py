"""What failed: cases gathered under the smallest form of each fault, with a script that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from doctor.runner.result import KernelResult, out_of_memory
from doctor.runner.run import run_alone

from .worker import Worker

BAD = ("wrong", "failed", "crashed", "timeout")
CATEGORIES = (
    "mask", "bias_shape", "bias_grad", "alone", "layout", "sequences", "grad", "how", "before", "dropout", "softcap",
    "alibi", "scale", "deterministic",
)  # fmt: skip
PLAINEST = {
    "mask": "no_mask", "before": "nothing", "layout": "bhsd", "grad": "dense", "how": "eager", "dropout": 0.0,
    "softcap": 0.0, "alibi": False, "deterministic": False, "training": True, "bias_shape": "b1ss", "bias_grad": False,
    "alone": False, "sequences": "some_empty", "scale": None,
}  # fmt: skip


def verdict(answer: KernelResult) -> str:
    """right, wrong, refused, unavailable, no memory, failed, crashed or timeout."""
    if answer.outcome == "ran":
        return "wrong" if answer.observed.get("verdict") == "wrong" else "right"
    if out_of_memory(answer):
        return "no memory"
    return answer.outcome


def kinds(answer: KernelResult) -> list[str]:
    """What kinds of fault this answer is about."""
    if answer.outcome == "ran":
        return list(answer.observed.get("faults") or [])
    if answer.outcome == "failed":
        return ["failed:" + answer.reason.split(":")[0].rsplit(".")[-1]]
    return [answer.outcome]


@dataclass
class Failure:
    """One fault: where it was seen, its smallest form, and how to see it again."""

    backend: str
    kinds: tuple[str, ...]
    case: dict[str, Any]  # as first seen
    reason: str
    answer: KernelResult
    small: dict[str, Any] | None = None
    errors: Mapping[str, Any] | None = None
    bound: Mapping[str, float] | None = None  # what the errors of the smallest form were held to
    script: str | None = None
    shown: bool | None = None  # whether the script, run on its own, ends with 1
    said: str = ""
    tried: int = 0
    seen: int = 1
    rules: tuple[str, ...] | None = None  # those that foretold it; none: unpredicted; None: the rulebook was not asked

    @property
    def foretold(self) -> str | None:
        """`foretold by` its rules, `unpredicted`, or None where the rulebook was not asked."""
        if self.rules is None:
            return None
        return f"foretold by {', '.join(self.rules)}" if self.rules else "unpredicted"

    def explains(self, case: Mapping[str, Any], found: Sequence[str]) -> bool:
        """Whether a failing case is this fault again: the same kind, with all that the smallest form needs."""
        if case["backend"] != self.backend or not set(found) & set(self.kinds):
            return False
        if self.small is None:  # no time was left to look: one entry for the kind
            return True
        small = self.small
        for name in CATEGORIES:
            wanted = small.get(name, PLAINEST[name])
            if wanted != PLAINEST[name] and case.get(name, PLAINEST[name]) != wanted:
                return False
        return True


def gather(
    failing: Sequence[tuple[dict[str, Any], KernelResult]],
    worker: Worker,
    *,
    seconds: float,
    each: float = 12.0,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Failure]:
    """One `Failure` per fault, the smallest forms looked for within `seconds` in all."""
    until = time.monotonic() + seconds
    first: dict[tuple[Any, ...], Failure] = {}
    for case, answer in failing:
        mine = kinds(answer)
        at = (case["backend"], tuple(mine), case["mask"], case["layout"] in ODD_LAYOUTS)
        if at not in first:
            first[at] = Failure(case["backend"], tuple(mine), dict(case), answer.reason, answer)
            first[at].errors = answer.observed.get("errors")
    faults = list(first.values())
    tell(f"looking for the smallest form of {len(faults)} failures")
    inside = [item for item in faults if item.answer.outcome in ("ran", "failed") and _survives(item.answer)]
    _shrink_inside(inside, worker, each, until)
    for item in faults:
        if item not in inside and time.monotonic() < until:
            _shrink_from_outside(item, worker, _plain(item), min(each, until - time.monotonic()))
    found = _merged(faults, failing)
    _show_all(found, worker)
    return found


#: Layouts that take another way through a library's checks than a plain tensor.
ODD_LAYOUTS = ("offset1", "expanded", "thd")


def _merged(faults: Sequence[Failure], failing: Sequence[tuple[dict[str, Any], KernelResult]]) -> list[Failure]:
    """The faults less those that another one explains, each with the number of cases that show it."""
    ranked = sorted(faults, key=lambda item: (item.small is None, len(_odd(item))))
    found: list[Failure] = []
    for item in ranked:
        mine = kinds(item.answer)
        if not any(other.explains(item.case, mine) for other in found):
            found.append(item)
    for item in found:
        item.seen = 0
    for case, answer in failing:
        known = next((item for item in found if item.explains(case, kinds(answer))), None)
        if known is not None:
            known.seen += 1
    return found


def _odd(item: Failure) -> list[str]:
    small = item.small or item.case
    return [name for name in CATEGORIES if small.get(name, PLAINEST[name]) != PLAINEST[name]]


def _plain(item: Failure) -> dict[str, Any]:
    return {name: value for name, value in item.case.items() if name not in ("profile", "memory_bytes")}


def _shrink_inside(faults: Sequence[Failure], worker: Worker, each: float, until: float) -> None:
    """All in one process as long as none dies: starting one costs more than shrinking."""
    left = list(faults)
    requests = [{"op": "shrink", "case": _plain(item), "kinds": list(item.kinds), "seconds": each} for item in left]

    def heard(_: Mapping[str, Any], answer: KernelResult) -> None:
        item, told = left.pop(0), answer.observed
        if answer.outcome == "ran" and told.get("reproduced"):
            item.small, item.script = dict(told["case"]), told["script"]
            item.errors, item.tried = told.get("errors") or item.errors, int(told.get("tried") or 0)
            item.bound = told.get("bound")
            item.kinds = tuple(told.get("faults") or item.kinds)

    worker.run(requests, heard, until)
    for item in faults:
        if item.small and item.small.get("before", "nothing") != "nothing" and time.monotonic() < until:
            _without_before(item, worker)


def _without_before(failure: Failure, worker: Worker) -> None:
    """Whether the fault needs what went before it; asked in a process of its own, where nothing did."""
    assert failure.small is not None
    plain = {**failure.small, "before": PLAINEST["before"]}
    found = set(kinds(worker.ask(plain))) & set(failure.kinds)
    if found:
        failure.small, failure.kinds = plain, tuple(kind for kind in failure.kinds if kind in found)
        failure.script = _script(failure, plain, worker)


def _survives(answer: KernelResult) -> bool:
    return "CUDA error" not in answer.reason and "device-side assert" not in answer.reason


def _shrink_from_outside(failure: Failure, worker: Worker, case: dict[str, Any], seconds: float) -> None:
    """Where each failing attempt ends the process: one process after the other, the host deciding."""
    until, wanted = time.monotonic() + seconds, set(failure.kinds)
    small = case
    moved = True
    while moved and time.monotonic() < until:
        moved = False
        for candidate in worker.ask({"op": "simpler", "case": small}).observed.get("cases") or []:
            if time.monotonic() >= until:
                break
            answer = worker.ask(candidate)
            failure.tried += 1
            if verdict(answer) in BAD and wanted & set(kinds(answer)):
                small, moved = candidate, True
                break
    failure.small = small
    failure.script = _script(failure, small, worker)


def _script(failure: Failure, case: Mapping[str, Any], worker: Worker) -> str | None:
    request = {"op": "script", "case": case, "kinds": list(failure.kinds), "bound": failure.bound}
    text = worker.ask(request).observed.get("script")
    return None if text is None else str(text)


def _show_all(faults: Sequence[Failure], worker: Worker) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: _show(item, worker), faults))


def _show(failure: Failure, worker: Worker) -> None:
    """Run the script on its own: a reproduction that does not reproduce must not be handed on unmarked."""
    if not failure.script:
        return
    _try(failure, worker)
    if failure.shown is False and failure.small:  # a fault of state: it needs a call before
        plain = failure.script
        case = {**failure.small, "primed": True}
        failure.script = _script(failure, case, worker)
        _try(failure, worker)
        if not failure.shown:
            failure.script = plain


def _try(failure: Failure, worker: Worker) -> None:
    assert failure.script is not None
    answer = run_alone(worker.python, failure.script, timeout=worker.timeout, env=worker.env)
    failure.said = str(answer.observed.get("said") or answer.reason)
    code, died = answer.observed.get("code"), "Traceback" in failure.said
    raised = [kind.partition(":")[2] for kind in failure.kinds if kind.startswith("failed:")]
    if "timeout" in failure.kinds:
        failure.shown = answer.outcome == "timeout"
    elif raised:
        failure.shown = code == 1 and any(name in failure.said for name in raised)
    elif "crashed" in failure.kinds:
        failure.shown = isinstance(code, int) and code not in (0, 1)
    else:
        failure.shown = code == 1 and not died
