"""Derived facts of wheels whose local label names the torch that they were compiled with."""

from __future__ import annotations

import re

from doctor.facts.kinds import TEXT
from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT

from .registry import derived

#: Packages with compiled files whose wheels carry such a label, without a rule of their own.
_LABELLED = (
    "block-sparse-attn", "exllamav2", "exllamav3", "gptqmodel", "natten", "nunchaku", "sageattn3", "spas-sage-attn",
    "torch-cluster", "torch-scatter", "torch-sparse",
)  # fmt: skip
#: +torch2.8, +cu128torch2.8.0, +cu121.torch2.5.0, +cu128torch2.9.0andhigher
_DOTTED = re.compile(r"torch(?P<release>\d+\.\d+)[\d.]*(?P<later>andhigher)?")
#: +torch250cu124 (NATTEN, with the patch release), +pt24cu121 (PyG) and +cu128.torch27 (Cosmos, without)
_COMPACT = re.compile(
    r"torch(?P<with_patch>\d{3,4})(?=cu|$)|pt(?P<minor_only>\d{2,3})(?=cu|cpu|$)|torch(?P<short>\d{2})(?=[.c]|$)"
)


def _named(label: str) -> tuple[tuple[int, ...], bool] | None:
    """Return the (major, minor) release of torch that a label names, and whether later ones fit too."""
    dotted = _DOTTED.search(label)
    if dotted:
        return parse_version(dotted["release"]).release[:2], dotted["later"] is not None
    compact = _COMPACT.search(label)
    if compact is None:
        return None
    digits = compact["minor_only"] or compact["short"] or compact["with_patch"][:-1]
    return (int(digits[0]), int(digits[1:])), False


def label_fits(version: str, torch: str) -> bool:
    """Return whether torch is of the minor release that the label of `version` names; true without a label."""
    named = _named(version.partition("+")[2])
    if named is None or torch == ABSENT:
        return True
    installed = parse_version(torch).release[:2]
    return installed >= named[0] if named[1] else installed == named[0]


@derived(
    "labels.other_torch", TEXT,
    "compiled packages whose label names another torch than the installed one",
    needs=("torch.version",), uses=tuple(f"{name}.version" for name in _LABELLED),
)  # fmt: skip
def _other_torch(torch: str, *versions: str | None) -> str:
    wrong = [
        f"{name} {version}"
        for name, version in zip(_LABELLED, versions, strict=True)
        if version not in (None, ABSENT) and not label_fits(str(version), torch)
    ]
    return ", ".join(wrong) or ABSENT


_SYSTEMS = {"linux": "Linux", "manylinux": "Linux", "musllinux": "Linux", "win": "Windows", "macosx": "Darwin"}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def wheel_fits(name: str, python: str | None, system: str | None, machine: str | None) -> bool:
    """Return whether the tags in a wheel's file name allow this Python, system and machine; unknown ones fit all."""
    parts = name.removesuffix(".whl").rsplit("-", 3)
    if len(parts) < 4:
        return True
    pythons, abis, platforms = (part.split(".") for part in parts[1:])
    return any(_platform_fits(one, system, machine) for one in platforms) and any(
        _python_fits(one, abi, python) for one in pythons for abi in abis
    )


def _platform_fits(tag: str, system: str | None, machine: str | None) -> bool:
    if tag == "any":
        return True
    begins = re.match(r"(manylinux|musllinux|linux|win|macosx)", tag)
    ends = re.search(r"(x86_64|amd64|aarch64|arm64)$", tag)
    other_system = begins is not None and system not in (None, ABSENT, _SYSTEMS[begins[1]])
    other_machine = ends is not None and _MACHINES.get(str(machine), _MACHINES[ends[1]]) != _MACHINES[ends[1]]
    return not (other_system or other_machine)


def _python_fits(tag: str, abi: str, python: str | None) -> bool:
    named = re.fullmatch(r"cp(\d)(\d{1,2})", tag)
    if named is None or python in (None, ABSENT):
        return True
    here, there = parse_version(str(python)).release[:2], (int(named[1]), int(named[2]))
    return here >= there if abi in ("abi3", "none") else here == there
