"""Install a fix into a temporary environment and check it there; the environment is removed, even after Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.model import TORCH, Fix, InstallPlan, Report, VerificationStep
from doctor.packages.index import load_index
from doctor.packages.platform import Platform
from doctor.packages.relations import BUILT_PER_INDEX, OWN_INDEXES
from doctor.rulebook.resolver import FactResolver
from doctor.runner.command import run_child
from doctor.solver.environment import platform_of

from .commands import Sorted, compiled, first_step, sort_lines
from .dry_run import shown
from .installer_output import installed
from .installers import UV, Installer
from .recheck import check_step, diagnose_after, kernel_step

#: Bytes that have to be free: a torch for CUDA with its libraries is 5 to 7 GB, twice where nothing can be linked.
_ROOM_TORCH, _ROOM = 12 << 30, 2 << 30


def trial(
    report: Report,
    request: Request,
    fix: Fix,
    pins: InstallPlan,
    installer: Installer,
    python: str | None,
    timeout: float,
    on_step: Callable[[str], None] = lambda text: None,
) -> list[VerificationStep]:
    """Return the steps `installs`, `builds` (where something is compiled), `check` and `kernels`."""

    platform = platform_of(FactResolver(report.facts))
    index = load_index()
    on_record = tuple(line for line in pins.built if line.package in index)  # of the others no rule speaks
    lines = sort_lines(pins._replace(built=on_record), platform, index)
    room = _room(lines)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < room:
        short = f"needs {room / 2**30:.0f} GiB in `{tempfile.gettempdir()}`, {free / 2**30:.1f} GiB are free"
        return [VerificationStep("installs", None, short), *_not_run("not installed")]
    elsewhere = _another_machine(platform)
    if elsewhere:
        return [VerificationStep("installs", None, elsewhere), *_not_run("not installed")]
    with _temporary_folder() as folder:
        on_step("creating a temporary environment …")
        step, place = _environment(installer, folder / "env", python, platform)
        if place is None:
            return [step, *_not_run("not installed")]
        on_step(f"installing {len(lines.plain)} packages and what they need …")
        return list(_tried(report, request, fix, pins, lines, installer, place, timeout, on_step))


def _tried(
    report: Report, request: Request, fix: Fix, pins: InstallPlan, lines: Sorted, installer: Installer, python: str,
    timeout: float, on_step: Callable[[str], None],
) -> Iterator[VerificationStep]:  # fmt: skip
    command = first_step(installer, python, [line.requirement for line in lines.plain], pins)
    ran = run_child(command, timeout=timeout) if lines.plain else None
    if ran is not None:
        found = installed(ran)
        size = _size(Path(python).parent.parent)
        count = len(list(Path(python).parent.parent.glob("lib*/python*/site-packages/*.dist-info")))
        text = f"{count} packages, {size / 2**20:.1f} MiB" if found.outcome else found.reason
        yield VerificationStep("installs", found.outcome, text, shown(ran.command), ran.seconds)
        if not found.outcome:
            yield from _not_run("the packages are not installed")
            return
    assumed = {line.package: line.stands_for for line in lines.plain if line.stands_for}  # 2.6.0+cu126
    for line in (*lines.sources, *lines.compiled):
        step = compiled(installer, python, line, pins, report, timeout)
        if not step.outcome:
            assumed[line.package] = line.version
        yield step
    yield from _checks(report, request, fix, assumed, python, on_step)


def _checks(
    report: Report, request: Request, fix: Fix, assumed: Mapping[str, str], python: str, on_step: Callable[[str], None]
) -> Iterator[VerificationStep]:
    on_step("checking …")
    began = time.monotonic()
    try:
        after, why_not = diagnose_after(python, report, request, fix, on_step, assumed)
    except DoctorError as problem:
        yield from _not_run(problem.message)
        return
    step = check_step(after, report, fix, round(time.monotonic() - began, 2))
    if assumed:
        names = ", ".join(f"`{name}` {version}" for name, version in assumed.items())
        why = f"{names} assumed to be installed"
        step = VerificationStep(
            step.name, step.outcome, "; ".join(filter(None, (step.reason, why))), None, step.seconds
        )
    yield step
    yield kernel_step(after, why_not)


def _environment(
    installer: Installer, folder: Path, python: str | None, platform: Platform
) -> tuple[VerificationStep, str | None]:
    """(the step, should it fail; the new environment's interpreter)."""
    minor = ".".join((platform.python or "").split(".")[:2])
    if installer.kind == UV:
        base = python or minor or sys.executable
        command = [*installer.program, "venv", "--no-project", "--python", base, str(folder)]
    else:
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if python is None and minor not in ("", own):
            why = f"the target's Python {minor} is not available, and pip supports only its own {own}"
            return VerificationStep("installs", None, why), None
        base = python or sys.executable
        command = [base, "-m", "venv", *([] if installer.program[0] == base else ["--without-pip"]), str(folder)]
    ran = run_child(command, timeout=300)
    place = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if ran.good and place.exists():
        return VerificationStep("installs", True), str(place)
    return VerificationStep(
        "installs", None, f"cannot create an environment: {ran.end}", shown(ran.command), ran.seconds
    ), None


def _another_machine(platform: Platform) -> str:
    here = os.uname() if hasattr(os, "uname") else None
    if here is None or (here.sysname, here.machine) == (platform.system, platform.machine):
        return ""
    return f"this machine is {here.sysname} {here.machine}, the target {platform.system} {platform.machine}"


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Yield a folder that is removed afterwards in every case."""
    folder = Path(tempfile.mkdtemp(prefix="attn-doctor-verify-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():  # interrupted once more while removing: the second time ends it
            shutil.rmtree(folder, ignore_errors=True)


def _room(lines: Sorted) -> int:
    names = {line.package for line in (*lines.plain, *lines.sources, *lines.compiled)}
    return _ROOM_TORCH if names & {TORCH, *BUILT_PER_INDEX, *OWN_INDEXES} else _ROOM


def _size(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += Path(root, name).lstat().st_size
    return total


def _not_run(why: str) -> Iterator[VerificationStep]:
    yield VerificationStep("check", None, why)
    yield VerificationStep("kernels", None, why)
