"""The commands of an installation, in order: uninstall, install, reinstall, compile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from doctor.model import ABSENT, InstallPlan, PinnedRequirement, Report, VerificationStep
from doctor.packages.flash_attn_build import TOOLS, build
from doctor.packages.index import ReleaseIndex
from doctor.packages.platform import Platform
from doctor.packages.relations import BUILT_AGAINST_TORCH
from doctor.packages.release_wheels import PACKAGE
from doctor.runner.command import Ran, run_child
from doctor.util.machine import this_machine

from .dry_run import shown
from .installer_output import installed
from .installers import UV, Installer

#: Seconds that compiling TransformerEngine's torch part takes a small machine.
_SMALL_BUILD = 1800.0


@dataclass(frozen=True)
class Sorted:
    """The pins by how they are installed."""

    plain: tuple[PinnedRequirement, ...]  # wheels
    sources: tuple[PinnedRequirement, ...]  # archives that are built on the spot, without a CUDA compiler
    compiled: tuple[PinnedRequirement, ...]  # with one


def sort_lines(pins: InstallPlan, platform: Platform, index: ReleaseIndex) -> Sorted:
    """Which pins have a wheel for the platform, which are built."""
    plain: list[PinnedRequirement] = []
    sources: list[PinnedRequirement] = []
    for line in (*pins.changed, *pins.held):
        release = index.release(line.package, line.version)
        has_wheel = release is None or release.has_wheel(platform)
        (plain if has_wheel else sources).append(line)
    return Sorted(tuple(plain), tuple(sources), pins.built)


def first_step(
    installer: Installer,
    python: str,
    requirements: Sequence[str],
    pins: InstallPlan,
    constraints: Path | None = None,
    options: Sequence[str] = (),
) -> list[str]:
    """The command that installs what has wheels."""
    arguments = [*options, *requirements]
    if pins.index_url:
        arguments += ["--extra-index-url", pins.index_url]
        if installer.kind == UV:
            arguments += ["--index-strategy", "unsafe-best-match"]
    if constraints is not None:
        arguments += ["--constraint", str(constraints)]
    return installer.install(python, arguments)


def from_wheel(
    installer: Installer, python: str, line: PinnedRequirement, pins: InstallPlan, options: Sequence[str] = ()
) -> Iterator[list[str]]:
    """Ways to a compiled package without compiling it: a wheel on the user's index, the release page's."""
    alone = ["--no-deps", installer.reinstall_option, *options]
    yield installer.install(python, [*alone, "--only-binary", ":all:", line.requirement])
    if pins.wheel_url is not None and line.package == PACKAGE:
        yield installer.install(python, [*alone, f"{PACKAGE} @ {pins.wheel_url}"])


def from_source(installer: Installer, python: str, line: PinnedRequirement, options: Sequence[str] = ()) -> list[str]:
    """Build against what is installed there; no earlier build of it may be taken, for it met another torch."""
    afresh = ["--refresh-package", line.package] if installer.kind == UV else ["--no-cache-dir"]
    arguments = ["--no-deps", installer.reinstall_option, *options, "--no-build-isolation", *afresh, line.requirement]
    return installer.install(python, arguments)


def why_not_built(line: PinnedRequirement, sm: str | None, cuda: str | None, timeout: float) -> str | None:
    """Why this package is not compiled here; None if it can be, within the time that is allowed."""
    if line.package not in BUILT_AGAINST_TORCH:
        return None
    if nvcc() is None:
        return "`nvcc` is not installed"
    if line.package != PACKAGE:
        return None if timeout >= _SMALL_BUILD else f"that may take longer than {timeout:g} s"
    plan = build(line.version, sm, cuda, this_machine())
    if plan.hours[1] * 3600 > timeout:
        return f"that takes {plan.duration} with {plan.jobs} job{'s' if plan.jobs > 1 else ''}"
    return None


def nvcc() -> str | None:
    """The CUDA compiler that a build would find."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        path = Path(os.environ.get(name) or os.devnull) / "bin" / "nvcc"
        if path.is_file():
            return str(path)
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.is_file() else None)


def build_settings(line: PinnedRequirement, sm: str | None, cuda: str | None) -> Mapping[str, str]:
    """Return the variables that keep a build within this machine's memory and limit it to its GPU."""
    if line.package not in BUILT_AGAINST_TORCH:
        return {}
    return build(line.version, sm, cuda, this_machine()).settings


def compiled(
    installer: Installer, python: str, line: PinnedRequirement, pins: InstallPlan, report: Report, timeout: float,
    options: Sequence[str] = (),
) -> VerificationStep:  # fmt: skip
    """A package that the registry has no wheel of: from a wheel elsewhere, built, or why neither was possible."""
    name = f"installs {line.package}"
    ran = _first_good(from_wheel(installer, python, line, pins, options), timeout)
    if ran is not None and ran.good:
        return VerificationStep(name, True, "from a wheel", shown(ran.command), ran.seconds)
    facts = (report.facts.value(key) for key in ("gpu.sm", "torch.cuda"))
    sm, cuda = (None if value in (None, ABSENT) else str(value) for value in facts)
    why_not = why_not_built(line, sm, cuda, timeout)
    command = from_source(installer, python, line, options)
    if why_not:
        return VerificationStep(
            name, None, f"`{line.package}` {line.version} needs a source build: {why_not}", shown(command)
        )
    tools = run_child(installer.install(python, [*options, *TOOLS]), timeout=timeout)
    if not tools.good:
        found = installed(tools)
        return VerificationStep(
            name, found.outcome, f"build tools: {found.reason}", shown(tools.command), tools.seconds
        )
    ran = run_child(command, timeout=timeout, env={**os.environ, **build_settings(line, sm, cuda)})
    found = installed(ran)
    return VerificationStep(
        name, found.outcome, "built" if found.outcome else found.reason, shown(command), ran.seconds
    )


def _first_good(commands: Iterator[list[str]], timeout: float) -> Ran | None:
    """The first command that succeeds, else the last; None if there is none."""
    ran = None
    for command in commands:
        ran = run_child(command, timeout=timeout)
        if ran.good:
            break
    return ran
