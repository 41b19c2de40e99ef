"""What the parts of an installation say together: drivers, wheels, lockstep packages and the toolkit."""

from __future__ import annotations

from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Facts
from doctor.rulebook.evaluate import know
from doctor.rulebook.rulebook import Rulebook
from tests.helpers.rulebook import builtin_rulebook


@pytest.fixture(scope="module")
def rulebook() -> Rulebook:
    return builtin_rulebook()


def value(rulebook: Rulebook, key: str, given: dict[str, Any]) -> Any:
    facts = Facts(fact(name, found, "the test") for name, found in given.items())
    return know(rulebook, facts)[0].value(key)


@pytest.mark.parametrize(
    ("given", "cuda"),
    [
        ({"torch.version": "2.9.1+cu129"}, "12.9"),  # no row of the release table
        ({"torch.version": "2.9.1+cpu"}, ABSENT),
        ({"torch.version": "2.9.1"}, "12.8"),
        ({"torch.version": "2.9.1", "platform.system": "Windows"}, ABSENT),
        ({"torch.version": "2.9.1", "platform.machine": "aarch64"}, ABSENT),
        ({"torch.version": ABSENT, "platform.system": "Windows"}, None),
        ({"torch.version": "2.11.0", "platform.machine": "aarch64"}, "13.0"),
        ({"torch.version": "2.9.1", "platform.system": "Windows", "torch.cuda": "12.8"}, "12.8"),  # what was read wins
        ({"torch.version": "2.10.0a0+b4e4ee81d3.nv25.12", "platform.machine": "aarch64"}, None),
    ],
)
def test_the_cuda_of_a_torch_that_was_only_declared(
    rulebook: Rulebook, given: dict[str, str], cuda: str | None
) -> None:
    assert value(rulebook, "torch.cuda", given) == cuda


@pytest.mark.parametrize(
    ("given", "serves"),
    [
        ({"torch.version": "2.7.0+cu128", "gpu.sm": "7.0"}, False),
        ({"torch.version": "2.7.0", "gpu.sm": "7.0"}, True),
        ({"torch.version": "2.9.1+cu128", "gpu.sm": "11.0", "platform.machine": "aarch64"}, False),
        ({"torch.version": "2.9.1+cu130", "gpu.sm": "11.0", "platform.machine": "aarch64"}, True),
        ({"torch.version": "2.9.1+cu130", "gpu.sm": "11.0"}, None),  # the machine decides which build it is
        ({"torch.version": "2.8.0", "gpu.sm": "8.7", "platform.machine": "aarch64"}, None),  # NVIDIA's wheel for Jetson
        ({"torch.version": "2.8.0+cu128", "gpu.sm": "6.1", "platform.system": "Windows"}, None),  # other wheels there
        ({"torch.version": "2.6.0+cu124", "gpu.sm": "12.0", "platform.system": "Windows"}, False),
    ],
)
def test_whether_a_build_carries_code_for_the_gpu(
    rulebook: Rulebook, given: dict[str, str], serves: bool | None
) -> None:
    assert value(rulebook, "torch.serves_gpu", given) is serves


@pytest.mark.parametrize(
    ("name", "data_center"),
    [
        ("NVIDIA A100-SXM4-80GB", True), ("NVIDIA L40S", True), ("Tesla T4", True), ("NVIDIA H200 NVL", True),
        ("NVIDIA RTX A6000", False), ("NVIDIA GeForce RTX 4090", False), ("NVIDIA GB200", True),
        ("NVIDIA GB10", False), ("Tesla V100-SXM2-32GB", True), ("NVIDIA A10G", True),
    ],
)  # fmt: skip
def test_which_gpus_have_forward_compatibility(rulebook: Rulebook, name: str, data_center: bool) -> None:
    assert value(rulebook, "gpu.data_center", {"gpu.name": name}) is data_center


@pytest.mark.parametrize(
    ("given", "serves"),
    [
        ({"driver.version": "570.86.10"}, False),
        ({"driver.version": "580.65.06"}, True),
        ({"driver.version": "570.86.10", "driver.cuda": "13.0"}, True),  # what the driver reports counts
        ({"driver.cuda": "12.8"}, False),
        ({}, None),
    ],
)
def test_whether_the_driver_serves_torch(rulebook: Rulebook, given: dict[str, str], serves: bool | None) -> None:
    assert value(rulebook, "driver.serves_torch", {"torch.cuda": "13.0", **given}) is serves


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"vllm.version": "0.23.0", "torch.cuda": "13.0"}, True),
        ({"vllm.version": "0.23.0", "torch.cuda": "12.8"}, False),
        ({"vllm.version": "0.23.0+cu129", "torch.cuda": "12.8"}, True),
        ({"vllm.version": "0.13.0", "torch.cuda": "13.0"}, False),
        ({"vllm.version": "0.3.0", "torch.cuda": "11.8"}, False),
        ({"vllm.version": "0.11.1rc7.dev41+g6c3c0f823.d20251112", "torch.cuda": "13.0"}, None),  # built from a commit
        ({"vllm.version": "0.16.0rc1.dev100", "torch.cuda": "13.0"}, None),
        ({"vllm.version": "0.11.1rc7.dev41+g6c3c0f823.cu130", "torch.cuda": "13.0"}, True),
    ],
)
def test_whether_vllm_s_wheel_is_for_torch_s_cuda(rulebook: Rulebook, given: dict[str, str], held: bool | None) -> None:
    assert value(rulebook, "vllm.cuda_major_held", given) is held


