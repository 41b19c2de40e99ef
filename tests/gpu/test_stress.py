"""The sweep on a real GPU: planted faults are found there too, sound backends are not accused, speed is as promised."""

from __future__ import annotations

import sys

import pytest

from doctor.stress.discovery import SweepOptions
from doctor.stress.report import as_text
from doctor.stress.sweep import by_backend, sweep
from tests.helpers.paths import HELPERS

pytestmark = pytest.mark.gpu
FAULTS = HELPERS / "faults.py"


def test_sound_backends_are_not_accused() -> None:
    outcome = sweep(SweepOptions(sys.executable, cases=300, backends=("sdpa.math", "sdpa.flash"), shrink=10))
    # Misaligned tensors and more sequences than a grid has are faults of torch's flash kernels, and known.
    known = [item for item in outcome.failures if item.case["layout"] == "offset1" or item.case["batch_size"] > 65535]
    odd = [item for item in outcome.failures if item not in known]
    assert not odd, as_text(outcome)
    assert by_backend(outcome)["sdpa.math"]["right"] > 100


@pytest.mark.parametrize("name", ["scale_off", "dropped_tail", "nan_gradient", "remembers_layout"])
def test_planted_fault_is_found(name: str) -> None:
    outcome = sweep(SweepOptions(sys.executable, cases=40, backends=(f"file:{FAULTS}:{name}",), shrink=13))
    assert any(item.shown for item in outcome.failures), as_text(outcome)


@pytest.mark.slow
def test_two_thousand_cases_in_two_minutes() -> None:
    """On the clock, and cold: the start of each process, its imports and its CUDA context are counted."""
    outcome = sweep(SweepOptions(sys.executable, cases=2000, shrink=0.1, budget=300))
    assert outcome.complete and len(outcome.records) >= 2000
    assert outcome.seconds["wall"] <= 120, outcome.seconds
