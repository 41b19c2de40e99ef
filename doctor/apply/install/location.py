"""Where an installation would go, and whether it may: the target's folders, its owner, and who manages it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.facts.vocabulary import TERMS
from doctor.runner.command import run_child

_ASK = """
import json, os, sys, sysconfig
paths = sysconfig.get_paths()
print("\\n" + json.dumps(["attn-doctor", sys.prefix, sys.base_prefix, paths["stdlib"], paths["purelib"]]))
"""


@dataclass(frozen=True)
class InstallLocation:
    """The folders of an interpreter."""

    python: str
    prefix: Path
    packages: Path  # where pip would install
    managed: bool  # by the system, which installs packages there itself (PEP 668)


def place_of(python: str) -> InstallLocation:
    """Query the interpreter; DoctorError if it does not answer."""
    ran = run_child([python, "-I", "-c", _ASK], timeout=60)
    for line in reversed(ran.out.splitlines()):
        if line.startswith('["attn-doctor"'):
            _, prefix, base, stdlib, purelib = json.loads(line)
            managed = prefix == base and (Path(stdlib) / "EXTERNALLY-MANAGED").exists()
            return InstallLocation(python, Path(prefix), Path(purelib), managed)
    raise DoctorError(f"`{python}` does not report where it installs: {ran.end}")


def appliable(request: Request, python: str | None, break_system_packages: bool) -> InstallLocation:
    """The place, if packages may be installed there; DoctorError if not."""
    if python is None:
        raise DoctorError("the target has no interpreter to install into", "name one with `--python PATH`")
    said = [text for text in request.settings if _names_package(text)]
    if said:
        raise DoctorError(
            f"`--set {said[0]}` describes another environment than `{python}`", "run `--apply` without it"
        )
    place = place_of(python)
    if place.managed and not break_system_packages:
        raise DoctorError(
            f"`{python}` is managed by the system (PEP 668)",
            "create a virtual environment, or pass `--break-system-packages`",
        )
    if not os.access(place.packages if place.packages.exists() else place.prefix, os.W_OK):
        raise DoctorError(f"`{place.packages}` is not writable", "run as the owner of that environment")
    return place


def _names_package(setting: str) -> bool:
    key = setting.partition("=")[0].strip()
    return key.endswith(".version") and key not in TERMS
