"""GPUs and driver through NVIDIA's management library (NVML): the GPUs visible to the job, not all of the machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doctor.facts.vocabulary import fact
from doctor.model import Fact
from doctor.packages.gpus import Table, newest_cuda
from doctor.sources.watch import Watch
from doctor.util.redact import shortened

from .target import Target

_OF_DRIVER = ("driver.version", "driver.cuda")
_OF_GPU = ("gpu.sm", "gpu.name", "gpu.count", "gpu.memory_bytes", "gpu.all", "gpu.mig")
PROMISES = (*_OF_DRIVER, *_OF_GPU)

_SOURCE = "NVML"
_MODULE = "/proc/driver/nvidia/version"
_TRACES = (_MODULE, "/dev/nvidiactl", "/dev/dxg")
_KERNEL_MODULE = re.compile(r"Kernel Module\b.*?\s(\d{3,}\.\d+(?:\.\d+)?)")
_NO_DRIVER = "no NVIDIA driver: libnvidia-ml.so.1 not found"


@dataclass(frozen=True)
class Device:
    """One GPU as the driver lists it; None where the driver does not report a field."""

    index: int
    uuid: str
    name: str | None
    sm: str | None
    memory_bytes: int | None
    mig: bool | None


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield the gpu.* and driver.* facts; an unknown one carries the reason."""
    if not any(os.path.exists(trace) for trace in _TRACES):  # noqa: PTH110
        yield from _unknown(_NO_DRIVER, watch.cuda_drivers)  # without a driver, loading the library only costs time
        return
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        yield from _unknown("the Python package `nvidia-ml-py` is not installed with attn-doctor", watch.cuda_drivers)
        return
    try:
        pynvml.nvmlInit()
    except Exception as problem:  # NVMLError, or what an odd library raises
        yield from _unknown(_why(problem), watch.cuda_drivers)
        return
    try:
        yield from _driver(pynvml)
        yield from _gpus(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _unknown(problem: str, cuda_drivers: Table) -> Iterator[Fact]:
    for key in PROMISES:
        yield Fact(key, None, _SOURCE, problem=problem)
    version = _module_version()
    if version is not None:
        yield fact("driver.version", version, _MODULE)
        if (cuda := newest_cuda(version, cuda_drivers)) is not None:
            yield fact("driver.cuda", cuda, f"{_MODULE} and the table of CUDA releases")


def _module_version() -> str | None:
    """Return the version of the kernel module, for containers that lack the driver's library."""
    try:
        match = _KERNEL_MODULE.search(Path(_MODULE).read_text("utf-8", "replace"))
    except OSError:
        return None
    return match[1] if match else None


def _driver(nvml: Any) -> Iterator[Fact]:
    try:
        yield fact("driver.version", _text(nvml.nvmlSystemGetDriverVersion()), _SOURCE)
    except Exception as problem:
        yield Fact("driver.version", None, _SOURCE, problem=_why(problem))
    try:
        number = int(nvml.nvmlSystemGetCudaDriverVersion())
        yield fact("driver.cuda", f"{number // 1000}.{number % 1000 // 10}", _SOURCE, raw=str(number))
    except Exception as problem:
        yield Fact("driver.cuda", None, _SOURCE, problem=_why(problem))


def _gpus(nvml: Any) -> Iterator[Fact]:
    try:
        devices = [_device(nvml, index) for index in range(int(nvml.nvmlDeviceGetCount()))]
    except Exception as problem:
        for key in _OF_GPU:
            yield Fact(key, None, _SOURCE, problem=_why(problem))
        return
    listed = tuple(f"{gpu.index} {gpu.name or '?'} {gpu.sm or '?'} {gpu.memory_bytes or '?'}" for gpu in devices)
    yield Fact("gpu.all", listed, _SOURCE)
    seen, source, doubt = visible(devices, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))
    yield Fact("gpu.count", len(seen), source)
    if not seen:
        reason = "this machine has no NVIDIA GPU" if not devices else f"the job sees no GPU: {source}"
        for key in ("gpu.sm", "gpu.name", "gpu.memory_bytes", "gpu.mig"):
            yield Fact(key, None, source, problem=reason)
        return
    yield _one("gpu.sm", seen, [gpu.sm for gpu in seen], source, doubt, devices)
    yield _one("gpu.name", seen, [gpu.name for gpu in seen], source, doubt, devices)
    migs = [gpu.mig for gpu in seen]
    if True in migs:
        yield Fact("gpu.memory_bytes", None, source, problem="a GPU is partitioned by MIG: the job gets a part of it")
    else:
        yield _one("gpu.memory_bytes", seen, [gpu.memory_bytes for gpu in seen], source, doubt, devices)
    if True in migs:
        yield Fact("gpu.mig", True, source)
    elif None in migs:
        yield Fact("gpu.mig", None, source, problem="the driver does not report it")
    else:
        yield Fact("gpu.mig", False, source)


