"""A device's part of a sweep: its cases asked in a process of its own, and when no more of them can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from doctor.runner.result import KernelResult

from .devices import Device
from .journal import Journal
from .plan import key
from .worker import Worker

TRIES = 3  # processes a backend may take down on one GPU before the rest of its cases is left out
IN_A_ROW = 6  # cases that end their process, one after the other, before a GPU is given up
PATIENCE = 3  # times as long may a case take that is asked again

#: Hears (case, answer, whether it is new: not from the journal).
Note = Callable[[dict[str, Any], KernelResult, bool], None]


class DevicePartition:
    """Cases of one device, asked one after the other."""

    def __init__(self, lane: Device, worker: Worker, note: Note) -> None:
        self.lane, self.worker, self.note = lane, worker, note
        self.notes: list[str] = []
        self.lost: str | None = None  # what was said by a device, or an interpreter, that cannot be asked any more
        self._killed: Counter[str] = Counter()
        self._in_a_row = 0
        self._gone: list[
            tuple[dict[str, Any], KernelResult]
        ] = []  # as if the device were gone: who is to blame shows later
        self._given_up = False
        self._late: list[tuple[Mapping[str, Any], KernelResult]] = []  # no answer in time, and not asked again yet

    def ask(
        self,
        cases: Sequence[dict[str, Any]],
        journal: Journal,
        memory_bytes: int | None,
        until: float | None,
        stop: Callable[[], bool],
    ) -> bool:
        """Ask what the journal does not know; whether all was asked."""
        left = []
        for case in cases:
            known = journal.answers.get((self.lane.name, key(case)))
            if known is None:
                left.append({**case, "memory_bytes": memory_bytes} if memory_bytes else case)
            else:
                self._count(case, known)
                self.note(case, known, False)
        given_up = lambda: self._given_up or stop()  # noqa: E731
        finished = self.worker.run(left, self._heard, until, self._skip, given_up, self._barren)
        self._settle()
        self._ask_again(until, given_up)
        for backend, count in self._killed.items():
            if count >= TRIES:
                text = f"`{backend}` ended its process {count} times; its other cases were left out"
                self.notes.append(f"{self.lane.label}: {text}")
        if self._given_up:
            text = f"given up after {IN_A_ROW} cases in a row that could not be asked"
            self.notes.append(f"{self.lane.label}: {text}")
        return finished and not self._given_up

    def _heard(self, request: Mapping[str, Any], answer: KernelResult) -> None:
        case = case_of(request)
        gone, died = is_gone(self.lane, answer), answer.outcome in ("crashed", "timeout")
        self._count(case, answer)
        self._in_a_row = self._in_a_row + 1 if gone or died else 0
        if gone:
            self._gone.append((case, answer))
        else:
            self._settle()
            if answer.outcome == "timeout":
                self._late.append((request, answer))
            else:
                self.note(case, answer, True)
        if self._in_a_row >= IN_A_ROW and not self._given_up:
            self._given_up = True
            if gone:
                self.lost = answer.reason
                del self._gone[1:]  # the first may have brought it about; the others found it gone

    def _ask_again(self, until: float | None, stop: Callable[[], bool]) -> None:
        """What did not answer in time gets longer, once the rest is through: a busy host is no fault of a case."""
        patient = Worker(self.worker.python, timeout=PATIENCE * self.worker.timeout, env=self.worker.env)
        answers: list[KernelResult] = []
        for request, first in self._late:
            answers.clear()
            if self._killed[str(request["backend"])] < TRIES:
                patient.run([request], lambda _, answer: answers.append(answer), until, stop=stop)
            self.note(case_of(request), answers[0] if answers else first, True)
        self._late.clear()

    def _settle(self) -> None:
        """The device is there after all, or no more is heard of it: those answers are the cases' own."""
        for case, answer in self._gone:
            self.note(case, answer, True)
        self._gone.clear()

    def _count(self, case: Mapping[str, Any], answer: KernelResult) -> None:
        if answer.outcome in ("crashed", "timeout"):
            self._killed[str(case["backend"])] += 1

    def _skip(self, request: Mapping[str, Any]) -> bool:
        return self._given_up or self._killed[str(request["backend"])] >= TRIES

    def _barren(self, answer: KernelResult) -> None:
        self.lost = f"the program does not get to a case any more: {answer.reason}"


def case_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked, without how."""
    return {name: value for name, value in request.items() if name != "memory_bytes"}


def is_gone(lane: Device, answer: KernelResult) -> bool:
    """Whether this reads as if the device were no longer there: no case is to blame for that alone."""
    if lane.name == "cpu":
        return False
    lost = answer.outcome == "failed" and "CUDA error" in answer.reason
    return lost or (answer.outcome == "unavailable" and "sees no CUDA device" in answer.reason)
