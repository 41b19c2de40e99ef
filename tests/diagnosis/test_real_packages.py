"""Incidents A and C in environments made of the real packages: no version is given, all is read off the trees.

What a release says of itself (METADATA of a wheel, PKG-INFO of a source archive) is the truth that the doctor reads on
a user's machine; a fake could agree with our own idea of it. Nothing is imported and no GPU is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.network

ROOT = Path(__file__).resolve().parents[2]
INCIDENTS = ROOT / "examples" / "incidents"
#: What no package of the tree shows: the GPU of the incident.
A100 = ("--gpu", "a100", "--set", "gpu.count=8")


def _pip(*arguments: str, python: str = sys.executable) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        pytest.skip(f"pip {arguments[0]} was refused: {last[-1] if last else done.returncode}")


def _install(tree: Path, *requirements: str) -> None:
    """Unpacked as a target environment, without what they depend on; releases older than this Python included."""
    _pip("install", "--quiet", "--no-deps", "--ignore-requires-python", "--target", str(tree), *requirements)


@pytest.fixture(scope="module")
def flash_attn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """flash-attn 2.6.3 from its source archive; there is no wheel, and even its metadata need a torch to be made."""
    torch_python = os.environ.get("ATTN_DOCTOR_TORCH_PYTHON")
    if not torch_python:
        pytest.skip("pip reads flash-attn's metadata only beside a torch, and ATTN_DOCTOR_TORCH_PYTHON is not set")
    folder = tmp_path_factory.mktemp("flash_attn")
    os.environ["FLASH_ATTENTION_SKIP_CUDA_BUILD"] = "TRUE"
    try:
        _pip(
            "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", str(folder),
            "flash-attn==2.6.3", python=torch_python,
        )  # fmt: skip
    finally:
        del os.environ["FLASH_ATTENTION_SKIP_CUDA_BUILD"]
    with tarfile.open(next(folder.glob("flash_attn-2.6.3*.tar.gz"))) as archive:
        wanted = [item for item in archive.getmembers() if "/flash_attn" in item.name and "/csrc/" not in item.name]
        careful: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # early 3.10 lacks it
        archive.extractall(folder / "source", members=wanted, **careful)
    return folder / "source" / "flash_attn-2.6.3"


def _add_flash_attn(tree: Path, source: Path) -> None:
    for part in ("flash_attn", "flash_attn.egg-info"):
        (tree / part).symlink_to(source / part)


@pytest.fixture(scope="module")
def tree_a(tmp_path_factory: pytest.TempPathFactory, flash_attn: Path) -> Path:
    """Incident A: TransformerEngine 1.13 next to flash-attn 2.6.3."""
    tree = tmp_path_factory.mktemp("a")
    _install(tree, "transformer-engine==1.13.0", "megatron-core==0.9.0")
    _add_flash_attn(tree, flash_attn)
    return tree


@pytest.fixture(scope="module")
def tree_c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Incident C without its flash-attn: XTuner 0.1.23 next to transformers 4.44.2."""
    tree = tmp_path_factory.mktemp("c")
    _install(tree, "xtuner==0.1.23", "transformers==4.44.2")
    return tree


@pytest.fixture(scope="module")
def whole_c(tmp_path_factory: pytest.TempPathFactory, tree_c: Path, flash_attn: Path) -> Path:
    """Incident C as it was."""
    tree = tmp_path_factory.mktemp("whole_c")
    for part in tree_c.iterdir():
        (tree / part.name).symlink_to(part)
    _add_flash_attn(tree, flash_attn)
    return tree


def _interpreter_over(tree: Path, folder: Path) -> Path:
    """A virtual environment whose site-packages got the tree, as an image layer brings it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    site = next(folder.glob("lib/python3*/site-packages"))
    for part in tree.iterdir():
        (site / part.name).symlink_to(part)
    return folder / "bin" / "python"


def _check(*arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "doctor", "check", "--no-run", "--format", "json", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def _target(way: str, tree: Path, folder: Path) -> tuple[str, str]:
    if way == "--site-packages":
        return way, str(tree)
    return way, str(_interpreter_over(tree, folder / "venv"))


def _value(report: dict[str, Any], key: str) -> Any:
    fact = report["facts"].get(key)
    return fact["value"] if isinstance(fact, dict) else fact


WAYS = pytest.mark.parametrize("way", ["--site-packages", "--python"])


@WAYS
def test_incident_a(way: str, tree_a: Path, tmp_path: Path) -> None:
    job = ("--workload", str(INCIDENTS / "a" / "workload.yaml"))
    code, report = _check(*_target(way, tree_a, tmp_path), *A100, *job)
    assert (_value(report, "transformer-engine.version"), _value(report, "flash-attn.version")) == ("1.13.0", "2.6.3")
    first = report["findings"][0]
    assert (code, first["id"], first["severity"]) == (1, "TE101", "error")
    assert "1.13.0" in first["message"] and "2.6.3" in first["message"]


@WAYS
def test_incident_a_without_context_parallelism(way: str, tree_a: Path, tmp_path: Path) -> None:
    job = ("--workload", str(INCIDENTS.parent / "near_misses" / "a_without_context_parallelism" / "workload.yaml"))
    _, report = _check(*_target(way, tree_a, tmp_path), *A100, *job)
    assert "TE101" not in [finding["id"] for finding in report["findings"]]


@WAYS
def test_incident_c(way: str, whole_c: Path, tmp_path: Path) -> None:
    job = ("--workload", str(INCIDENTS / "c" / "workload.yaml"))
    code, report = _check(*_target(way, whole_c, tmp_path), *A100, *job)
    assert (_value(report, "xtuner.version"), _value(report, "transformers.version")) == ("0.1.23", "4.44.2")
    first = report["findings"][0]
    assert (code, first["id"], first["severity"]) == (1, "XT001", "error")
    assert "4.44.2" in first["message"]


@WAYS
def test_incident_c_with_flash_attn_said(way: str, tree_c: Path, tmp_path: Path) -> None:
    """Found also where flash-attn cannot be had: then the command line says that it is there."""
    said = ("--set", "flash-attn.version=2.6.3", *A100, "--workload", str(INCIDENTS / "c" / "workload.yaml"))
    code, report = _check(*_target(way, tree_c, tmp_path), *said)
    assert (_value(report, "xtuner.version"), _value(report, "transformers.version")) == ("0.1.23", "4.44.2")
    assert (code, report["findings"][0]["id"]) == (1, "XT001")


@WAYS
def test_incident_c_with_packing(way: str, tree_c: Path, tmp_path: Path) -> None:
    packed = ("--workload", str(INCIDENTS.parent / "near_misses" / "c_packing" / "workload.yaml"))
    _, report = _check(*_target(way, tree_c, tmp_path), "--set", "flash-attn.version=2.6.3", *A100, *packed)
    assert "XT001" not in [finding["id"] for finding in report["findings"]]


def test_the_fix_of_c_clears_it_in_real_packages(tmp_path: Path) -> None:
    _install(tmp_path / "fixed", "xtuner==0.1.23", "transformers==4.42.4")
    said = ("--set", "flash-attn.version=2.6.3", *A100, "--workload", str(INCIDENTS / "c" / "workload.yaml"))
    _, report = _check("--site-packages", str(tmp_path / "fixed"), *said)
    assert _value(report, "transformers.version") == "4.42.4"
    assert "XT001" not in [finding["id"] for finding in report["findings"]]
