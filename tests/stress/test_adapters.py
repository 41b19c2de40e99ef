"""The adapters of libraries that no CPU has, called on written-out substitutes: axes, masks, lengths and options."""

from __future__ import annotations

import sys

import pytest

from doctor.runner.run import run_program
from doctor.stress.plan import plan
from doctor.stress.verdict import verdict
from doctor.stress.worker import Worker
from tests.helpers.fake_libraries import install


@pytest.mark.parametrize("count", [26, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["flash2", "te.unfused"])
def test_every_case_means_what_the_library_takes_it_for(backend, count, torch_python, tmp_path):
    cases = [case for case in plan([backend], "cpu", 60, seed=2).cases if not case.get("dropout")]
    small = [{**case, "profile": False} for case in cases if case["seq_len_q"] * case["seq_len_kv"] <= 17_000]
    small = sorted(small, key=lambda case: case["seq_len_q"] * case["seq_len_kv"])[:count]
    answers = []
    worker = Worker(torch_python, timeout=60.0, env={"PYTHONPATH": str(install(tmp_path / "libraries"))})
    worker.run(small, lambda case, answer: answers.append((case, answer)))
    wrong = [(case, answer) for case, answer in answers if verdict(answer) != "right"]
    assert not wrong, (wrong[0][0], wrong[0][1].reason, wrong[0][1].observed.get("errors"))
    assert len(answers) >= 25 and len({case["mask"] for case in small}) >= 4
    assert {"sbhd", "thd"} <= {case["layout"] for case in small}


@pytest.mark.parametrize("backend", ["te.flash2", "te.flash4", "te.fused", "te.unfused", "cudnn", "flash4", "sage"])
def test_every_case_is_a_program(backend):
    """Lines that an interpreter takes, whatever the case: a reproduction must at least begin."""
    cases = plan([backend], "cuda", 120, seed=4).cases
    answers = run_program(
        sys.executable, "sweep", [{"op": "script", "case": c, "kinds": ["dq"]} for c in cases], timeout=60
    )
    for answer in answers:
        assert answer.outcome == "ran", answer.reason
        compile(answer.observed["script"], "<script>", "exec")


def test_transformer_engine_is_left_one_backend():
    case = {"backend": "te.fused", "deterministic": True, "softcap": 30.0, "mask": "window", "window_size": 7}
    (answer,) = run_program(sys.executable, "sweep", [{"op": "script", "case": case, "kinds": ["out"]}], timeout=60)
    script = answer.observed["script"]
    assert "NVTE_FUSED_ATTN='1'" in script and "NVTE_UNFUSED_ATTN='0'" in script and "NVTE_FLASH_ATTN='0'" in script
    assert (
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO='0'" in script and "window_size=(7, 0)" in script and "softcap=30.0" in script
    )
