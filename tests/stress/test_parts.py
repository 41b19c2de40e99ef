"""The parts of a sweep without torch: GPUs and how they disagree, the journal, faults that explain each other."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.runner.result import KernelResult
from doctor.runner.run import run_program, run_snippet
from doctor.stress.devices import devices_of, disagreements
from doctor.stress.discovery import SweepOptions
from doctor.stress.failures import Failure
from doctor.stress.journal import Journal
from doctor.stress.verdict import fault_kinds, verdict

GIB = 2**30


def device(index, free=139, **more):
    return {"index": index, "name": "NVIDIA H200", "memory_bytes": 140 * GIB, "free_bytes": free * GIB, **more}


def test_one_lane_per_gpu_and_the_given_list_is_kept():
    made, problems = devices_of({"devices": [device(0), device(1)], "visible": "GPU-aa,MIG-bb"}, None)
    assert [lane.env["CUDA_VISIBLE_DEVICES"] for lane in made] == ["GPU-aa", "MIG-bb"] and not problems
    made, _ = devices_of({"devices": [device(0), device(1)], "visible": None}, 5)
    assert [lane.env["CUDA_VISIBLE_DEVICES"] for lane in made] == ["0", "1"] and made[0].memory_bytes == 5


def test_a_busy_gpu_is_said_and_a_broken_one_left_out():
    made, problems = devices_of(
        {"devices": [device(0, free=70, utilization=97), device(1, problem="no permission")]}, None
    )
    assert len(made) == 1 and "70.0 of 140.0 GiB" in made[0].notes[0] and "97 %" in made[0].notes[1]
    assert problems == ["GPU 1 (NVIDIA H200) cannot be used: no permission"]
    assert not devices_of({"devices": [device(0)]}, None)[0][0].notes


CASE = {"backend": "sdpa.flash", "mask": "no_mask", "seq_len_q": 64}


def ran(bits, verdict="ok", faults=()):
    return KernelResult("ran", {"verdict": verdict, "bits": bits, "faults": list(faults)})


@pytest.mark.parametrize(
    "one, two, expected",
    [
        (ran(1), ran(1), None),
        (ran(1), ran(2), "bits"),
        (ran(1), ran(1, "wrong", ["out"]), "ok here, wrong there"),
        (ran(1), KernelResult("crashed"), "ran here, crashed there"),
        (ran(1, "wrong", ["not_repeatable"]), ran(2, "wrong", ["not_repeatable"]), None),
    ],
)
def test_gpus_that_disagree(one, two, expected):
    names = {"a": "H200", "b": "H200"}
    found = disagreements([("a", CASE, one), ("b", CASE, two)], names)
    assert (found == []) if expected is None else (expected in found[0]["difference"])
    assert not disagreements([("a", CASE, one), ("b", CASE, two)], {"a": "H200", "b": "A100"}), "of one name only"


def test_journal_takes_up_what_is_there(tmp_path):
    path, stack = tmp_path / "j.jsonl", {"torch": "2.11"}
    first = Journal(path, stack)
    first.add("gpu0", CASE, KernelResult("ran", {"verdict": "ok"}, seconds=0.5))
    first.close()
    again = Journal(path, stack)
    assert again.resumed == 1 and next(iter(again.results.values())).observed == {"verdict": "ok"}
    again.finish()
    assert Journal(path, stack).resumed == 0, "finished"
    assert json.loads(path.read_text().splitlines()[0])["stack"] == stack
    Journal(path, stack).add("gpu0", CASE, KernelResult("ran"))
    assert Journal(path, {"torch": "2.12"}).resumed == 0, "another stack"
    with pytest.raises(DoctorError, match="cannot write the journal"):
        Journal(tmp_path / "j.jsonl" / "below", stack)


def test_a_line_cut_short_costs_no_answer_that_follows(tmp_path):
    path, stack = tmp_path / "j.jsonl", {"torch": "2.11"}
    first = Journal(path, stack)
    first.add("gpu0", CASE, KernelResult("ran"))
    first.close()
    with path.open("a") as file:
        file.write('{"gpu": "gpu0", "ke')  # the machine went down
    second = Journal(path, stack)
    second.add("gpu1", CASE, KernelResult("ran"))
    second.close()
    assert {gpu for gpu, _ in Journal(path, stack).results} == {"gpu0", "gpu1"}


@pytest.mark.parametrize(
    "record",
    [
        {"gpu": "g", "key": ["no", "text"], "answer": {"outcome": "ran"}},
        {"gpu": {}, "key": "k", "answer": {"outcome": "ran"}},
        {"gpu": "g", "key": "k", "answer": {"outcome": "sang"}},
        {"gpu": "g", "key": "k", "answer": {}},
        {"gpu": "g", "key": "k", "answer": {"outcome": "ran", "observed": "much"}},
        {"gpu": "g", "key": "k", "answer": {"outcome": "ran", "seconds": "few"}},
        {"gpu": "g", "key": "k", "answer": {"outcome": "failed", "reason": ["a", "list"]}},
        {"gpu": "g", "key": "k", "answer": ["ran"]},
        {"limits": 7},
        ["neither"],
    ],
)
def test_what_no_answer_can_have_been_is_passed_over(tmp_path, record):
    path, stack = tmp_path / "j.jsonl", {"torch": "2.11"}
    first = Journal(path, stack)
    first.add("gpu0", CASE, KernelResult("ran"))
    first.close()
    with path.open("ab") as file:
        file.write(json.dumps(record).encode() + b"\n" + b"\xff\x00" + b"[" * 100_000 + b"\n")
    assert [gpu for gpu, _ in Journal(path, stack).results] == ["gpu0"]


def test_a_journal_that_is_no_file(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(DoctorError, match="not a file"):
            Journal(path, {"torch": "2.11"})
    with pytest.raises(DoctorError, match="cannot write the journal"):
        Journal(tmp_path / "a\0b", {"torch": "2.11"})


@pytest.mark.parametrize("text", ["my notes\n", "3\n", "[]\n", '{"a": 1}\n'])
def test_a_file_that_is_no_journal_stays_as_it_is(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(DoctorError, match="not a journal"):
        Journal(path, {"torch": "2.11"})
    assert path.read_text() == text


def test_what_is_computed_in_int8_errs_alike_in_either_type():
    source = """
