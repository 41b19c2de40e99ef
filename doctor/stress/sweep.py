"""The whole sweep: discovery, the plan, one or more processes per device, the journal, and the failures."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from doctor._version import __version__
from doctor.errors import DoctorError, NoDiagnosis
from doctor.runner.result import KernelResult
from doctor.stress.devices import on_gpu, stack_of
from doctor.util.machine import this_machine
from doctor.util.redact import shortened

from .devices import Device, devices_of, disagreements
from .discovery import SweepOptions, discover, own_functions, selected_backends
from .failures import COMPILER_CHECK, Failure, collect_failures
from .journal import Journal
from .partition import DevicePartition
from .plan import SweepPlan, key, plan
from .processes import compile_settings, processes_per_device, shares
from .verdict import BAD, CaseVerdict, fault_kinds, verdict
from .worker import Worker

#: Share of the budget that is kept for minimizing failing cases, once there are any.
SHRINK_SHARE = 0.25
CLOSING_WAIT = 20.0  # seconds to wait for the threads of an interrupted sweep

#: (device, case, result)
Record = tuple[str, dict[str, Any], KernelResult]


@dataclass
class SweepResult:
    """The results of a sweep."""

    hello: Mapping[str, Any]
    plan: SweepPlan
    devices: list[Device]
    records: list[Record]
    failures: list[Failure] = field(default_factory=list)
    disagreements: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    vanished: list[tuple[str, str]] = field(default_factory=list)  # (lost GPU, its last message)
    resumed: int = 0
    complete: bool = True
    processes: int = 1  # on each device

    @property
    def totals(self) -> dict[CaseVerdict, int]:
        """Return the number of cases by verdict, over all devices; cases that were not reached are counted too."""
        counts = Counter(verdict(result) for _, _, result in self.records)
        counts[CaseVerdict.NOT_REACHED] = len(self.plan.cases) * len(self.devices) - len(self.records)
        return {name: count for name, count in counts.items() if count}

    @property
    def bad(self) -> bool:
        """Return whether anything is wrong."""
        return bool(self.failures or self.disagreements or self.vanished)


def sweep(
    options: SweepOptions,
    progress: Callable[[int, int, int], None] = lambda done, total, bad: None,
    on_step: Callable[[str], None] = lambda text: None,
    minimized: Callable[[int, int], None] = lambda done, total: None,
) -> SweepResult:
    """Run a sweep.

    `progress` is called with (cases done, cases planned, bad cases), `minimized` with (failing
    cases minimized, failing cases), `on_step` with the name of any other phase. The budget bounds the whole call:
    discovery, cases, and minimizing. NoDiagnosis if no case could be judged.
    """
    began = time.monotonic()
    deadline = began + options.budget if options.budget else math.inf
    hello, problems = discover(options, on_step, deadline)
    device = str(hello["device"])
    devices, trouble = devices_of(hello if on_gpu(device) else {}, options.memory)
    if not devices:
        raise NoDiagnosis(f"no GPU can be used: {'; '.join(trouble)}")
    backends = selected_backends(options, hello, device)
    planned = plan(backends, device, options.cases or (2400 if on_gpu(device) else 600), options.seed)
    stack = stack_of(hello)
    stack.update(seed=options.seed, cases=len(planned.cases), backends=sorted(backends), own=own_functions(backends))
    stack["attn-doctor"] = __version__
    notes = [*problems, *trouble, *(note for one in devices for note in one.notes)]
    result = SweepResult(hello, planned, devices, [], notes=notes)
    result.processes = _processes(options, result)
    journal = _open_journal(options, stack, result)
    result.resumed = journal.resumed
    ready = time.monotonic()
    try:
        result.complete = _run_cases(options, result, journal, progress, deadline)
        if journal.problem is not None:
            text = f"cannot write the journal `{journal.path}`: {journal.problem}"
            result.notes.append(f"{text}; later results are not kept")
        _require_verdict(result)
        result.seconds = {**(hello.get("seconds") or {}), "prepare": ready - began, "wall": time.monotonic() - ready}
        spent = sum(one.seconds for _, _, one in result.records)
        result.seconds["cases"] = spent / len(devices) / result.processes
        models = {one.name: one.label.partition("(")[2] for one in devices}
        result.disagreements = disagreements(result.records, models)
        _minimize(options, result, on_step, minimized, deadline)
        if on_gpu(device) and not options.backends:
            _check_triton(options, result, deadline)
        if result.complete:
            journal.finish()
    finally:
        journal.close()
    return result


def _open_journal(options: SweepOptions, stack: Mapping[str, Any], result: SweepResult) -> Journal:
    """Open the journal; without a named one the sweep runs even if none can be written."""
    limits = {"timeout": options.timeout, "memory": options.memory}
    try:
        return Journal(options.journal, stack, restart=options.restart, limits=limits)
    except DoctorError as problem:
        if options.must_keep:
            raise
        result.notes.append(f"{problem.message}; the sweep is not kept")
        return Journal(None, stack)


class _PartThread(threading.Thread):
    """Runs one part of the cases; its findings are its own until it has ended."""

    def __init__(
        self, part: DevicePartition, run: Callable[[DevicePartition], bool], ended: threading.Semaphore
    ) -> None:
        super().__init__(daemon=True)
        self.part, self._run_part, self._ended = part, run, ended
        self.finished = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run the part; the main thread raises its error."""
        try:
            self.finished = self._run_part(self.part)
        except BaseException as error:
            self.error = error
        finally:
            self._ended.release()


