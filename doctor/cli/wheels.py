"""`attn-doctor wheels NAME`: the wheel for this environment, the nearest that there is, or how to build."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.version import InvalidVersion

from doctor.diagnosis.examine import examine
from doctor.diagnosis.watch import rulebook_of
from doctor.errors import DoctorError
from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT
from doctor.packages.flash_attn_build import Build, build
from doctor.packages.index import load_index
from doctor.packages.platform import Platform
from doctor.packages.records import UNKNOWN_PACKAGE, PackageRecords
from doctor.packages.release_wheels import PACKAGE, Wheel, WheelMatch, find, minor, on_release_pages, same
from doctor.packages.specifiers import normalized
from doctor.rulebook.compiled_facts import wanted_of
from doctor.rulebook.evaluate import know
from doctor.rulebook.resolver import FactResolver
from doctor.solver.install_plan import wheel_target_of
from doctor.util.machine import Machine, this_machine

from .answer import Answer, reports
from .request import TargetOptions, examines, project_request_of
from .wheel_file import judged
from .wheels_on_record import judged_releases

_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9._-]+?)(?:==(?P<version>[A-Za-z0-9.!+_-]+))?")
MOST = 4  # releases shown
_CERTAINTY = {
    "expected": "expected: its release workflow builds it; the release page was not read",
    "published": "published: added after the release, public lock files name it with its hash",
}


app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("wheels")
@examines(workload=False)
@reports("wheels", "text", "json")
def wheels(
    target: TargetOptions,
    answer: Answer,
    package: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE", help="A package (flash-attn), a release (xformers==0.0.35), or a wheel file."
        ),
    ] = PACKAGE,
) -> int:
    """Find the wheel of a compiled package for this environment, or judge a wheel file by its symbols."""
    if package.endswith(".whl"):
        forms, fits = judged(Path(package), target)
        answer.give(forms)
        return 0 if fits else 1
    name, version = _named(package)
    known, here, records = _known(target)
    if name != PACKAGE:
        match = find(wheel_target_of(known), version, name) if name in on_release_pages() else None
        forms, fits = judged_releases(name, version, wanted_of(known), records.get(name, UNKNOWN_PACKAGE), match)
        answer.give(forms)
        return 0 if fits else 1
    version = _flash_attn(version)
    place = wheel_target_of(known)
    match = find(place, version)
    sm = known.value("gpu.sm")
    goal = version or _newest(place.python)
    way = build(goal, None if sm in (None, ABSENT) else str(sm), place.cuda, this_machine() if here else Machine())
    answer.give({"text": lambda style: _as_text(match, way), "json": lambda style: _as_json(match, way)})
    return 0 if match.fitting else 1


def _named(text: str) -> tuple[str, str | None]:
    """Return the package and the release that was named; DoctorError where the text names none."""
    match = _PACKAGE.fullmatch(text.strip())
    if match is None:
        raise DoctorError(f"`{text}` is no package", f"write `{PACKAGE}`, `{PACKAGE}==VERSION` or a file")
    try:
        parse_version(match["version"] or "0")
    except InvalidVersion:
        raise DoctorError(f"`{match['version']}` is not a version") from None
    return normalized(match["name"]), match["version"]


def _flash_attn(version: str | None) -> str | None:
    """Return the release of flash-attn as the index spells it; its wheels are outside the registry."""
    if version is None:
        return None
    found = next((item for item in load_index().releases(PACKAGE) if same(item, version)), None)
    if found is None:
        newest = list(load_index().releases(PACKAGE))[-4:]
        raise DoctorError(f"flash-attn has no release {version}", f"the newest are {', '.join(newest)}")
    return str(found)


def _known(target: TargetOptions) -> tuple[FactResolver, bool, PackageRecords]:
    """Return what is known of the target, whether it is on this machine, and what is known of packages."""
    request = project_request_of(target)
    rulebook = rulebook_of(request)
    found = examine(request, rulebook)
    return know(rulebook, found.facts)[0], found.python is not None, rulebook.packages


def _newest(python: str | None) -> str:
    """The newest release an installer would take."""

    fitting = [
        version
        for version, item in load_index().releases(PACKAGE).items()
        if not item.yanked and not item.is_prerelease and item.installs_on(Platform(python))
    ]
    return max(fitting, key=parse_version)


def _as_text(answer: WheelMatch, way: Build) -> str:
    place = answer.place
    named = (("torch", place.torch), ("CUDA", place.cuda), ("Python", place.python), ("glibc", place.glibc))
    here = [f"{word} {value}" for word, value in named if value]
    if place.abi is not None:
        here.append(f"C++11 ABI {str(place.abi).upper()}")
    out = [f"for {', '.join(here) or 'an unknown environment'}"]
    if answer.fitting:
        best = answer.fitting[0]
        out += [
            "",
            f"flash-attn {best.version} has an official wheel ({_CERTAINTY[best.certainty]})",
        ]
        out += [*_told(best), f'  pip install "flash-attn @ {best.url}"']
        others = answer.fitting[1:MOST]
        if others:
            out += ["", "older releases with a wheel", *(f"  {wheel.url}" for wheel in others)]
        rest = len(answer.fitting) - 1 - len(others)
        out += [f"  … and {rest} more: `--format json` lists them"] if rest > 0 else []
        out += ["", f"if the download fails, build from source ({_time(way)}):", f"  {way.command}"]
        return "\n".join(out) + "\n"
    if answer.why_not:
        out += ["", answer.why_not]
    elif answer.missing:
        out += ["", f"Cannot choose a wheel: {_listed(answer.missing)} unknown"]
        out += ["hint: name the environment with `--python PATH`, or state it with `--set torch.version=2.8.0`"]
    for wheel in answer.nearest:
        goal = "for this torch" if wheel.torch == minor(place.torch) else "for another torch"
        out += [
            "",
            f"nearest {goal}: flash-attn {wheel.version} on torch {wheel.torch} ({wheel.certainty})",
            *_told(wheel),
        ]
        out += [f"  {wheel.url}"]
    out += ["", f"to build here ({_time(way)}):", f"  {way.command}", *(f"  {note}" for note in way.notes)]
    return "\n".join(out) + "\n"


def _time(way: Build) -> str:
    return f"{way.cost}; here {way.duration} with {way.jobs} job{'s' if way.jobs > 1 else ''}"


def _listed(words: Sequence[str]) -> str:
    verb = "are" if len(words) > 1 else "is"
    return f"{' and '.join(filter(None, (', '.join(words[:-1]), words[-1])))} {verb}"


def _told(wheel: Wheel) -> list[str]:
    return [f"  {text}" for text in wheel.warnings]


def _as_json(answer: WheelMatch, way: Build) -> str:
    def as_dict(wheel: Wheel) -> dict[str, Any]:
        return {
            "version": wheel.version, "torch": wheel.torch, "cuda": wheel.cuda, "cxx11_abi": wheel.abi,
            "python": wheel.python, "machine": wheel.machine, "glibc": wheel.glibc, "url": wheel.url,
            "certainty": wheel.certainty, "warnings": list(wheel.warnings),
        }  # fmt: skip

    place = answer.place
    whole = {
        "schema": 1,
        "package": PACKAGE,
        "place": {"cxx11_abi" if name == "abi" else name: value for name, value in place._asdict().items()},
        "wheels": [as_dict(wheel) for wheel in answer.fitting],
        "missing": list(answer.missing),
        "why_not": answer.why_not,
        "nearest": [as_dict(wheel) for wheel in answer.nearest],
        "build": {"command": way.command, "jobs": way.jobs, "hours": [round(hours, 2) for hours in way.hours],
                  "notes": list(way.notes)},
    }  # fmt: skip
    return json.dumps(whole, indent=2) + "\n"
