"""An interpreter that has torch, where there is one: ours, or the one that ATTN_DOCTOR_TORCH_PYTHON names."""

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
