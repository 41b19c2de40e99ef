"""What the job sees of the GPUs: the driver's library is played by a small substitute, as tests have no GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from doctor.errors import DoctorError
from doctor.model import Facts
from doctor.packages.gpus import GPU_KEYS, gpu_facts, newest_cuda
from doctor.sources.probes import gpu
from doctor.sources.probes.collect import collect
from doctor.sources.probes.gpu import Device, visible
from doctor.sources.probes.target import Target
from doctor.sources.watch import Watch
from tests.helpers.rulebook import builtin_rulebook

GPUS, CUDA_DRIVERS = builtin_rulebook().gpus, builtin_rulebook().cuda_drivers

H200, A100, T4 = (
    ("NVIDIA H200", (9, 0), 150754820096),
    ("NVIDIA A100-SXM4-40GB", (8, 0), 42949672960),
    ("Tesla T4", (7, 5), 16 << 30),
)


class NvmlError(Exception):
    """As pynvml's: the text says it all."""


class Nvml:
    """The part of pynvml that the probe uses."""

    def __init__(
        self, *gpus: tuple[str, tuple[int, int], int], mig: bool | None = False, fails: dict[str, str] | None = None
    ):
        self.gpus, self.mig, self.fails, self.open = gpus, mig, fails or {}, 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "fails"):
            text = self.fails[name]

            def fail(*_: Any) -> None:
                raise NvmlError(text)

            return fail
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.159.04"  # bytes in old releases of the binding

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, index: int) -> str:
        return self.gpus[index][0]

    def nvmlDeviceGetUUID(self, index: int) -> str:
        return f"GPU-{index}abc-uuid"

    def nvmlDeviceGetCudaComputeCapability(self, index: int) -> tuple[int, int]:
        return self.gpus[index][1]

    def nvmlDeviceGetMemoryInfo(self, index: int) -> Any:
        return SimpleNamespace(total=self.gpus[index][2])

    def nvmlDeviceGetMigMode(self, index: int) -> list[int]:
        if self.mig is None:
            raise NvmlError("Not Supported")
        return [int(self.mig), int(self.mig)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, target: Target, tmp_path: Path) -> Iterator[Any]:
    """Call it with a substitute to read that machine's facts."""

    def read(nvml: Nvml) -> Facts:
        monkeypatch.setattr(gpu, "_TRACES", (str(tmp_path),))
        monkeypatch.setattr(gpu, "_module_version", lambda: None)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
        facts = collect(target, Watch(), ("gpu",))
        assert nvml.open == 0 or "nvmlShutdown" in nvml.fails
        return facts

    yield read


def test_eight_alike(machine: Any) -> None:
    facts = machine(Nvml(*[H200] * 8))
    assert facts.value("gpu.sm") == "9.0"
    assert facts.value("gpu.name") == "NVIDIA H200"
    assert facts.value("gpu.count") == 8
    assert facts.value("gpu.memory_bytes") == 150754820096
    assert facts.value("gpu.mig") is False
    assert facts.value("gpu.all")[7] == "7 NVIDIA H200 9.0 150754820096"
    assert facts.value("driver.version") == "580.159.04"
    assert facts.value("driver.cuda") == "13.0"


def test_mixed_the_lowest_counts(machine: Any) -> None:
    facts = machine(Nvml(H200, A100, T4))
    assert facts.value("gpu.sm") == "7.5"
    assert facts.value("gpu.name") == "Tesla T4"
    assert facts.value("gpu.memory_bytes") == 16 << 30
    assert "lowest of mixed" in facts["gpu.sm"].source
    assert facts["gpu.sm"].raw == "9.0, 8.0, 7.5"
    assert len(facts.value("gpu.all")) == 3


def test_sm_100_is_above_sm_90(machine: Any) -> None:
    facts = machine(Nvml(("NVIDIA B200", (10, 0), 1), H200))
    assert facts.value("gpu.sm") == "9.0"


@pytest.mark.parametrize("asked", ["", "-1", "none", "8", "GPU-zzz", ",0"])
def test_hidden_gpus(machine: Any, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)
    facts = machine(Nvml(H200, H200))
    assert facts.value("gpu.count") == 0
    assert facts["gpu.sm"].value is None
    assert "the job sees no GPU" in (facts["gpu.sm"].problem or "")
    assert len(facts.value("gpu.all")) == 2
    assert facts.value("driver.version") == "580.159.04"


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ("1", [1]),
        ("1,0", [1, 0]),
        (" 0 , 2 ", [0, 2]),
        ("0,7,1", [0]),  # an entry that names nothing ends the list
        ("0,-1,1", [0]),
        ("0,0", []),  # named twice
        ("GPU-1abc-uuid", [1]),
        ("gpu-2abc", [2]),  # the beginning is enough
        ("GPU-", []),  # and must be unambiguous
        ("MIG-GPU-2abc-uuid/1/0", [2]),
        ("MIG-GPU-2abc-uuid/1/0,MIG-GPU-2abc-uuid/2/0", [2]),
    ],
)
def test_cuda_visible_devices(asked: str, seen: list[int]) -> None:
    devices = [Device(index, f"GPU-{index}abc-uuid", "x", "9.0", 1, False) for index in range(3)]
    chosen, _, _ = visible(devices, asked, None)
    assert [gpu.index for gpu in chosen] == seen


