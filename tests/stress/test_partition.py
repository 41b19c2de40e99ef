"""A device's part of a sweep: what did not answer in time runs once more, and longer."""

from __future__ import annotations

from typing import Any

import pytest

from doctor.runner.result import KernelResult
from doctor.stress import partition
from doctor.stress.devices import Device
from doctor.stress.journal import Journal

LATE = KernelResult("timeout", reason="no answer within 60 s")


class Slow:
    """A worker whose cases answer when they are given the seconds they take."""

    def __init__(self, python: str, *, timeout: float, env: Any = None) -> None:
        self.python, self.timeout, self.env = python, timeout, env

    def run(self, requests: Any, heard: Any, until: Any = None, *rest: Any, stop: Any = None) -> bool:
        for request in requests:
            heard(request, KernelResult("ran") if request["takes"] <= self.timeout else LATE)
        return until is None


@pytest.fixture
def outcomes(monkeypatch, tmp_path):
    monkeypatch.setattr(partition, "Worker", Slow)

    def ask(*takes: float) -> list[str]:
        noted: list[tuple[Any, str]] = []
        part = partition.DevicePartition(
            Device("0", "GPU 0", {}),
            Slow("python", timeout=60.0),
            lambda case, answer, new: noted.append((case, answer.outcome)),
        )
        cases = [{"backend": "flex", "takes": seconds, "seed": number} for number, seconds in enumerate(takes)]
        part.run(cases, Journal(tmp_path / "journal", {}), 1 << 30, None, lambda: False)
        assert all("memory_bytes" not in case for case, _ in noted) and len(noted) == len(takes)
        return [outcome for _, outcome in sorted(noted, key=lambda item: item[0]["seed"])]

    return ask


def test_a_slow_case_is_right_once_it_has_time(outcomes) -> None:
    assert outcomes(1, 100, 1) == ["ran", "ran", "ran"]


def test_a_hang_stays_one(outcomes) -> None:
    assert outcomes(1, 1000) == ["ran", "timeout"]


def test_a_backend_that_hangs_repeatedly_is_not_run_again(outcomes) -> None:
    assert outcomes(*[100] * partition.MAX_CRASHES) == ["timeout"] * partition.MAX_CRASHES