from ..attention.bounds import BOUNDS
from ..sweep.calls import looser
def run(request):
    bounds = {kind: BOUNDS[kind][0] for kind in ("bfloat16", "float16")}
    return {kind: looser({"backend": "sage", "dtype": kind}) * bound for kind, bound in bounds.items()}
"""
    allowed = run_snippet(sys.executable, source, timeout=30).observed
    # Healthy 1.0 to 1.3 %, keys counted that are not there 3.7 % and more: as seen on an H200.
    assert all(0.02 < bound < 0.037 for bound in allowed.values()) and len(allowed) == 2


def test_verdicts_and_kinds():
    assert verdict(KernelResult("failed", reason="torch.OutOfMemoryError: CUDA out of memory. Tried")) == "no memory"
    assert fault_kinds(KernelResult("failed", reason="torch.AcceleratorError: CUDA error")) == [
        "failed:AcceleratorError"
    ]
    assert verdict(ran(1, "wrong", ["dq"])) == "wrong" and fault_kinds(ran(1, "wrong", ["dq"])) == ["dq"]
    assert verdict(KernelResult("refused")) == "refused" and fault_kinds(KernelResult("crashed")) == ["crashed"]


def test_a_small_form_explains_what_has_all_it_needs():
    answer = ran(1, "wrong", ["dq"])
    fault = Failure("sdpa.cudnn", ("dq",), dict(CASE), "", answer, small={"mask": "blind", "layout": "bhsd"})
    case = {**CASE, "backend": "sdpa.cudnn", "mask": "blind", "layout": "thd"}
    assert fault.explains(case, ["dq", "dk"])
    assert not fault.explains({**case, "mask": "causal"}, ["dq"])
    assert not fault.explains(case, ["out"]) and not fault.explains({**case, "backend": "sdpa.math"}, ["dq"])


def simpler(case, python):
    return run_program(python, "sweep", [{"op": "simpler", "case": case}], timeout=60)[0].observed["cases"]


def test_steps_of_the_shrinker_are_valid_and_lead_downwards():
    """No torch needed: the list of plainer cases is arithmetic."""
    import sys

    case = {"backend": "sdpa.math", "num_heads": 6, "num_kv_heads": 2, "seq_len_q": 300, "seq_len_kv": 100,
            "head_dim_qk": 192, "head_dim_v": 128, "mask": "window", "layout": "sbhd"}  # fmt: skip
    steps = simpler(case, sys.executable)
    assert len(steps) > 15
    for step in steps:
        assert step["num_heads"] % step["num_kv_heads"] == 0 and min(step["head_dim_qk"], step["head_dim_v"]) >= 8
        size = step["num_heads"] * step["seq_len_q"] * step["seq_len_kv"] * step["head_dim_qk"]
        assert size <= 6 * 300 * 100 * 192
    assert len({json.dumps(step, sort_keys=True) for step in steps}) == len(steps), "no step twice"
    smallest = {"backend": "sdpa.math", "batch_size": 1, "num_heads": 1, "seq_len_q": 1, "head_dim_qk": 8,
                "training": False}  # fmt: skip
    assert simpler(smallest, sys.executable) == []


def test_triton_that_breaks_is_a_fault_and_one_that_runs_a_note(monkeypatch):
    from doctor.stress import sweep as module
    from doctor.stress.devices import Device
    from doctor.stress.plan import SweepPlan
    from doctor.stress.report import as_text

    def outcome_of(answer):
        monkeypatch.setattr(module.Worker, "run_one", lambda self, request, until=None: answer)
        hello = {"torch": "2.11", "backends": {}}
        outcome = module.SweepResult(hello, SweepPlan((), {}), [Device("gpu0", "GPU 0")], [])
        module._check_triton(SweepOptions("python"), outcome)
        return outcome

    good = outcome_of(KernelResult("ran", {"verdict": "ok", "faults": []}))
    assert not good.bad and "compiles and runs" in as_text(good)
    bad = outcome_of(KernelResult("failed", reason="RuntimeError: Cannot find ptxas"))
    assert bad.bad and "Cannot find ptxas" in as_text(bad)
