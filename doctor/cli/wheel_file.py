"""`attn-doctor wheels FILE.whl`: whether the compiled files of a wheel load next to a torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from doctor.diagnosis.examine import examine
from doctor.diagnosis.watch import rulebook_of
from doctor.errors import DoctorError
from doctor.facts.derived.compiled import misfit, runs_on
from doctor.model import ABSENT
from doctor.packages.records import UNKNOWN_PACKAGE, PackageRecords
from doctor.packages.torch_symbols import load_torch_symbols
from doctor.rulebook.evaluate import know
from doctor.rulebook.resolver import FactResolver
from doctor.sources.binaries.judge import Place, judge
from doctor.sources.binaries.survey import labelled
from doctor.sources.binaries.wheel_file import name_of, read_wheel, unpacked
from doctor.sources.probes.compiled import place_of
from doctor.sources.probes.locate import find_target

from .answer import Forms
from .request import TargetOptions, project_request_of

_WORDS = {True: "loads", False: "does not load", None: "unknown"}


def judged(path: Path, target: TargetOptions) -> tuple[Forms, bool]:
    """Return the verdict on a wheel in each format, and whether it loads; DoctorError where it cannot be read.

    Next to an installed torch, the loader's work is repeated on the files; else the exports on record decide.
    """
    if not path.is_file():
        raise DoctorError(f"wheel `{path}` does not exist")
    request = project_request_of(target)
    rulebook = rulebook_of(request)
    examined = examine(request, rulebook)
    known = know(rulebook, examined.facts)[0]
    wheel = read_wheel(path, rulebook.packages)
    if examined.python is not None:
        loads, problem = _by_files(Place(**place_of(find_target(examined.python))), path, rulebook.packages)
    else:
        loads, problem = _by_record(known, wheel.fitting_torch)
    sm = known.value("gpu.sm")
    runs = None if sm in (None, ABSENT) or not wheel.gpu_code else runs_on(wheel.gpu_code, str(sm)) or "not at all"
    torch = known.value("torch.version")
    found = {
        "schema": 1, "package": wheel.name, "version": wheel.version, "torch": torch,
        "loads": loads, "problem": problem or None, "fitting_torch": wheel.fitting_torch, "gpu_code": wheel.gpu_code,
        "gpu": None if sm in (None, ABSENT) else sm, "runs_on_gpu": runs,
    }  # fmt: skip
    forms: Forms = {
        "text": lambda style: _as_text(found, torch),
        "json": lambda style: json.dumps(found, indent=2) + "\n",
    }
    return forms, loads is True


def _by_files(place: Place, path: Path, records: PackageRecords) -> tuple[bool | None, str]:
    record = records.get(name_of(path)[0], UNKNOWN_PACKAGE)
    with unpacked(path, record) as package:
        found = {key: value for key, value, _ in judge(place, [package])}
    return found.get(f"{package.name}.loads"), str(found.get(f"{package.name}.load_problem", ""))


def _by_record(known: FactResolver, fitting: tuple[str, ...] | None) -> tuple[bool | None, str]:
    version, cuda = known.value("torch.version"), known.value("torch.cuda")
    if fitting is None:
        return None, "no compiled file of the wheel needs torch"
    if version in (None, ABSENT):
        return None, "the torch version is unknown"
    build = load_torch_symbols().build(str(version), None if cuda in (None, ABSENT) else str(cuda))
    if build is None:
        return None, f"the exports of torch {version} are not on record"
    return (True, "") if labelled(build) in fitting else (False, misfit(str(version), build.cuda, fitting))


def _as_text(found: dict[str, Any], version: object) -> str:
    torch = f" next to torch {version}" if version not in (None, ABSENT) else ""
    lines = [f"{found['package']} {found['version']}: {_WORDS[found['loads']]}{torch}"]
    lines += [f"  {found['problem']}"] if found["problem"] else []
    if found["fitting_torch"] is not None:
        lines.append(f"  torch builds on record that fit: {', '.join(found['fitting_torch']) or 'none'}")
    if found["gpu_code"]:
        lines.append(f"  GPU code: {', '.join(found['gpu_code'])}")
    if found["runs_on_gpu"]:
        lines.append(f"  on this GPU ({found['gpu']}): {found['runs_on_gpu']}")
    return "\n".join(lines) + "\n"
