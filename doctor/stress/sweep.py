"""The whole sweep: what is here, the plan, one process per GPU, the journal, and what came out of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import NoDiagnosis
from ..target import Answer
from .failures import BAD, Failure, gather, kinds, verdict
from .gpus import Lane, disagreements, lanes
from .here import Options, chosen, look
from .journal import Journal
from .plan import Plan, key, plan
from .worker import Worker

TRIES = 3  # processes a backend may take down on one GPU before the rest of its cases is left out
IN_A_ROW = 6  # cases that end their process, one after the other, before a GPU is given up


@dataclass
class Outcome:
    """All that a sweep found."""

    hello: Mapping[str, Any]
    plan: Plan
    lanes: list[Lane]
    records: list[tuple[str, dict[str, Any], Answer]]  # (GPU, case, answer)
    failures: list[Failure] = field(default_factory=list)
    disagreements: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    vanished: list[tuple[str, str]] = field(default_factory=list)  # (GPU that was lost on the way, what was said)
    resumed: int = 0
    complete: bool = True

    @property
    def bad(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.failures or self.disagreements or self.vanished)


def sweep(
    options: Options,
    progress: Callable[[int, int, int], None] = lambda done, total, bad: None,
    tell: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Carry out a sweep. `progress` hears (cases done, cases planned, bad ones)."""
    began = time.monotonic()
    hello, problems = look(options, tell)
    device = str(hello["device"])
    here, trouble = lanes(hello, options.memory) if device.startswith("cuda") else lanes({}, None)
    if not here:
        raise NoDiagnosis(f"no GPU can be used: {'; '.join(trouble)}")
    backends = chosen(options, hello, device)
    planned = plan(backends, device, options.cases or (2400 if device.startswith("cuda") else 600), options.seed)
    stack = {name: hello.get(name) for name in ("torch", "cuda", "versions", "device")}
    stack.update(seed=options.seed, cases=len(planned.cases), backends=sorted(backends))
    journal = Journal(options.journal, stack, restart=options.restart)
    outcome = Outcome(hello, planned, here, [], notes=[*problems, *trouble, *(n for lane in here for n in lane.notes)])
    outcome.resumed = journal.resumed
    ready = time.monotonic()
    try:
        outcome.complete = _run_lanes(options, outcome, journal, progress)
        outcome.seconds = {**(hello.get("seconds") or {}), "prepare": ready - began, "wall": time.monotonic() - ready}
        spent = sum(answer.seconds for _, _, answer in outcome.records)
        outcome.seconds["cases"] = spent / len(here) / _processes(options, outcome)
        names = {lane.name: lane.label.partition("(")[2] for lane in here}
        outcome.disagreements = disagreements(outcome.records, names)
        _look_into_failures(options, outcome, tell)
        if device.startswith("cuda") and not options.backends:
            _triton(options, outcome)
        if outcome.complete:
            journal.finish()
    finally:
        journal.close()
    return outcome


