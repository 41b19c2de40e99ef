"""Whether the label or the tags in the name of a wheel fit an environment."""

from __future__ import annotations

import re

from doctor.facts.vocabulary import parse_version
from doctor.facts.wheel_labels import parse_label, torch_fits
from doctor.model import ABSENT


def label_fits(version: str, torch: str) -> bool:
    """Return whether torch is of a minor release that the label of `version` names; true where that is not known."""
    return torch_fits(parse_label(version), torch) is not False


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
