"""A part of a sweep: cases of one device that run one after the other, and when the rest is given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from doctor.runner.result import ENDED_PROCESS, KernelOutcome, KernelResult

from .devices import Device
from .journal import Journal
from .plan import key
from .worker import Worker

MAX_CRASHES = 3  # processes a backend may end on one device before the rest of its cases is left out
MAX_IN_A_ROW = 6  # consecutive cases that end their process before a device is given up
LONGER = 3  # factor on the timeout of a case that is run again

#: Receives (case, result, whether it is new and not from the journal).
OnCase = Callable[[dict[str, Any], KernelResult, bool], None]


class DevicePartition:
    """Runs cases on one device, one after the other."""

    def __init__(self, device: Device, worker: Worker, on_case: OnCase) -> None:
        self.device, self.worker, self.on_case = device, worker, on_case
        self.notes: list[str] = []
        self.lost: str | None = None  # the last message of a device, or an interpreter, that no longer responds
        self._crashes: Counter[str] = Counter()  # by backend
        self._in_a_row = 0
        #: Results as if the device were gone: the following cases show whether it is.
        self._gone: list[tuple[dict[str, Any], KernelResult]] = []
        self._given_up = False
        self._late: list[tuple[Mapping[str, Any], KernelResult]] = []  # timed out, and not run again yet

    def run(
        self,
        cases: Sequence[dict[str, Any]],
        journal: Journal,
        memory_bytes: int | None,
        until: float | None,
        stop: Callable[[], bool],
    ) -> bool:
        """Run the cases that the journal does not contain; return whether all were run."""
        left = []
        for case in cases:
            known = journal.results.get((self.device.name, key(case)))
            if known is None:
                left.append({**case, "memory_bytes": memory_bytes} if memory_bytes else case)
            else:
                self._count(case, known)
                self.on_case(case, known, False)

        def stopped() -> bool:
            return self._given_up or stop()

        finished = self.worker.run(left, self._on_result, until, self._skip, stopped, self._on_no_progress)
        self._settle()
        self._run_late(until, stopped)
        for backend, count in self._crashes.items():
            if count >= MAX_CRASHES:
                text = f"`{backend}` ended its process {count} times; its other cases were left out"
                self.notes.append(f"{self.device.label}: {text}")
        if self._given_up:
            text = f"given up after {MAX_IN_A_ROW} consecutive cases that could not run"
            self.notes.append(f"{self.device.label}: {text}")
        return finished and not self._given_up

    def _on_result(self, request: Mapping[str, Any], result: KernelResult) -> None:
        case = case_of(request)
        gone, died = is_gone(self.device, result), result.outcome in ENDED_PROCESS
        self._count(case, result)
        self._in_a_row = self._in_a_row + 1 if gone or died else 0
        if gone:
            self._gone.append((case, result))
        else:
            self._settle()
            if result.outcome == KernelOutcome.TIMEOUT:
                self._late.append((request, result))
            else:
                self.on_case(case, result, True)
        if self._in_a_row >= MAX_IN_A_ROW and not self._given_up:
            self._given_up = True
            if gone:
                self.lost = result.reason
                del self._gone[1:]  # the first case may have caused it; the others found the device gone

    def _run_late(self, until: float | None, stop: Callable[[], bool]) -> None:
        """Run cases that timed out once more, with a longer limit: on a busy host a timeout is no fault of a case."""
        slower = Worker(self.worker.python, timeout=LONGER * self.worker.timeout, env=self.worker.env)
        results: list[KernelResult] = []
        for request, first in self._late:
            results.clear()
            if self._crashes[str(request["backend"])] < MAX_CRASHES:
                slower.run([request], lambda _, result: results.append(result), until, stop=stop)
            self.on_case(case_of(request), results[0] if results else first, True)
        self._late.clear()

    def _settle(self) -> None:
        """Report the held back results: the device is there after all, or no more cases follow."""
        for case, result in self._gone:
            self.on_case(case, result, True)
        self._gone.clear()

    def _count(self, case: Mapping[str, Any], result: KernelResult) -> None:
        if result.outcome in ENDED_PROCESS:
            self._crashes[str(case["backend"])] += 1

    def _skip(self, request: Mapping[str, Any]) -> bool:
        return self._given_up or self._crashes[str(request["backend"])] >= MAX_CRASHES

    def _on_no_progress(self, result: KernelResult) -> None:
        self.lost = f"the program no longer reaches a case: {result.reason}"


def case_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the case of a request, without the memory limit."""
    return {name: value for name, value in request.items() if name != "memory_bytes"}


def is_gone(device: Device, result: KernelResult) -> bool:
    """Return whether the result reads as if the device were lost; a single such result does not prove it."""
    if device.name == "cpu":
        return False
    lost = result.outcome == KernelOutcome.FAILED and "CUDA error" in result.reason
    return lost or (result.outcome == KernelOutcome.UNAVAILABLE and "sees no CUDA device" in result.reason)
