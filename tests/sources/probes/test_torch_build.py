"""torch's build, read off its files; its `__init__` would end the test if anything imported it."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.model import ABSENT, Facts
from doctor.sources.probes.collect import collect
from doctor.sources.probes.target import Target
from doctor.sources.watch import Watch
from tests.helpers.fake_trees import elf, install, torch

ARCHS = b"\0sm_75 sm_80 sm_86 sm_90 sm_100 sm_120\0"
NEW_ABI = b"\0_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE\0"
OLD_ABI = b"\0_ZN3c106detail14torchCheckFailEPKcS2_jRKSs\0"


def read(target: Target) -> Facts:
    return collect(target, Watch(), ("distributions", "torch_build"))


def test_the_label_that_metadata_lacks(site: Path, target: Target) -> None:
    torch(site, "2.6.0", "cu124", "12.4")
    facts = read(target)
    assert facts.value("torch.version") == "2.6.0+cu124"
    assert facts["torch.version"].source.endswith("torch/version.py")
    assert facts.value("torch.cuda") == "12.4"
    assert facts.value("torch.git_version") == "2236df1770800ffea5697b11b0bb0d910b2e59e1"


def test_a_cpu_build_has_no_cuda_and_no_architectures(site: Path, target: Target) -> None:
    torch(site, "2.13.0", "cpu", None)
    facts = read(target)
    assert facts.value("torch.cuda") == ABSENT
    assert facts.value("torch.arch_list") == ABSENT


def test_a_hip_build_says_so(site: Path, target: Target) -> None:
    folder = torch(site, "2.6.0", "rocm6.2", None)
    (folder / "version.py").write_text("__version__ = '2.6.0+rocm6.2'\ncuda = None\nhip = '6.2.41133'\n")
    fact = read(target)["torch.cuda"]
    assert fact.value == ABSENT and fact.raw == "hip 6.2.41133"


@pytest.mark.parametrize(("flag", "abi"), [("0", False), ("1", True)])
def test_abi_by_the_cmake_flag(site: Path, target: Target, flag: str, abi: bool) -> None:
    config = torch(site) / "share/cmake/Torch/TorchConfig.cmake"
    config.parent.mkdir(parents=True)
    config.write_text(f'  set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI={flag}")\n')
    assert read(target).value("torch.cxx11_abi") is abi


@pytest.mark.parametrize(("symbols", "abi"), [(OLD_ABI, False), (NEW_ABI, True), (b"\0other\0", None)])
def test_abi_by_symbols_where_the_flag_is_gone(site: Path, target: Target, symbols: bytes, abi: bool | None) -> None:
    elf(torch(site) / "lib/libc10.so", sections={".dynstr": symbols})
    facts = read(target)
    assert facts.value("torch.cxx11_abi") is abi
    assert abi is not None or "torch.cxx11_abi" not in facts  # left to what the release is known for


def test_architectures(site: Path, target: Target) -> None:
    elf(torch(site) / "lib/libtorch_python.so", sections={".rodata": b"\0sm_9 text\0" + ARCHS})
    assert read(target).value("torch.arch_list") == ("7.5", "8.0", "8.6", "9.0", "10.0", "12.0")


def test_architectures_of_a_build_of_ones_own(site: Path, target: Target) -> None:
    elf(torch(site) / "lib/libtorch_python.so", sections={".rodata": b"\0sm_90a compute_90\0"})
    assert read(target).value("torch.arch_list") == ("9.0a", "9.0+PTX")


def test_libraries_cut_off_or_foreign(site: Path, target: Target) -> None:
    folder = torch(site)
    whole = elf(folder / "lib/libtorch_python.so", sections={".rodata": ARCHS}).read_bytes()
    for data in (b"", b"\x7fELF", whole[:100], whole[:-40], b"MZ" + whole[2:], b"\x7fELF" + b"\xff" * 200):
        (folder / "lib/libtorch_python.so").write_bytes(data)
        (folder / "lib/libc10.so").write_bytes(data)
        facts = read(target)
        assert "torch.arch_list" not in facts and facts.value("torch.version") == "2.6.0+cu124"


def test_metadata_without_the_files(site: Path, target: Target) -> None:
    install(site, "torch", "2.6.0")
    fact = read(target)["torch.version"]
    assert fact.value is None and "no `torch` folder" in (fact.problem or "")
    assert fact.raw == "2.6.0"


def test_a_version_file_that_says_nothing(site: Path, target: Target) -> None:
    (torch(site) / "version.py").write_bytes(b"\xff\xfe garbage")
    facts = read(target)
    assert facts.value("torch.version") == "2.6.0"  # what the metadata says
    assert facts["torch.cuda"].value is None and "does not give it" in (facts["torch.cuda"].problem or "")


def test_no_torch(site: Path, target: Target) -> None:
    install(site, "numpy", "2.0.0")
    assert not [key for key in read(target) if key.startswith("torch.")]