def _run_lanes(options: Options, outcome: Outcome, journal: Journal, progress: Callable[[int, int, int], None]) -> bool:
    """All GPUs at once; whether every case was asked."""
    until = time.monotonic() + options.budget if options.budget else None
    lock, bad, through = threading.Lock(), Counter[str](), []
    total = len(outcome.plan.cases) * len(outcome.lanes)
    broken: list[BaseException] = []

    def note(lane: Lane, case: dict[str, Any], answer: Answer, *, fresh: bool = True) -> None:
        with lock:
            if fresh:
                journal.add(lane.name, case, answer)
            outcome.records.append((lane.name, case, answer))
            bad["bad"] += verdict(answer) in BAD
            progress(len(outcome.records), total, bad["bad"])

    def work(lane: Lane, cases: tuple[dict[str, Any], ...]) -> None:
        try:
            through.append(_one_lane(options, outcome, journal, lane, cases, note, until))
        except BaseException as error:  # told in the main thread
            broken.append(error)

    count = _processes(options, outcome)
    parts = [(lane, outcome.plan.cases[part::count]) for lane in outcome.lanes for part in range(count)]
    threads = [threading.Thread(target=work, args=part, daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]
    return all(through)


def _processes(options: Options, outcome: Outcome) -> int:
    """How many processes share a GPU: building plans and kernels keeps a core busy and the GPU idle."""
    import os

    if options.processes:
        return options.processes
    if outcome.lanes[0].name == "cpu":
        return 1
    return max(1, min(4, (os.cpu_count() or 1) // (2 * len(outcome.lanes))))


def _one_lane(
    options: Options,
    outcome: Outcome,
    journal: Journal,
    lane: Lane,
    cases: Sequence[dict[str, Any]],
    note: Callable[..., None],
    until: float | None,
) -> bool:
    killed: Counter[str] = Counter()
    in_a_row = 0
    given_up = False
    worker = Worker(options.python, timeout=options.timeout, env=lane.env)
    left = []
    share = lane.memory_bytes // _processes(options, outcome) if lane.memory_bytes else None
    for case in cases:
        known = journal.answers.get((lane.name, key(case)))
        if known is None:
            left.append({**case, "memory_bytes": share} if share else case)
        else:
            note(lane, case, known, fresh=False)

    def heard(request: Mapping[str, Any], answer: Answer) -> None:
        nonlocal in_a_row, given_up
        gone = _gone(lane, answer)
        if answer.outcome in ("crashed", "timeout"):
            killed[str(request["backend"])] += 1
        in_a_row = in_a_row + 1 if gone or answer.outcome in ("crashed", "timeout") else 0
        if in_a_row >= IN_A_ROW and not given_up:
            given_up = True
            if gone:
                outcome.vanished.append((lane.label, answer.reason))
        note(lane, {name: value for name, value in request.items() if name != "memory_bytes"}, answer)

    def skip(request: Mapping[str, Any]) -> bool:
        return given_up or killed[str(request["backend"])] >= TRIES

    finished = worker.run(left, heard, until, skip, lambda: given_up)
    for backend, count in killed.items():
        if count >= TRIES:
            outcome.notes.append(
                f"{lane.label}: `{backend}` ended its process {count} times; its other cases were left out"
            )
    if given_up:
        outcome.notes.append(f"{lane.label}: given up after {IN_A_ROW} cases in a row that could not be asked")
    return finished and not given_up


def _gone(lane: Lane, answer: Answer) -> bool:
    """Whether this reads as if the device were no longer there: no case is to blame for that alone."""
    if lane.name == "cpu":
        return False
    lost = answer.outcome == "failed" and "CUDA error" in answer.reason
    return lost or (answer.outcome == "unavailable" and "sees no CUDA device" in answer.reason)


def _look_into_failures(options: Options, outcome: Outcome, tell: Callable[[str], None]) -> None:
    failing: list[tuple[dict[str, Any], Answer]] = []
    seen: set[str] = set()
    for _, case, answer in outcome.records:
        if verdict(answer) in BAD and key(case) not in seen:  # once, however many GPUs showed it
            seen.add(key(case))
            failing.append((case, answer))
    if not failing:
        return
    failing.sort(key=lambda pair: _plainness(pair[0]))
    began = time.monotonic()
    worker = Worker(options.python, timeout=options.timeout, env=outcome.lanes[0].env)
    outcome.failures = gather(failing, worker, seconds=options.shrink, tell=tell)
    outcome.seconds["shrink"] = time.monotonic() - began


def _triton(options: Options, outcome: Outcome) -> None:
    """A small kernel compiled now: finds trouble with ptxas, libcuda, compilers and cache folders."""
    worker = Worker(options.python, timeout=max(120.0, options.timeout), env=outcome.lanes[0].env)
    answer = worker.ask({"op": "triton"})
    if verdict(answer) in BAD:
        outcome.failures.append(Failure("triton", tuple(kinds(answer)), {"backend": "triton"}, answer.reason, answer))
    else:
        outcome.notes.append(f"triton: {answer.reason or 'compiles and runs a kernel'}")


def _plainness(case: Mapping[str, Any]) -> int:
    """Plain cases first: what they show explains the others."""
    plain = {"mask": "no_mask", "layout": "bhsd", "grad": "dense", "how": "eager", "deterministic": False}
    odd: int = sum(case.get(name) != value for name, value in plain.items())
    return odd + sum(bool(case.get(name)) for name in ("dropout", "softcap", "alibi"))


def by_backend(outcome: Outcome) -> dict[str, Counter[str]]:
    """Verdicts per backend."""
    table: dict[str, Counter[str]] = {}
    for _, case, answer in outcome.records:
        table.setdefault(str(case["backend"]), Counter())[verdict(answer)] += 1
    return table


def margins(records: Sequence[tuple[str, dict[str, Any], Answer]]) -> dict[tuple[str, str], float]:
    """Largest error of a right answer over its bound, per backend and dtype: how near healthy kernels come."""
    worst: dict[tuple[str, str], float] = {}
    for _, case, answer in records:
        if verdict(answer) != "right":
            continue
        bound = answer.observed.get("bound") or {}
        for name, error in (answer.observed.get("errors") or {}).items():
            at = (str(case["backend"]), str(case["dtype"]))
            worst[at] = max(worst.get(at, 0.0), float(error["rel"]) / float(bound[name]))
    return worst
