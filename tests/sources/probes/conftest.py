"""An empty environment to fill, cut off from this machine's own libraries and variables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.sources.probes.target import Target, TargetKind

VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "CUDNN_HOME", "CUDNN_PATH", "CUDA_HOME", "CUDA_PATH")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own cuDNN and variables are no part of any test."""
    for name in (*VARIABLES, "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An empty site-packages folder of an environment."""
    folder = tmp_path / "env/lib/python3.11/site-packages"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def target(site: Path) -> Target:
    """That environment, as its interpreter would describe it."""
    return Target(
        None, site.parents[2], (site,), TargetKind.INTERPRETER, "3.11.7", "cpython", "Linux", "x86_64", "2.35"
    )


@pytest.fixture
def no_system_libraries(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """No cuDNN of this machine, until a test says what ldconfig's cache holds."""
    from doctor.sources.probes import cudnn, te_cudnn

    def cache(entries: dict[str, str]) -> None:
        for module in (cudnn, te_cudnn):
            monkeypatch.setattr(module, "loader_cache", lambda *_: dict(entries))

    cache({})
    return cache
