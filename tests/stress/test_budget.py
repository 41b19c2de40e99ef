"""The budget bounds a whole sweep, minimizing included, and every phase reports progress."""

from __future__ import annotations

import math
import time

import pytest

from doctor.errors import NoDiagnosis
from doctor.runner.result import KernelResult
from doctor.stress import failures
from doctor.stress import sweep as module
from doctor.stress.discovery import SweepOptions
from doctor.stress.failures import collect_failures
from doctor.stress.plan import plan
from doctor.stress.worker import Worker

HELLO = {"torch": "2.13", "cuda": None, "device": "cpu", "devices": [], "versions": {},
         "backends": {"sdpa.default": None, "sdpa.math": None}}  # fmt: skip
PLAN = plan(["sdpa.default", "sdpa.math"], "cpu", 90)
WRONG = KernelResult("ran", {"verdict": "wrong", "faults": ["out"], "bits": 0, "errors": {}})
RIGHT = KernelResult("ran", {"verdict": "ok", "faults": [], "bits": 0})


class Slow(Worker):
    """Every request takes a while; `bad` backends are wrong."""

    seconds, bad = 0.1, ("sdpa.math",)

    def run(self, requests, on_result, until=None, skip=None, stop=lambda: False, *rest, **more):
        for request in requests:
            began = time.monotonic()
            while time.monotonic() - began < self.seconds:
                if stop() or (until is not None and time.monotonic() > until):
                    return False
                time.sleep(0.005)
            if request.get("op") == "hello":
                on_result(request, KernelResult("ran", HELLO))
            elif request.get("op") == "shrink":
                on_result(request, KernelResult("ran", {"reproduced": True, "case": request["case"], "script": "1"}))
            else:
                on_result(request, WRONG if request.get("backend") in self.bad else RIGHT)
        return True


@pytest.fixture
def slow(monkeypatch):
    for where in (module, "doctor.stress.discovery"):
        monkeypatch.setattr(*((where, "Worker", Slow) if where is module else (f"{where}.Worker", Slow)))
    shown = []

    def run_alone(python, script, *, timeout, env):
        shown.append(timeout)
        time.sleep(min(timeout, 0.3))
        return KernelResult("ran", {"code": 1, "said": ""})

    monkeypatch.setattr(failures, "run_alone", run_alone)
    monkeypatch.setattr(module, "plan", lambda *arguments: PLAN)  # making one takes a while on a busy machine
    return shown


def test_a_budget_bounds_the_whole_sweep_and_leaves_time_to_minimize(slow):
    began = time.monotonic()
    outcome = module.sweep(SweepOptions("python", budget=3.0, cases=90, device="cpu"))
    assert time.monotonic() - began < 6
    assert not outcome.complete and outcome.failures and outcome.failures[0].small is not None
    assert outcome.failures[0].shown is not None, "there was time left for its script"
    assert 0.1 < outcome.seconds["shrink"] < 3


def test_without_failures_the_cases_get_the_whole_budget(slow, monkeypatch):
    monkeypatch.setattr(Slow, "bad", ())
    began = time.monotonic()
    outcome = module.sweep(SweepOptions("python", budget=2.0, cases=90, device="cpu"))
    assert 1.9 < time.monotonic() - began < 5 and not outcome.failures
    assert outcome.seconds["wall"] > 1.0


def test_the_deadline_ends_minimizing_and_its_scripts(slow):
    failing = [
        ({"backend": name, "mask": mask, "layout": "bhsd"}, WRONG)
        for name in ("sdpa.math", "sdpa.flash") for mask in ("causal", "boolean", "blind", "window")
    ]  # fmt: skip
    began = time.monotonic()
    found = collect_failures(failing, Slow("python", timeout=60.0), seconds=100, deadline=began + 0.3)
    assert time.monotonic() - began < 3 and 0 < len(found) <= len(failing)
    assert any(item.small is None for item in found), "not all were reached"
    assert all(timeout <= 0.3 for timeout in slow), "a script may take what is left, and no more"


def test_minimizing_reports_progress(slow):
    failing = [({"backend": f"file:x:{number}", "mask": "causal", "layout": "bhsd"}, WRONG) for number in range(8)]
    steps: list[str] = []
    counts: list[tuple[int, int]] = []
    collect_failures(
        failing, Slow("python", timeout=60.0), seconds=100, on_step=steps.append,
        minimized=lambda done, total: counts.append((done, total)),
    )  # fmt: skip
    assert counts == [(done, 8) for done in range(9)] and steps == ["running 8 reproduction scripts"]


def test_a_budget_that_the_look_at_the_libraries_spends_is_said(slow, monkeypatch):
    monkeypatch.setattr(Slow, "seconds", 5.0)
    began = time.monotonic()
    with pytest.raises(NoDiagnosis, match="budget"):
        module.sweep(SweepOptions("python", budget=0.3, cases=4, device="cpu"))
    assert time.monotonic() - began < 4


def test_no_deadline_is_no_limit(slow):
    failing = [({"backend": "sdpa.math", "mask": "causal", "layout": "bhsd"}, WRONG)]
    (found,) = collect_failures(failing, Slow("python", timeout=60.0), seconds=100, deadline=math.inf)
    assert found.shown is True