def _run_cases(
    options: SweepOptions,
    result: SweepResult,
    journal: Journal,
    progress: Callable[[int, int, int], None],
    deadline: float,
) -> bool:
    """Run the cases on all devices at once; return whether every case was run."""
    lock, stop, ended = threading.Lock(), threading.Event(), threading.Semaphore(0)
    bad = 0
    total = len(result.plan.cases) * len(result.devices)
    count = result.processes
    compiling = compile_settings(count * len(result.devices), this_machine())
    # Once a case has failed, the last part of the budget is for minimizing it.
    until = deadline - min(options.shrink, SHRINK_SHARE * (options.budget or 0.0))

    def stopped() -> bool:
        return stop.is_set() or (bad > 0 and time.monotonic() > until)

    def part_of(device: Device) -> DevicePartition:
        def on_case(case: dict[str, Any], one: KernelResult, fresh: bool) -> None:
            nonlocal bad
            with lock:
                if fresh:
                    journal.add(device.name, case, one)
                result.records.append((device.name, case, one))
                bad += verdict(one) in BAD
                progress(len(result.records), total, bad)

        own = {**device.env, **compiling}
        return DevicePartition(device, Worker(options.python, timeout=options.timeout, env=own), on_case)

    def run_part(cases: tuple[dict[str, Any], ...], share: int | None) -> Callable[[DevicePartition], bool]:
        return lambda part: part.run(cases, journal, share, deadline, stopped)

    threads = []
    for device in result.devices:
        share = device.memory_bytes // count if device.memory_bytes else None
        for cases in shares(result.plan.cases, count):
            threads.append(_PartThread(part_of(device), run_part(cases, share), ended))
    for thread in threads:
        thread.start()
    waiting = len(threads)
    try:
        while waiting:  # not Thread.join: after an interrupt it treats the thread as ended
            ended.acquire()
            waiting -= 1
    finally:
        stop.set()
        for _ in range(waiting):
            ended.acquire(timeout=CLOSING_WAIT)
    _merge_parts(result, threads)
    return all(thread.finished for thread in threads)


def _merge_parts(result: SweepResult, threads: Sequence[_PartThread]) -> None:
    """Take over what the ended threads found; raise the first error."""
    for thread in threads:
        if thread.error is not None:
            raise thread.error
        part = thread.part
        result.notes += part.notes
        if part.lost is not None and part.device.label not in dict(result.vanished):
            result.vanished.append((part.device.label, part.lost))


def _processes(options: SweepOptions, result: SweepResult) -> int:
    """Return how many processes share each device: as many as the user says, or as the machine allows."""
    wanted = options.processes or processes_per_device(result.devices, this_machine())
    return min(wanted, max(1, len(result.plan.cases)))


