"""An interpreter that has torch, where there is one."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest


@pytest.fixture(scope="session")
def torch_python() -> str:
    named = os.environ.get("ATTN_DOCTOR_TORCH_PYTHON")
    if named:
        return named
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    pytest.skip("no torch in this interpreter, and ATTN_DOCTOR_TORCH_PYTHON is not set")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small cases on few cores: threads of several processes would only wait for each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
