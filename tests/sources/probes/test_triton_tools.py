"""Where triton searches for the driver's library, by texts like those of its releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.model import ABSENT, Facts
from doctor.sources.probes import triton_tools
from doctor.sources.probes.collect import collect
from doctor.sources.probes.target import Target, TargetKind
from doctor.sources.probes.triton_tools import Search, libcuda_problem, read_search, tool_release
from doctor.sources.watch import Watch

EARLY = """locs = [line.split()[-1] for line in libs.splitlines() if "libcuda.so" in line]
assert any(os.path.exists(os.path.join(path, 'libcuda.so')) for path in dirs), msg"""
MIDDLE = """libraries = ['cuda']
if env_libcuda_path := knobs.nvidia.libcuda_path:
locs = [line.split()[-1] for line in libs.splitlines() if "libcuda.so.1" in line]
assert any(os.path.exists(os.path.join(path, 'libcuda.so.1')) for path in dirs), msg"""
LATE = MIDDLE.replace("['cuda']", "['libcuda.so.1']")


def target(site: Path, **environ: str) -> Target:
    return Target(
        "/usr/bin/python3",
        site,
        (site,),
        TargetKind.INTERPRETER,
        "3.11.7",
        "cpython",
        "Linux",
        "x86_64",
        "2.36",
        environ,
    )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(triton_tools, "_LINKER_DIRS", ())
    monkeypatch.setattr(triton_tools, "loader_cache", lambda **_: {})
    driver = tmp_path / "site/triton/backends/nvidia/driver.py"
    driver.parent.mkdir(parents=True)
    driver.write_text(MIDDLE)
    (tmp_path / "site/triton/__init__.py").touch()
    return tmp_path / "site"


def facts_of(site: Path, **environ: str) -> Facts:
    return collect(target(site, **environ), Watch(), ("triton_tools",))


def test_the_search_of_each_era() -> None:
    assert read_search(EARLY) == Search("libcuda.so", "libcuda.so", "libcuda.so", by_variable=False)
    assert read_search(MIDDLE) == Search("libcuda.so.1", "libcuda.so.1", "libcuda.so", by_variable=True)
    assert read_search(LATE) == Search("libcuda.so.1", "libcuda.so.1", "libcuda.so.1", by_variable=True)
    assert read_search('subprocess.check_output(["whereis", "libcuda.so"])') is None


def test_only_the_name_with_a_number_is_there(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").touch()
    cache = {"libcuda.so.1": f"{tmp_path}/libcuda.so.1"}
    middle, late = read_search(MIDDLE), read_search(LATE)
    assert middle is not None and late is not None
    assert "links against `libcuda.so`" in str(libcuda_problem(middle, {}, cache, ()))
    assert libcuda_problem(late, {}, cache, ()) is None
    other = tmp_path / "other"
    other.mkdir()
    (other / "libcuda.so").touch()
    assert libcuda_problem(middle, {}, cache, (str(other),)) is None  # by LIBRARY_PATH
    assert libcuda_problem(late, {"TRITON_LIBCUDA_PATH": str(other)}, cache, ()) is not None


def test_ldconfig_comes_before_the_loaders_path(tmp_path: Path) -> None:
    late = read_search(LATE)
    assert late is not None
    (tmp_path / "libcuda.so.1").touch()
    environ = {"LD_LIBRARY_PATH": str(tmp_path)}
    assert libcuda_problem(late, environ, {}, ()) is None
    gone = {"libcuda.so.1": "/gone/libcuda.so.1"}  # a stale cache: LD_LIBRARY_PATH is not looked at
    assert "ldconfig's cache has it in /gone" in str(libcuda_problem(late, environ, gone, ()))


def test_facts_of_an_installed_triton(site: Path) -> None:
    assert "triton finds no `libcuda.so.1`" in facts_of(site).value("triton.libcuda_problem")
    for name in ("libcuda.so", "libcuda.so.1"):
        (site / name).touch()
    assert facts_of(site, LD_LIBRARY_PATH=str(site)).value("triton.libcuda_problem") == ABSENT
    (site / "triton/__init__.py").unlink()
    assert not facts_of(site)


def test_the_ptxas_that_a_variable_names(site: Path, tmp_path: Path) -> None:
    tool = tmp_path / "ptxas"
    assert "is no file" in facts_of(site, TRITON_PTXAS_PATH=str(tool)).value("triton.ptxas_problem")
    tool.write_bytes(b"\x7fELF...\0Cuda compilation tools, release 12.9, V12.9.86\0")
    assert "cannot be executed" in facts_of(site, TRITON_PTXAS_PATH=str(tool)).value("triton.ptxas_problem")
    tool.chmod(0o755)
    facts = facts_of(site, TRITON_PTXAS_PATH=str(tool), TRITON_PTXAS_BLACKWELL_PATH=str(tool))
    assert facts.value("triton.ptxas_override") == facts.value("triton.blackwell_ptxas_override") == "12.9"
    assert "triton.ptxas_problem" not in facts
    tool.write_bytes(b"#!/bin/sh\n")
    assert tool_release(str(tool)) is None
    assert facts_of(site, TRITON_PTXAS_PATH=str(tool)).get("triton.ptxas_override").problem
