"""A few generated environments: what the model predicts is what the loader of this machine does."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path

import pytest

from scripts.oracles import vary_loads

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or not shutil.which("gcc") or not platform.libc_ver()[0],
    reason="needs gcc and glibc on x86_64",
)


@pytest.mark.parametrize("seed", [3, 12, 18, 39, 1053, 1095])
def test_predicted_and_real_loads_agree(seed: int, tmp_path: Path) -> None:
    case = vary_loads.made(seed, tmp_path)
    assert case.opens
    assert vary_loads.differences(case) == []


def test_the_comparison_sees_another_outcome(tmp_path: Path) -> None:
    case = vary_loads.made(1095, tmp_path)
    real = vary_loads.real_steps(case)
    assert real is not None
    loaded = [path for _, paths in real for path in paths if str(tmp_path) in path]
    assert loaded
    changed = [(outcome, tuple(path for path in paths if path != loaded[0])) for outcome, paths in real]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vary_loads, "predicted_steps", lambda _: changed)
        assert vary_loads.differences(case)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2040))
def test_many_environments(seed: int, tmp_path: Path) -> None:
    assert vary_loads.differences(vary_loads.made(seed, tmp_path)) == []
