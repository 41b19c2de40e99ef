"""A sweep over several GPUs: all at once, each with its own process; what they disagree on, and one that is lost."""

from __future__ import annotations

import contextlib
import threading

import pytest

from doctor.runner.result import KernelResult
from doctor.stress import sweep as module
from doctor.stress.discovery import SweepOptions
from doctor.stress.partition import MAX_IN_A_ROW
from doctor.stress.report import as_json, as_text
from doctor.stress.worker import Worker

GIB = 2**30


def device(index, name="NVIDIA H200"):
    return {"index": index, "name": name, "memory_bytes": 140 * GIB, "free_bytes": 139 * GIB, "uuid": f"uuid-{index}"}


class Host:
    """GPUs whose answers a test decides: `answer(gpu, case)`; None ends the process."""

    def __init__(self, names, answer):
        self.hello = {
            "torch": "2.11", "cuda": "13.0", "device": "cuda", "backends": {"sdpa.default": None, "sdpa.math": None},
            "devices": [device(index, name) for index, name in enumerate(names)], "visible": None,
        }  # fmt: skip
        self.answer = answer
        self.together = threading.Barrier(len(names))
        self.begun = set()

    def worker(self, python, *, timeout, env=None):
        host = self

        class Fake(Worker):
            def run(self, requests, heard, until=None, skip=lambda request: False, stop=lambda: False, *more, **how):
                gpu = int(self.env.get("CUDA_VISIBLE_DEVICES", -1))
                if requests and gpu >= 0 and "op" not in requests[0] and gpu not in host.begun:
                    host.begun.add(gpu)
                    host.together.wait(timeout=30)  # breaks where one GPU waits for another to finish
                for request in requests:
                    if stop():
                        return False
                    heard(request, host.answer(gpu, request))
                return True

        return Fake(python, timeout=timeout, env=env)


def sweep_of(monkeypatch, names, answer, **options):
    host = Host(names, answer)
    monkeypatch.setattr(module, "Worker", host.worker)
    monkeypatch.setattr(module, "discover", lambda options, tell, until: (host.hello, []))
    monkeypatch.setattr("doctor.stress.failures._verify_script", lambda failure, worker, deadline: None)
    return module.sweep(SweepOptions("python", cases=60, processes=1, shrink=0.01, **options))


def right(gpu, request):
    if request.get("op"):
        return KernelResult("ran", {"verdict": "ok", "faults": []})
    return KernelResult("ran", {"verdict": "ok", "faults": [], "bits": request["seed"]})


def test_all_gpus_are_checked_everything_at_the_same_time(monkeypatch):
    outcome = sweep_of(monkeypatch, ["NVIDIA H200"] * 3, right)
    assert not outcome.bad and outcome.complete and len(outcome.records) == 3 * len(outcome.plan.cases)
    assert {gpu for gpu, _, _ in outcome.records} == {"uuid-0", "uuid-1", "uuid-2"}


def test_a_gpu_that_computes_other_bits_is_a_finding(monkeypatch):
    def answer(gpu, request):
        told = right(gpu, request)
        return (
            KernelResult("ran", {**told.observed, "bits": 7}) if gpu == 1 and request.get("mask") == "causal" else told
        )

    outcome = sweep_of(monkeypatch, ["NVIDIA H200"] * 2, answer)
    assert outcome.bad and not outcome.failures
    assert {told["case"]["mask"] for told in outcome.disagreements} == {"causal"}
    text = as_text(outcome)
    assert "GPUs disagree: uuid-0 and uuid-1, the outputs differ in their bits" in text
    assert as_json(outcome)["disagreements"][0]["gpus"] == ["uuid-0", "uuid-1"]


def test_gpus_of_different_kinds_may_differ_in_bits(monkeypatch):
    def answer(gpu, request):
        return KernelResult("ran", {"verdict": "ok", "faults": [], "bits": gpu})

    assert not sweep_of(monkeypatch, ["NVIDIA H200", "NVIDIA A100"], answer).bad


