"""The devices of this host as the sweep uses them: how busy they are, and whether their results agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from doctor.runner.result import KernelResult

BUSY_SHARE = 0.1  # of a GPU's memory in use by others
BUSY_PERCENT = 20  # utilization


@dataclass(frozen=True)
class Device:
    """One GPU, or the CPU: its name in the report, and the environment in which a process sees this device only."""

    name: str
    label: str
    env: Mapping[str, str | None] = field(default_factory=dict)
    memory_bytes: int | None = None  # the limit that the user set
    free_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def usable_bytes(self) -> int | None:
        """Return the memory that the sweep may use on this device; None if it is unknown."""
        known = [size for size in (self.memory_bytes, self.free_bytes) if size is not None]
        return min(known, default=None)


def stack_of(hello: Mapping[str, Any]) -> dict[str, Any]:
    """Return what runs, by what the program says at its start."""
    return {name: hello.get(name) for name in ("torch", "cuda", "versions", "device")}


def on_gpu(device: str) -> bool:
    """Return whether a device, as torch names it, is a GPU."""
    return device.startswith("cuda")


def devices_of(hello: Mapping[str, Any], memory: int | None) -> tuple[list[Device], list[str]]:
    """Return the usable devices of this host, and the problems of the others."""
    reported = hello.get("devices") or []
    if not reported:
        return [Device("cpu", "the CPU", memory_bytes=memory)], []
    tokens = [token.strip() for token in str(hello.get("visible") or "").split(",") if token.strip()]
    devices, problems = [], []
    for device in reported:
        index = int(device["index"])
        # A given list of devices (numbers, GPU-…, MIG-…) is kept: the sweep must not use more than it was given.
        token = tokens[index] if index < len(tokens) else str(index)
        label = f"GPU {index} ({device.get('name')})"
        if device.get("problem"):
            problems.append(f"{label} cannot be used: {device['problem']}")
            continue
        devices.append(
            Device(
                device.get("uuid") or f"gpu{index}",
                label,
                {"CUDA_VISIBLE_DEVICES": token},
                memory,
                device.get("free_bytes"),
                _busy(label, device),
            )
        )
    return devices, problems


def _busy(label: str, device: Mapping[str, Any]) -> tuple[str, ...]:
    total, free = device.get("memory_bytes"), device.get("free_bytes")
    notes = []
    if total and free is not None and 1 - free / total > BUSY_SHARE:
        notes.append(f"{label} is busy: {(total - free) / 2**30:.1f} of {total / 2**30:.1f} GiB are in use")
    if (device.get("utilization") or 0) > BUSY_PERCENT:
        notes.append(f"{label} is busy: {device['utilization']} % utilization; its times mean little")
    return tuple(notes)


def disagreements(
    records: Iterable[tuple[str, Mapping[str, Any], KernelResult]], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the cases in which GPUs of one model differ: in the verdict, or in the bits of a deterministic output.

    `names`: GPU → model.
    """
    by_case: dict[str, list[tuple[str, Mapping[str, Any], KernelResult]]] = defaultdict(list)
    for gpu, case, result in records:
        by_case[repr(sorted(case.items(), key=str))].append((gpu, case, result))
    differing = []
    for group in by_case.values():
        for one, two in _pairs(sorted(group, key=lambda item: item[0]), names):
            what = _difference(one[2], two[2])
            if what:
                differing.append({"case": dict(one[1]), "gpus": [one[0], two[0]], "difference": what})
    return differing


def _pairs(group: Sequence[Any], names: Mapping[str, str]) -> Iterable[tuple[Any, Any]]:
    first: dict[str, Any] = {}
    for item in group:
        kind = names.get(item[0], "")
        if kind in first:
            yield first[kind], item
        else:
            first[kind] = item


def _difference(one: KernelResult, two: KernelResult) -> str | None:
    if one.outcome != two.outcome:
        return f"{one.outcome} here, {two.outcome} there"
    if one.observed.get("verdict") != two.observed.get("verdict"):
        return f"{one.observed.get('verdict')} here, {two.observed.get('verdict')} there"
    if "not_repeatable" in one.observed.get("faults", ()):
        return None
    if one.observed.get("bits") != two.observed.get("bits"):
        return "the outputs differ in their bits"
    return None
