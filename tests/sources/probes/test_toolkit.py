"""The CUDA toolkit, the host compiler and ninja, read without starting any of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from doctor.model import ABSENT, Facts
from doctor.sources.probes.collect import collect
from doctor.sources.probes.target import Target, TargetKind
from doctor.sources.watch import Watch


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with an empty PATH and no toolkit."""
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    for name in ("CUDA_HOME", "CUDA_PATH", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("doctor.sources.probes.toolkit._DEFAULT_HOME", str(tmp_path / "no-cuda"))
    return tools


def tool(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(0o755)
    return path


def read(target: Target, tmp_path: Path) -> Facts:
    here = replace(target, kind=TargetKind.INTERPRETER, prefix=tmp_path / "venv", system="Linux")
    return collect(here, Watch(), ("toolkit",))


def test_a_machine_without_any_of_them(machine: Path, target: Target, tmp_path: Path) -> None:
    facts = read(target, tmp_path)
    assert facts.value("toolkit.nvcc") == ABSENT and facts.value("toolkit.gcc") == ABSENT
    assert facts.value("toolkit.ninja") is False and "toolkit.cuda_home" not in facts
    assert facts.value("toolkit.c_compiler") is False


def test_the_release_is_that_of_version_json(
    machine: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "cuda"
    tool(home / "bin/nvcc")
    (home / "version.json").write_text('{"cuda": {"version": "12.8.1"}, "cuda_nvcc": {"version": "12.8.93"}}')
    monkeypatch.setenv("CUDA_HOME", str(home))
    facts = read(target, tmp_path)
    assert facts.value("toolkit.nvcc") == "12.8" and facts.value("toolkit.cuda_home") == str(home)


def test_without_version_json_the_header_counts(machine: Path, target: Target, tmp_path: Path) -> None:
    home = tmp_path / "toolkit"
    nvcc = tool(home / "bin/nvcc")
    (home / "include").mkdir()
    (home / "include/cuda.h").write_text("/* */\n#define CUDA_VERSION 12040\n")
    (machine / "nvcc").symlink_to(nvcc)
    facts = read(target, tmp_path)
    assert facts.value("toolkit.nvcc") == "12.4" and facts.value("toolkit.cuda_home") == str(home)


def test_a_toolkit_that_says_nothing_is_unknown(
    machine: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "toolkit"
    tool(home / "bin/nvcc")
    (home / "version.json").write_text("[]")
    monkeypatch.setenv("CUDA_PATH", str(home))
    fact = read(target, tmp_path)["toolkit.nvcc"]
    assert fact.value is None and "does not give" in (fact.problem or "")


def test_a_cuda_home_without_nvcc_is_no_toolkit(
    machine: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "gone"))
    assert read(target, tmp_path).value("toolkit.nvcc") == ABSENT


def test_the_compiler_s_release_is_in_the_name_of_its_file(machine: Path, target: Target, tmp_path: Path) -> None:
    (machine / "g++").symlink_to(tool(tmp_path / "real/x86_64-linux-gnu-g++-13"))
    tool(tmp_path / "venv/bin/ninja")
    facts = read(target, tmp_path)
    assert facts.value("toolkit.gcc") == "13" and facts.value("toolkit.ninja") is True


def test_an_unpacked_tree_says_nothing_of_a_toolkit(target: Target) -> None:
    tree = replace(target, kind=TargetKind.SITE_PACKAGES)
    assert not list(collect(tree, Watch(), ("toolkit",)))
