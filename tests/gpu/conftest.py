"""Tests of this folder need a GPU and torch in the interpreter that runs them; elsewhere they skip with the reason."""

from __future__ import annotations

import sys

import pytest

from doctor.runner.run import run_one


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    pytest.importorskip("torch", reason="torch is not in the interpreter that runs the tests")
    facts = run_one(sys.executable, "facts", timeout=300)
    if facts.observed.get("cuda.available") is not True:
        pytest.skip(f"no GPU: {facts.observed.get('cuda.init') or facts.observed.get('torch.cuda')}")
