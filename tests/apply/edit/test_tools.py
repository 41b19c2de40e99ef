"""What the real tools make of an edited file: uv resolves it, parts and companions included."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.onefix import change, edited

pytestmark = pytest.mark.network

FROZEN = (
    "torch==2.6.0\ntorchvision==0.21.0\ntriton==3.2.0\nnvidia-cudnn-cu12==9.1.0.70\nnvidia-cublas-cu12==12.4.5.8\n"
    "nvidia-nccl-cu12==2.21.5\nnvidia-nvjitlink-cu12==12.4.127\nnumpy<2.3\n"
)
PROJECT = (
    '[project]\nname = "job"\nversion = "1"\nrequires-python = "==3.11.*"\ndependencies = ["torch==2.6.0"]\n'
    '[project.optional-dependencies]\nvision = ["torchvision==0.21.0", "nvidia-cudnn-cu12==9.1.0.70"]\n'
)


def uv(folder: Path, *arguments: str) -> str:
    found = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("uv is not on the path")
    done = subprocess.run([found, *arguments], cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if "No interpreter found" in done.stderr:
        pytest.skip("no Python 3.11 for uv")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("version", ["2.7.1", "2.8.0", "2.5.1"])
def test_a_frozen_environment_resolves_after_the_edit(tmp_path: Path, version: str):
    path = tmp_path / "requirements.txt"
    path.write_text(FROZEN)
    parts = {
        "triton": "3.2.0", "nvidia_cudnn_cu12": "9.1.0.70", "nvidia_cublas_cu12": "12.4.5.8",
        "nvidia_nccl_cu12": "2.21.5", "nvidia_nvjitlink_cu12": "12.4.127",
    }  # fmt: skip
    edited(path, change("torch", version, "2.6.0"), **parts).write()
    arguments = (
        "--no-header",
        "--no-annotate",
        "--python-version",
        "3.11",
        "--python-platform",
        "x86_64-manylinux_2_28",
    )
    assert f"torch=={version}" in uv(tmp_path, "pip", "compile", *arguments, "requirements.txt").split()


def test_a_project_locks_after_the_edit(tmp_path: Path):
    path = tmp_path / "pyproject.toml"
    path.write_text(PROJECT)
    edited(path).write()
    uv(tmp_path, "lock")
    assert 'name = "torch"\nversion = "2.7.1"' in (tmp_path / "uv.lock").read_text()