def test_a_wheel_s_file_name_speaks_where_the_version_has_no_label(rulebook: Rulebook) -> None:
    given = {
        "flash-attn.version": "2.8.3",
        "flash-attn.wheel": "flash_attn-2.8.3%2Bcu12torch2.8cxx11abiFALSE-cp312-cp312-linux_x86_64.whl",
        "torch.version": "2.9.1+cu130",
    }
    assert value(rulebook, "flash-attn.wheel_torch", given) == "2.8"
    assert value(rulebook, "flash-attn.wheel_abi", given) is False
    assert value(rulebook, "flash-attn.wheel_abi_held", given) is False
    assert value(rulebook, "flash-attn.wheel_cuda_held", given) is False


@pytest.mark.parametrize(
    ("listed", "sm", "without"),
    [
        ("8.0;9.0", "12.0", True),
        ("8.0 8.6+PTX", "12.0", False),
        ("9.0a", "9.0", False),
        ("9.0a", "10.0", True),
        ("8.0", "8.9", False),
        ("Ampere", "9.0", False),  # a name that is no number says nothing
    ],
)
def test_an_arch_list_that_leaves_out_the_gpu(rulebook: Rulebook, listed: str, sm: str, without: bool) -> None:
    given = {"env.TORCH_CUDA_ARCH_LIST": listed, "gpu.sm": sm}
    assert value(rulebook, "torch.arch_env_without_gpu", given) is without


@pytest.mark.parametrize(
    ("nvcc", "sm", "builds"), [("12.8", "12.0", True), ("12.8", "12.1", False), ("12.4", "9.0", True)]
)
def test_which_gpus_a_toolkit_builds_for(rulebook: Rulebook, nvcc: str, sm: str, builds: bool) -> None:
    assert value(rulebook, "toolkit.builds_for_gpu", {"toolkit.nvcc": nvcc, "gpu.sm": sm}) is builds


def test_what_follows_from_a_release_was_not_read(rulebook: Rulebook) -> None:
    assert value(rulebook, "nvidia-cudnn-cu12.version", {"torch.version": "2.8.0"}) == "9.10.2.21"
    assert value(rulebook, "nvidia-cudnn-cu12.given", {"torch.version": "2.8.0"}) is False
    assert value(rulebook, "nvidia-cudnn-cu12.given", {"nvidia-cudnn-cu12.version": "9.10.2.21"}) is True
    assert value(rulebook, "nvidia-cudnn-cu12.given", {"nvidia-cudnn-cu12.version": ABSENT}) is False
    assert value(rulebook, "torch.arch_list.given", {"torch.arch_list": "8.0 9.0"}) is True


@pytest.mark.parametrize(
    ("given", "release"),
    [
        ({"torch.cuda": "12.8", "nvidia-cublas-cu12.version": "12.8.4.1", "loader.cuda_folder": "12.9"}, "12.9"),
        ({"torch.cuda": "12.8", "nvidia-cublas-cu12.version": "12.9.1.4", "loader.cuda_folder": "12.9"}, ABSENT),
        ({"torch.cuda": "12.8", "loader.cuda_folder": "12.8"}, ABSENT),
        ({"torch.cuda": "12.8", "loader.cuda_folder": "13.0"}, ABSENT),  # libcublasLt.so.13 is another file
        ({"torch.cuda": "13.0", "nvidia-cublas.version": "13.1.0.3", "loader.cuda_folder": "13.0"}, "13.0"),
        ({"torch.cuda": "12.8", "env.LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}, None),  # of an unknown release
    ],
)
def test_the_toolkit_whose_cublaslt_comes_first(rulebook: Rulebook, given: dict[str, str], release: str | None) -> None:
    assert value(rulebook, "loader.cublaslt_release", given) == release


@pytest.mark.parametrize(
    ("torch", "vision", "cuda_held", "only_cpu"),
    [
        ("2.0.1+cu117", "0.15.2+cu118", False, False),
        ("2.0.1+cu118", "0.15.2+cu118", True, False),
        ("2.0.1+cu118", "0.15.2", True, False),
        ("2.8.0+cpu", "0.23.0", True, True),
        ("2.8.0+cpu", "0.23.0+cpu", True, False),
        ("2.8.0+cpu", ABSENT, True, False),
    ],
)
def test_the_labels_of_torch_and_torchvision(
    rulebook: Rulebook, torch: str, vision: str, cuda_held: bool, only_cpu: bool
) -> None:
    given = {"torch.version": torch, "torchvision.version": vision}
    assert value(rulebook, "torchvision.cuda_held", given) == cuda_held
    assert value(rulebook, "torchvision.only_torch_is_cpu", given) == only_cpu


@pytest.mark.parametrize(
    ("gpu", "path", "consumer", "folder"),
    [
        ("NVIDIA GeForce RTX 3090", "/usr/local/cuda/compat:/usr/lib", True, "/usr/local/cuda/compat"),
        ("NVIDIA TITAN RTX", "/usr/local/cuda-12.8/compat/", True, "/usr/local/cuda-12.8/compat/"),
        ("NVIDIA H100 80GB HBM3", "/usr/local/cuda/compat/lib", False, ABSENT),
        (None, "/usr/local/cuda/lib64", False, ABSENT),
    ],
)
def test_compatibility_libraries_on_the_path(
    rulebook: Rulebook, gpu: str | None, path: str, consumer: bool, folder: str
) -> None:
    given = {"gpu.name": gpu, "env.LD_LIBRARY_PATH": path}
    assert value(rulebook, "gpu.consumer", given) == consumer
    assert value(rulebook, "loader.compat_folder", given) == folder