def _minimize(
    options: SweepOptions,
    result: SweepResult,
    on_step: Callable[[str], None],
    minimized: Callable[[int, int], None],
    deadline: float,
) -> None:
    failing: list[tuple[dict[str, Any], KernelResult]] = []
    seen: set[str] = set()
    for _, case, one in result.records:
        if verdict(one) in BAD and key(case) not in seen:  # once, however many GPUs showed it
            seen.add(key(case))
            failing.append((case, one))
    if not failing:
        return
    failing.sort(key=lambda pair: _oddness(pair[0]))
    began = time.monotonic()
    worker = Worker(options.python, timeout=options.timeout, env=result.devices[0].env)
    result.failures = collect_failures(
        failing, worker, seconds=options.shrink, deadline=deadline, on_step=on_step, minimized=minimized
    )
    result.seconds["shrink"] = time.monotonic() - began


def _check_triton(options: SweepOptions, result: SweepResult, deadline: float = math.inf) -> None:
    """Compile a small kernel: finds trouble with ptxas, libcuda, compilers and cache folders."""
    worker = Worker(options.python, timeout=max(120.0, options.timeout), env=result.devices[0].env)
    one = worker.run_one({"op": COMPILER_CHECK}, deadline)
    if time.monotonic() > deadline:
        result.notes.append("triton: not checked, the budget was spent")
    elif verdict(one) in BAD:
        case = {"backend": COMPILER_CHECK}
        result.failures.append(Failure(COMPILER_CHECK, tuple(fault_kinds(one)), case, one.reason, one))
    else:
        result.notes.append(f"triton: {one.reason or 'compiles and runs a kernel'}")


def _oddness(case: Mapping[str, Any]) -> int:
    """Return how far a case is from plain: plain cases come first, because what they show explains the others."""
    plain = {"mask": "no_mask", "layout": "bhsd", "grad": "dense", "how": "eager", "deterministic": False}
    odd: int = sum(case.get(name) != value for name, value in plain.items())
    return odd + sum(bool(case.get(name)) for name in ("dropout", "softcap", "alibi"))


def _require_verdict(result: SweepResult) -> None:
    """Raise NoDiagnosis if no case was judged: an empty sweep proves nothing."""
    totals = result.totals
    if totals.get(CaseVerdict.RIGHT) or any(totals.get(name) for name in BAD) or result.vanished:
        return
    why = next((one.reason for _, _, one in result.records if one.reason), "")
    if not result.records:
        raise NoDiagnosis("no case completed within the budget", "give it more with `--budget SECONDS`")
    became = ", ".join(f"{count} {name}" for name, count in totals.items())
    raise NoDiagnosis(
        f"no case could be judged ({became}); reason of the first: {shortened(' '.join(why.split()), 200)}"
    )


def by_backend(result: SweepResult) -> dict[str, Counter[CaseVerdict]]:
    """Return the number of cases by backend and verdict."""
    table: dict[str, Counter[CaseVerdict]] = {}
    for _, case, one in result.records:
        table.setdefault(str(case["backend"]), Counter())[verdict(one)] += 1
    planned = Counter(str(case["backend"]) for case in result.plan.cases)
    for name, count in planned.items():
        counts = table.setdefault(name, Counter())
        left = count * len(result.devices) - sum(counts.values())
        if left:
            counts[CaseVerdict.NOT_REACHED] = left
    return table


def margins(records: Sequence[Record]) -> dict[tuple[str, str], float]:
    """Return the largest error of a right result over its bound, by backend and dtype."""
    worst: dict[tuple[str, str], float] = {}
    for _, case, one in records:
        if verdict(one) != CaseVerdict.RIGHT:
            continue
        bound = one.observed.get("bound") or {}
        for name, error in (one.observed.get("errors") or {}).items():
            at = (str(case["backend"]), str(case["dtype"]))
            worst[at] = max(worst.get(at, 0.0), float(error["rel"]) / float(bound[name]))
    return worst
