"""A fault planted in torch itself is found by the kernels, and the script that is handed on shows it alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from doctor.diagnosis.confirm import Confirmed, confirm
from doctor.model import Fact, Facts
from doctor.rulebook.resolver import FactResolver
from doctor.runner.batch import KernelRunner
from doctor.util.resources import programs_dir

#: Loaded by every interpreter that starts with this folder on its path: torch, once imported, has the fault.
PLANT = """
import builtins, sys
kept = builtins.__import__
def planting(name, *more, **kw):
    module = kept(name, *more, **kw)
    torch = sys.modules.get("torch")
    if name.partition(".")[0] == "torch" and hasattr(getattr(torch, "nn", None), "functional"):
        functional = torch.nn.functional
        if hasattr(functional, "scaled_dot_product_attention") and not hasattr(functional, "planted"):
            functional.planted = plain = functional.scaled_dot_product_attention
            def attention(q, k, v, **options):
                FAULT
            attention.__doc__ = plain.__doc__
            functional.scaled_dot_product_attention = attention
    return module
builtins.__import__ = planting
"""
JOB = {
    "framework": "torch_sdpa", "device": "cpu", "dtype": "float32", "mask": "causal", "num_heads": 4, "num_kv_heads": 2,
    "head_dim_qk": 32, "seq_len_q": 96, "batch_size": 1,
}  # fmt: skip
FAULTS = {
    "wrong scale": ("return plain(q * 1.01, k, v, **options)", "the result is wrong: out is off by"),
    "last tile dropped": (
        "return plain(q, k, v * (torch.arange(k.shape[2]) < 64)[:, None], **options)",
        "the result is",
    ),
    "raises": ("raise RuntimeError('CUDA driver error: invalid argument')", "RuntimeError: CUDA driver error"),
    "dies": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV at step `default forward`"),
}


def check(python: str, **job: object) -> Confirmed:
    whole = {**JOB, **job}
    given = Facts(Fact(f"workload.{key}", value, "test") for key, value in whole.items() if key != "device")
    return confirm([], FactResolver(given), (), whole, KernelRunner(python, 120.0, programs_dir()))


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    """What each planted fault was handed on as; filled by the tests in their order."""
    return {}


#: The others end the same way; each costs several starts of torch.
QUICK = ("last tile dropped", "dies")


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault in QUICK else pytest.mark.slow) for fault in FAULTS]
)
def test_a_fault_of_torch_ends_in_a_script_that_shows_it(
    torch_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripts: dict[str, str], fault: str
) -> None:
    body, says = FAULTS[fault]
    (tmp_path / "sitecustomize.py").write_text(PLANT.replace("FAULT", body))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (found,) = check(torch_python).findings
    assert (found.rule, found.verdict, found.severity) == ("UNPREDICTED", "unpredicted", "error")
    assert found.message.startswith(says)
    assert found.reproduction is not None and "it showed the same" in found.reproduction
    scripts[fault] = found.reproduction
    if fault in QUICK:  # the report says so of all: here it is seen
        alone = subprocess.run([torch_python, "-c", found.reproduction], capture_output=True, timeout=120, check=False)
        assert alone.returncode == (-11 if fault == "dies" else 1)


#: Runs scripts one after the other: starting torch costs more than they do.
EACH = """
import sys
for text in sys.argv[1:]:
    try:
        exec(compile(text, "script", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if end.code:
            sys.exit(f"ended with {end.code}: {text}")
"""


def test_the_scripts_show_nothing_of_a_healthy_torch(torch_python: str, scripts: dict[str, str]) -> None:
    if not scripts:
        pytest.skip("the tests that make the scripts were not asked for")
    done = subprocess.run([torch_python, "-c", EACH, *scripts.values()], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_a_healthy_torch_has_nothing_to_show(torch_python: str) -> None:
    result = check(torch_python, qkv_interleaved=True)
    assert [(run.kernel, run.verdict) for run in result.runs] == [("sdpa", "healthy"), ("strided_qkv", "healthy")]
    assert result.findings == ()
    assert result.spent["kernels.import"] > 0 and result.spent["kernels.case"] > 0
    assert "a matrix product of its FLOPs" in result.runs[0].reason
    assert "views of one projection are read right by sdpa.flash, sdpa.math" in result.runs[1].reason
