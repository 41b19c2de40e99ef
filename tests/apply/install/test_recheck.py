"""The check on what was installed: what counts as silent, what a trial cannot know, what the GPU says."""

from __future__ import annotations

import os

import pytest

from doctor.apply.install.recheck import _overlaid, _why_no_kernels, check_step, kernel_step
from doctor.apply.install.trial import _checks
from doctor.diagnosis.request import Request
from doctor.model import ABSENT, Change, Confirmation, Fact, Facts, Finding, Fix, Report


def finding(rule: str, severity: str = "error", **more) -> Finding:
    return Finding(rule, rule, severity, "fires", rule, f"{rule} strikes", "", (), (), **more)


def report(*findings: Finding, **more) -> Report:
    return Report("t", {}, Facts(), findings, (), (), (), {}, **more)


def facts(**values) -> Facts:
    return Facts(Fact(key.replace("__", "."), value, "t") for key, value in values.items())


FIX = Fix("Do", (Change("package", "torch", "2.5.1", "2.6.0", "", ("A1",)),), ("A1",))


@pytest.mark.parametrize(
    ("after", "fix", "outcome", "words"),
    [
        ((), FIX, True, "fixed: A1"),
        ((finding("W1", "warning"),), FIX, True, "warnings: W1"),
        ((finding("A1"),), FIX, False, "still fires: A1: A1 strikes"),
        ((finding("N1"),), FIX, False, "still fires: N1 (new)"),
        ((finding("L1"),), Fix("Do", FIX.changes, ("A1",), ("L1",)), False, "L1 (the fix leaves it)"),
        ((finding("A1"),), Fix("Do", (Change("call", "x = 1", None, "x = 1", "", ("A1",)),), ("A1",)), None,
         "change of code"),
    ],
)  # fmt: skip
def test_silent_or_not(after, fix, outcome, words):
    step = check_step(report(*after), report(finding("A1")), fix, 0.1)
    assert step.outcome is outcome and words in step.reason


def run_of(verdict: str) -> Confirmation:
    return Confirmation(verdict, "sdpa", {}, "ran", {}, f"it is {verdict}", 0.1)


@pytest.mark.parametrize(
    ("after", "why_not", "outcome"),
    [
        (report(runs=(run_of("healthy"),)), "", True),
        (report(runs=(run_of("healthy"), run_of("failed"))), "", False),
        (report(runs=(run_of("inconclusive"),)), "", None),
        (report(finding("A1", confirmation=run_of("confirmed"))), "", False),
        (report(), "no GPU here", None),
    ],
)
def test_what_the_gpu_says(after, why_not, outcome):
    step = kernel_step(after, why_not)
    assert step.outcome is outcome and step.reason


def test_the_machine_and_the_job_are_those_of_the_report():
    found = facts(torch__version="2.6.0", gpu__sm=ABSENT, python__version="3.11.7", distributions__complete=True)
    old = facts(torch__version="2.5.1", gpu__sm="9.0", driver__version="550.1", workload__dtype="bfloat16",
                accelerate__version="1.0", torch__cuda="12.4", env__NVTE_FLASH_ATTN="0")  # fmt: skip
    fix = Fix("Do", (*FIX.changes, Change("env", "NVTE_FLASH_ATTN", "0", None, ""),
                     Change("config", "dtype", "bfloat16", "float16", "")), ("A1",))  # fmt: skip
    seen = _overlaid(found, old, fix, {"flash-attn": "2.7.4"})
    assert {key: seen.value(key) for key in ("torch.version", "gpu.sm", "driver.version", "workload.dtype")} == {
        "torch.version": "2.6.0", "gpu.sm": "9.0", "driver.version": "550.1", "workload.dtype": "float16",
    }  # fmt: skip
    assert seen.value("env.NVTE_FLASH_ATTN") == ABSENT
    assert seen.value("flash-attn.version") == "2.7.4" and seen.value("accelerate.version") == "1.0"
    assert "distributions.complete" not in seen  # the trial holds the stack alone
    assert "torch.cuda" not in seen  # it was that of the old torch


def test_in_the_target_nothing_is_assumed():
    found = facts(torch__version="2.6.0", distributions__complete=True)
    seen = _overlaid(found, facts(accelerate__version="1.0", gpu__sm="9.0"), FIX, None)
    assert "accelerate.version" not in seen and seen.value("distributions.complete") is True


def test_another_build_of_torch_is_not_judged_by_the_registrys():
    found = facts(torch__version="2.6.0", torch__cuda="12.4", cudnn__version="9.1.0")
    old = facts(torch__version="2.6.0+cu126", torch__cuda="12.6", cudnn__version="9.5.1")
    seen = _overlaid(found, old, FIX, {"torch": "2.6.0+cu126"})
    assert [seen.value(key) for key in ("torch.version", "torch.cuda", "cudnn.version")] == [
        "2.6.0+cu126", "12.6", "9.5.1",
    ]  # fmt: skip


def test_a_gpu_that_is_not_the_fixes_proves_nothing():
    here = facts(gpu__sm="9.0")
    assert _why_no_kernels(here, here, {}, Request()) == ""
    assert "not the one" in _why_no_kernels(here, facts(gpu__sm="8.0"), {}, Request())
    assert "not the one" in _why_no_kernels(here, here, {}, Request(facts=("f.yaml",)))
    assert "`flash-attn`" in _why_no_kernels(here, here, {"flash-attn": "2.7.4"}, Request())
    assert _why_no_kernels(facts(gpu__sm=ABSENT), here, {}, Request()) == "no GPU here"


def test_the_variables_of_the_fix_reach_kernels_and_not_our_own_environment(monkeypatch, old):
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    monkeypatch.delenv("NVTE_DEBUG", raising=False)
    seen = {}

    def diagnosis(request, tell, examined):
        seen.update(os.environ, examined=examined)
        return report()

    monkeypatch.setattr("doctor.apply.install.recheck.diagnose", diagnosis)
    changes = (Change("env", "NVTE_FLASH_ATTN", "0", None, ""), Change("env", "env.NVTE_DEBUG", None, "1", ""))
    fix = Fix("Do", changes, ("A1",))
    steps = list(_checks(report(), Request(python=old.python), fix, {}, old.python, lambda text: None))
    assert [step.name for step in steps] == ["check", "kernels"]
    assert seen["examined"].variables == {"NVTE_FLASH_ATTN": None, "NVTE_DEBUG": "1"}
    assert seen["NVTE_FLASH_ATTN"] == "0" and "NVTE_DEBUG" not in seen