def _one(
    key: str, seen: list[Device], values: list[Any], source: str, doubt: str | None, devices: list[Device]
) -> Fact:
    """Return one value for all visible GPUs; of mixed ones the weakest counts, as the job runs on each."""
    field = key.rpartition(".")[2]
    if doubt and len({getattr(gpu, field) for gpu in devices}) > 1:
        return Fact(key, None, source, problem=doubt)
    if None in values:
        return Fact(key, None, source, problem="the driver does not report it")
    if len(set(values)) == 1:
        return fact(key, values[0], source)
    weakest = min(seen, key=lambda gpu: (_rank(gpu.sm), gpu.memory_bytes or 0))
    lowest = min(values) if key == "gpu.memory_bytes" else getattr(weakest, field)
    return fact(key, lowest, f"{source}; the lowest of mixed GPUs", raw=", ".join(str(value) for value in values))


def _rank(sm: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in sm.split(".")) if sm else (99,)


def visible(devices: list[Device], variable: str | None, order: str | None) -> tuple[list[Device], str, str | None]:
    """Return the GPUs that CUDA shows a job, the source, and a doubt where CUDA's indices may differ from NVML's.

    CUDA_VISIBLE_DEVICES as CUDA reads it: an entry that names no GPU ends the list, a GPU named twice empties it.
    """
    if variable is None:
        return devices, _SOURCE, None
    source = f"{_SOURCE} and CUDA_VISIBLE_DEVICES={shortened(variable, 80)}"
    chosen: list[Device] = []
    by_index = False
    for entry in variable.split(","):
        entry = entry.strip()
        if re.fullmatch(r"\d+", entry) and int(entry) < len(devices):
            found: Device | None = devices[int(entry)]
            by_index = True
        else:
            found = _by_uuid(devices, entry)
        if found is None:
            break
        if found in chosen and not entry.upper().startswith("MIG-"):
            return [], f"{source} (names a GPU twice)", None
        if found not in chosen:
            chosen.append(found)
    doubt = None
    if by_index and len(chosen) < len(devices) and order != "PCI_BUS_ID":
        doubt = (
            "CUDA numbers GPUs by speed, the driver by slot, and this machine has different GPUs: "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return chosen, source, doubt


def _by_uuid(devices: list[Device], entry: str) -> Device | None:
    """Return a GPU by its identifier or the beginning of it; a MIG slice means its GPU."""
    upper = entry.upper()
    if upper.startswith("GPU-"):
        matches = [gpu for gpu in devices if gpu.uuid.upper().startswith(upper)]
        return matches[0] if len(matches) == 1 else None
    if upper.startswith("MIG-GPU-"):  # the old form: MIG-GPU-<uuid>/<instance>/<compute instance>
        return _by_uuid(devices, entry[4:].partition("/")[0])
    if upper.startswith("MIG-"):
        partitioned = [gpu for gpu in devices if gpu.mig]
        return partitioned[0] if len(partitioned) == 1 else None
    return None


def _device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def query(function: Any) -> Any:
        try:
            return function(handle)
        except Exception:  # the driver does not report this field; others may still be known
            return None

    capability = query(nvml.nvmlDeviceGetCudaComputeCapability)
    memory = query(nvml.nvmlDeviceGetMemoryInfo)
    name, uuid = query(nvml.nvmlDeviceGetName), query(nvml.nvmlDeviceGetUUID)
    return Device(
        index=index,
        uuid=_text(uuid) if uuid else "",
        name=_text(name) if name else None,
        sm=f"{capability[0]}.{capability[1]}" if capability else None,
        memory_bytes=int(memory.total) if memory else None,
        mig=_mig(nvml, handle),
    )


def _mig(nvml: Any, handle: Any) -> bool | None:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except Exception as problem:
        return False if "not supported" in str(problem).lower() else None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _why(problem: Exception) -> str:
    text = str(problem)
    if "shared library not found" in text.lower():
        return _NO_DRIVER
    if "driver not loaded" in text.lower():
        return "the NVIDIA driver is installed but not loaded"
    return f"the NVIDIA driver does not respond: {text or type(problem).__name__}"