def test_an_index_of_mixed_gpus_may_mean_another(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    facts = machine(Nvml(T4, H200))
    assert facts["gpu.sm"].value is None and "CUDA_DEVICE_ORDER" in (facts["gpu.sm"].problem or "")
    assert facts.value("gpu.count") == 1
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert machine(Nvml(T4, H200)).value("gpu.sm") == "7.5"


def test_an_index_of_gpus_alike_is_clear(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine(Nvml(H200, H200)).value("gpu.sm") == "9.0"


@pytest.mark.parametrize(("mode", "mig"), [(True, True), (False, False), (None, False)])
def test_partitioned(machine: Any, mode: bool | None, mig: bool) -> None:
    facts = machine(Nvml(A100, mig=mode))
    assert facts.value("gpu.mig") is mig
    # A partitioned GPU's memory is not the job's.
    assert facts.value("gpu.memory_bytes") == (None if mig else 42949672960)
    assert mig == ("MIG" in (facts["gpu.memory_bytes"].problem or ""))


@pytest.mark.parametrize(
    ("fails", "keys", "said"),
    [
        ({"nvmlInit": "NVML Shared Library Not Found"}, gpu.PROMISES, "libnvidia-ml.so.1 not found"),
        ({"nvmlInit": "Driver Not Loaded"}, gpu.PROMISES, "not loaded"),
        ({"nvmlInit": "Driver/library version mismatch"}, gpu.PROMISES, "version mismatch"),
        ({"nvmlDeviceGetCount": "Unknown Error"}, ("gpu.sm", "gpu.count"), "Unknown Error"),
        ({"nvmlDeviceGetHandleByIndex": "GPU is lost"}, ("gpu.sm", "gpu.name"), "GPU is lost"),
        ({"nvmlSystemGetCudaDriverVersion": "Unknown Error"}, ("driver.cuda",), "Unknown Error"),
        ({"nvmlDeviceGetMemoryInfo": "Not Supported"}, ("gpu.memory_bytes",), "does not report"),
        ({"nvmlDeviceGetMigMode": "Unknown Error"}, ("gpu.mig",), "does not report"),
    ],
)
def test_each_failure_is_an_unknown_fact(machine: Any, fails: dict[str, str], keys: tuple[str, ...], said: str) -> None:
    facts = machine(Nvml(H200, fails=fails))
    assert set(facts) == set(gpu.PROMISES)
    for key in keys:
        assert facts[key].value is None and said in (facts[key].problem or ""), key
    known = [key for key in gpu.PROMISES if facts[key].value is not None]
    assert bool(known) == ("nvmlInit" not in fails)


def test_no_driver_at_all(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_TRACES", ("/nowhere/at/all",))
    monkeypatch.setattr(gpu, "_module_version", lambda: None)
    facts = collect(target, Watch(), ("gpu",))
    assert {facts[key].problem for key in gpu.PROMISES} == {"no NVIDIA driver: libnvidia-ml.so.1 not found"}


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build  (root@host)\nGCC 12.2.0\n",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Thu Mar 20 2025\nGCC version:  gcc 12.2.0\n",
    ],
)
def test_the_kernel_module_speaks_where_the_library_is_missing(
    target: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(gpu, "_MODULE", str(tmp_path / "version"))
    monkeypatch.setattr(gpu, "_TRACES", ())
    facts = collect(target, Watch(cuda_drivers=CUDA_DRIVERS), ("gpu",))
    assert facts.value("driver.version") == "570.133.20"
    assert facts.value("driver.cuda") == "12.8"
    assert facts["gpu.sm"].value is None


@pytest.mark.parametrize(
    ("name", "sm"),
    [
        ("a100", "8.0"), ("A100-SXM4-80GB", "8.0"), ("NVIDIA A100 80GB PCIe", "8.0"), ("h100", "9.0"),
        ("NVIDIA H100 80GB HBM3", "9.0"), ("h200", "9.0"), ("h20", "9.0"), ("gh200", "9.0"), ("b200", "10.0"),
        ("gb200", "10.0"), ("b300", "10.3"), ("l40s", "8.9"), ("rtx4090", "8.9"), ("NVIDIA GeForce RTX 4090", "8.9"),
        ("RTX 2080 Ti", "7.5"), ("rtx-3090", "8.6"), ("rtx5090", "12.0"), ("Tesla V100-SXM2-32GB", "7.0"),
        ("t4", "7.5"), ("4090", "8.9"), ("5090", "12.0"), ("3090ti", "8.6"), ("h100-80gb", "9.0"), ("dgx-h100", "9.0"),
        ("a10g", "8.6"), ("NVIDIA RTX 6000 Ada Generation", "8.9"), ("sm90", "9.0"), ("SM_80", "8.0"), ("sm90a", "9.0"),
        ("sm100", "10.0"), ("8.6", "8.6"), ("12.0", "12.0"),
    ],
)  # fmt: skip
def test_gpus_by_name(name: str, sm: str) -> None:
    facts = Facts(gpu_facts(name, GPUS))
    assert facts.value("gpu.sm") == sm
    assert set(facts) == set(GPU_KEYS)  # so that nothing of another GPU is left


@pytest.mark.parametrize(
    ("name", "count", "sm"),
    [
        ("8xh100", 8, "9.0"), ("8 x H100", 8, "9.0"), ("4×NVIDIA A100-SXM4-80GB", 4, "8.0"), ("2*b200", 2, "10.0"),
        ("16xsm90", 16, "9.0"),
    ],
)  # fmt: skip
def test_a_count_in_front_of_a_name(name: str, count: int, sm: str) -> None:
    facts = Facts(gpu_facts(name, GPUS))
    assert (facts.value("gpu.count"), facts.value("gpu.sm")) == (count, sm)
    assert set(facts) == {*GPU_KEYS, "gpu.count"}


def test_no_name_of_the_table_reads_as_a_count() -> None:
    for official, entry in GPUS.items():
        for name in (official, *entry.get("aliases", ())):
            assert "gpu.count" not in Facts(gpu_facts(name, GPUS))


def test_memory_where_the_name_has_it() -> None:
    assert Facts(gpu_facts("A100-SXM4-40GB", GPUS)).value("gpu.memory_bytes") == 40 << 30
    unknown = Facts(gpu_facts("a100", GPUS))["gpu.memory_bytes"]
    assert unknown.value is None and unknown.problem


@pytest.mark.parametrize(
    ("name", "hint"),
    [("h1000", "`h100`"), ("rtx4091", "`rtx4090`"), ("sm95", "9.0"), ("", "sm90"), ("x" * 500, "sm90"), ("§", "sm90")],
)
def test_unknown_gpus(name: str, hint: str) -> None:
    with pytest.raises(DoctorError) as caught:
        gpu_facts(name, GPUS)
    assert hint in (caught.value.hint or "")
    assert len(caught.value.message) < 120


@pytest.mark.parametrize(
    ("name", "vendor"),
    [
        ("mi300x", "AMD"), ("AMD Instinct MI300X", "AMD"), ("rx7900xtx", "AMD"), ("gfx942", "AMD"), ("gaudi2", "Intel"),
        ("m3", "Apple"), ("apple m2 ultra", "Apple"), ("tpu-v5e", "TPU"), ("trn1", "TPU"),
    ],
)  # fmt: skip
def test_accelerators_of_other_vendors_are_named_as_such(name: str, vendor: str) -> None:
    with pytest.raises(DoctorError, match=f"{vendor}.* not supported"):
        gpu_facts(name, GPUS)


def test_no_gpu_of_the_table_counts_as_another_vendor() -> None:
    for official, entry in GPUS.items():
        for name in (official, *entry.get("aliases", ())):
            assert Facts(gpu_facts(name, GPUS)).value("gpu.sm") == entry["sm"]


def test_the_table_is_sound() -> None:
    table = GPUS
    spelled: dict[str, str] = {}
    for name, entry in table.items():
        assert set(entry) <= {"sm", "cuda", "memory_gib", "aliases"}, name
        for spelling in (name, *entry.get("aliases", ())):
            assert Facts(gpu_facts(spelling, GPUS)).value("gpu.name") == name, spelling
            assert spelled.setdefault(spelling.lower(), name) == name
        assert (entry["sm"].split(".")[0] >= "8") <= (float(entry["cuda"]) >= 11), name


@pytest.mark.parametrize(
    ("driver", "cuda"), [("550.90.07", "12.4"), ("580.159.04", "13.0"), ("525.60.13", "12.0"), ("390.1", None)]
)
def test_newest_cuda_of_a_driver(driver: str, cuda: str | None) -> None:
    assert newest_cuda(driver, CUDA_DRIVERS) == cuda


@pytest.mark.parametrize(
    ("name", "sm"),
    [
        ("v100", "7.0"), ("t4", "7.5"), ("rtx 2080 ti", "7.5"), ("a100", "8.0"), ("a10", "8.6"), ("a40", "8.6"),
        ("rtx a6000", "8.6"), ("rtx3090", "8.6"), ("orin", "8.7"), ("l4", "8.9"), ("l40s", "8.9"),
        ("rtx 6000 ada", "8.9"), ("rtx4090", "8.9"), ("h100", "9.0"), ("h200", "9.0"), ("gh200", "9.0"),
        ("b200", "10.0"), ("gb200", "10.0"), ("b300", "10.3"), ("gb300", "10.3"), ("thor", "11.0"),
        ("rtx pro 6000", "12.0"), ("rtx5090", "12.0"), ("rtx5050", "12.0"), ("gb10", "12.1"),
    ],
)  # fmt: skip
def test_every_generation_from_volta_on_is_known(name: str, sm: str) -> None:
    assert Facts(gpu_facts(name, GPUS)).value("gpu.sm") == sm
