"""The whole sweep: what is here, the plan, one process per GPU, the journal, and what came out of it."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from doctor._version import __version__
from doctor.errors import DoctorError, NoDiagnosis
from doctor.runner.result import KernelResult

from .devices import Device, disagreements, lanes
from .discovery import Options, chosen, look, own_functions
from .failures import BAD, Failure, gather, kinds, verdict
from .journal import Journal
from .partition import DevicePartition
from .plan import SweepPlan, key, plan
from .worker import Worker


@dataclass
class SweepResult:
    """All that a sweep found."""

    hello: Mapping[str, Any]
    plan: SweepPlan
    lanes: list[Device]
    records: list[tuple[str, dict[str, Any], KernelResult]]  # (GPU, case, answer)
    failures: list[Failure] = field(default_factory=list)
    disagreements: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    vanished: list[tuple[str, str]] = field(default_factory=list)  # (GPU that was lost on the way, what was said)
    resumed: int = 0
    complete: bool = True

    @property
    def totals(self) -> dict[str, int]:
        """How many cases became what; with those that were not reached, as many as were planned for all devices."""
        counts = Counter(verdict(answer) for _, _, answer in self.records)
        counts["not reached"] = len(self.plan.cases) * len(self.lanes) - len(self.records)
        return {name: count for name, count in counts.items() if count}

    @property
    def bad(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.failures or self.disagreements or self.vanished)


def sweep(
    options: Options,
    progress: Callable[[int, int, int], None] = lambda done, total, bad: None,
    tell: Callable[[str], None] = lambda text: None,
) -> SweepResult:
    """Carry out a sweep. `progress` hears (cases done, cases planned, bad ones)."""
    began = time.monotonic()
    hello, problems = look(options, tell)
    device = str(hello["device"])
    here, trouble = lanes(hello if device.startswith("cuda") else {}, options.memory)
    if not here:
        raise NoDiagnosis(f"no GPU can be used: {'; '.join(trouble)}")
    backends = chosen(options, hello, device)
    planned = plan(backends, device, options.cases or (2400 if device.startswith("cuda") else 600), options.seed)
    stack = {name: hello.get(name) for name in ("torch", "cuda", "versions", "device")}
    stack.update(seed=options.seed, cases=len(planned.cases), backends=sorted(backends), own=own_functions(backends))
    stack["attn-doctor"] = __version__
    outcome = SweepResult(
        hello, planned, here, [], notes=[*problems, *trouble, *(n for lane in here for n in lane.notes)]
    )
    journal = _journal(options, stack, outcome)
    outcome.resumed = journal.resumed
    ready = time.monotonic()
    try:
        outcome.complete = _run_lanes(options, outcome, journal, progress)
        if journal.problem is not None:
            text = f"cannot write the journal `{journal.path}`: {journal.problem}"
            outcome.notes.append(f"{text}; what came after is kept nowhere")
        _any_judged(outcome)
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


def _journal(options: Options, stack: Mapping[str, Any], outcome: SweepResult) -> Journal:
    """The journal asked for; the one that nobody asked for is done without where it cannot be had."""
    limits = {"timeout": options.timeout, "memory": options.memory}
    try:
        return Journal(options.journal, stack, restart=options.restart, limits=limits)
    except DoctorError as problem:
        if options.must_keep:
            raise
        outcome.notes.append(f"{problem.message}; the sweep is kept nowhere")
        return Journal(None, stack)


def _run_lanes(
    options: Options, outcome: SweepResult, journal: Journal, progress: Callable[[int, int, int], None]
) -> bool:
    """All GPUs at once; whether every case was asked."""
    until = time.monotonic() + options.budget if options.budget else None
    lock, bad, through = threading.Lock(), Counter[str](), []
    stop, ended = threading.Event(), threading.Semaphore(0)
    total = len(outcome.plan.cases) * len(outcome.lanes)
    broken: list[BaseException] = []
    count = _processes(options, outcome)

    def work(lane: Device, cases: tuple[dict[str, Any], ...]) -> None:
        def note(case: dict[str, Any], answer: KernelResult, fresh: bool) -> None:
            with lock:
                if fresh:
                    journal.add(lane.name, case, answer)
                outcome.records.append((lane.name, case, answer))
                bad["bad"] += verdict(answer) in BAD
                progress(len(outcome.records), total, bad["bad"])

        try:
            part = DevicePartition(lane, Worker(options.python, timeout=options.timeout, env=lane.env), note)
            share = lane.memory_bytes // count if lane.memory_bytes else None
            through.append(part.ask(cases, journal, share, until, stop.is_set))
            outcome.notes += part.notes
            if part.lost is not None and lane.label not in dict(outcome.vanished):
                outcome.vanished.append((lane.label, part.lost))
        except BaseException as error:  # told in the main thread
            broken.append(error)
        finally:
            ended.release()

    parts = [(lane, outcome.plan.cases[part::count]) for lane in outcome.lanes for part in range(count)]
    for part in parts:
        threading.Thread(target=work, args=part, daemon=True).start()
    waiting = len(parts)
    try:
        while waiting:  # not `Thread.join`, which an interrupt makes take the thread for ended
            ended.acquire()
            waiting -= 1
    finally:
        stop.set()
        for _ in range(waiting):
            ended.acquire(timeout=20)
    if broken:
        raise broken[0]
    return all(through)


def _processes(options: Options, outcome: SweepResult) -> int:
    """How many processes share a GPU: building plans and kernels keeps a core busy and the GPU idle."""

    if options.processes:
        return min(options.processes, max(1, len(outcome.plan.cases)))
    if outcome.lanes[0].name == "cpu":
        return 1
    return max(1, min(4, (os.cpu_count() or 1) // (2 * len(outcome.lanes))))


def _look_into_failures(options: Options, outcome: SweepResult, tell: Callable[[str], None]) -> None:
    failing: list[tuple[dict[str, Any], KernelResult]] = []
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


def _triton(options: Options, outcome: SweepResult) -> None:
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


def _any_judged(outcome: SweepResult) -> None:
    """Nothing found where nothing was seen is no good news."""
    totals = outcome.totals
    if totals.get("right") or any(totals.get(name) for name in BAD) or outcome.vanished:
        return
    why = next((answer.reason for _, _, answer in outcome.records if answer.reason), "")
    if not outcome.records:
        raise NoDiagnosis("no case was answered within the budget", "give it more with `--budget SECONDS`")
    became = ", ".join(f"{count} {name}" for name, count in totals.items())
    raise NoDiagnosis(f"no case could be judged ({became}); the first said: {' '.join(why.split())[:200]}")


def by_backend(outcome: SweepResult) -> dict[str, Counter[str]]:
    """Verdicts per backend."""
    table: dict[str, Counter[str]] = {}
    for _, case, answer in outcome.records:
        table.setdefault(str(case["backend"]), Counter())[verdict(answer)] += 1
    planned = Counter(str(case["backend"]) for case in outcome.plan.cases)
    for name, count in planned.items():
        counts = table.setdefault(name, Counter())
        left = count * len(outcome.lanes) - sum(counts.values())
        if left:
            counts["not reached"] = left
    return table


def margins(records: Sequence[tuple[str, dict[str, Any], KernelResult]]) -> dict[tuple[str, str], float]:
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