def test_a_fault_of_one_gpu_is_reported_once_and_as_a_disagreement(monkeypatch):
    def answer(gpu, request):
        if gpu == 1 and request.get("mask") == "boolean":
            return KernelResult("ran", {"verdict": "wrong", "faults": ["out"], "bits": 0, "errors": {}})
        return right(gpu, request)

    outcome = sweep_of(monkeypatch, ["NVIDIA H200"] * 2, answer)
    assert outcome.failures and all("ok here, wrong there" in told["difference"] for told in outcome.disagreements)


@pytest.mark.parametrize(
    "lost",
    [
        KernelResult("unavailable", reason="torch 2.11 sees no CUDA device"),
        KernelResult("failed", reason="torch.AcceleratorError: CUDA error: unspecified launch failure"),
    ],
)
def test_a_gpu_that_vanishes_is_reported_and_costs_the_others_nothing(monkeypatch, lost):
    asked = []

    def answer(gpu, request):
        if gpu == 0 and "op" not in request:
            asked.append(request)
            if len(asked) > 20:
                return lost
        return right(gpu, request)

    outcome = sweep_of(monkeypatch, ["NVIDIA H200"] * 2, answer)
    assert outcome.bad and not outcome.complete and len(asked) == 20 + MAX_IN_A_ROW, "the rest is not asked"
    assert [label for label, _ in outcome.vanished] == ["GPU 0 (NVIDIA H200)"]
    assert sum(gpu == "uuid-1" for gpu, _, _ in outcome.records) == len(outcome.plan.cases)
    told = as_json(outcome)["cases"]
    assert sum(told["became"].values()) == told["planned"] * told["devices"] and told["became"]["not reached"] > 0
    assert sum(gpu == "uuid-0" for gpu, _, _ in outcome.records) == 21, "the first that found it gone; no case else"
    assert len(outcome.failures) <= 1, "what was asked of a GPU that is gone is no fault"
    assert "1 device lost during the sweep" in as_text(outcome) and "not reached" in as_text(outcome)
    assert "lost during the sweep: GPU 0" in as_text(outcome) and as_json(outcome)["vanished"][0]["said"] == lost.reason


class _Slow(list):
    """A list whose readers meet, as threads on different cores may."""

    def __init__(self, readers):
        super().__init__()
        self.meeting = threading.Barrier(readers)

    def __iter__(self):
        with contextlib.suppress(threading.BrokenBarrierError):
            self.meeting.wait(timeout=0.5)
        return super().__iter__()


def test_a_gpu_that_two_processes_lose_at_once_is_reported_once(monkeypatch):
    host = Host(["NVIDIA H200"], lambda gpu, request: KernelResult("failed", reason="CUDA error: GPU is lost"))
    host.begun.add(0)
    monkeypatch.setattr(module, "Worker", host.worker)
    monkeypatch.setattr(module, "discover", lambda options, tell, until: (host.hello, []))
    monkeypatch.setattr("doctor.stress.failures._verify_script", lambda failure, worker, deadline: None)

    class Result(module.SweepResult):
        def __init__(self, *arguments, **more):
            super().__init__(*arguments, **more)
            self.vanished = _Slow(2)

    monkeypatch.setattr(module, "SweepResult", Result)
    outcome = module.sweep(SweepOptions("python", cases=60, processes=2, shrink=0.01))
    assert [label for label, _ in list.__iter__(outcome.vanished)] == ["GPU 0 (NVIDIA H200)"]


def test_memory_is_shared_by_the_processes_of_a_gpu(monkeypatch):
    given = set()

    def answer(gpu, request):
        given.add(request.get("memory_bytes"))
        return right(gpu, request)

    host = Host(["NVIDIA H200"], answer)
    monkeypatch.setattr(module, "Worker", host.worker)
    monkeypatch.setattr(module, "discover", lambda options, tell, until: (host.hello, []))
    host.begun.add(0)
    module.sweep(SweepOptions("python", cases=30, processes=4, memory=8 * GIB))
    assert given - {None} == {2 * GIB}
