"""Install a fix into the target: show the plan, confirm, save the state, install, check; `--rollback` undoes it."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.model import (
    Fix,
    InstallPlan,
    PinnedRequirement,
    Report,
    Severity,
    Verification,
    VerificationKind,
    VerificationStep,
)
from doctor.packages.flash_attn_build import TOOLS
from doctor.packages.index import load_index
from doctor.packages.relations import owner_of
from doctor.packages.specifiers import normalized
from doctor.rulebook.resolver import FactResolver
from doctor.runner.command import run_child
from doctor.solver.environment import platform_of
from doctor.sources.probes.locate import find_target
from doctor.util.redact import tilde

from . import state as frozen
from .commands import compiled, first_step, from_source, sort_lines
from .dry_run import ONLY_WHEELS, Resolution, shown
from .installer_output import installed
from .installers import Installer
from .location import InstallLocation, appliable
from .options import InstallOptions
from .recheck import check_step, diagnose_after, kernel_step

_SHOWN = 40  # lines of the plan


@dataclass(frozen=True)
class InstallSteps:
    """What is run, in this order, and what it changes."""

    removed: tuple[str, ...]
    requirements: tuple[str, ...]
    reinstall: tuple[str, ...]
    built: tuple[PinnedRequirement, ...]
    constraints: tuple[str, ...]
    changes: tuple[str, ...]  # `torch 2.5.1 → 2.6.0`

    @property
    def empty(self) -> bool:
        """Nothing is left to be done."""
        return not (self.removed or self.requirements or self.built)


def apply(
    report: Report,
    request: Request,
    fix: Fix,
    pins: InstallPlan,
    resolution: Resolution,
    steps: Sequence[VerificationStep],
    installer: Installer,
    python: str,
    options: InstallOptions,
    agree: Callable[[str], bool],
    on_step: Callable[[str], None],
) -> tuple[Verification, Report | None]:
    """(the steps taken, what the check says afterwards); the freeze is written before anything is touched."""
    place = appliable(request, python, options.break_system_packages)
    site_dirs = find_target(python, None).site_dirs
    before = frozen.packages_of(site_dirs)
    plan = plan_of(report, pins, resolution, before)
    folder = _folder(place)
    work = Work(installer, place, pins, options.proof_timeout, options.break_system_packages, options.allow_builds)
    on_step("planning …")
    plan = work.foreseen(plan, before)
    if not agree(_plan_text(plan, work, folder, before)):
        return Verification(
            VerificationKind.APPLY,
            fix.title,
            (*steps, VerificationStep("applied", None, "cancelled; nothing was changed")),
        ), None
    kept = frozen.save(frozen.Freeze(python, frozen.now(), before, fix=fix.title), folder)
    done: list[VerificationStep] = list(steps)
    try:
        for step in work.steps(plan, report, on_step):
            done.append(step)
    except BaseException as problem:
        _attach_recovery_hint(problem, kept, before, frozen.packages_of(site_dirs), python)
        raise
    now = frozen.packages_of(site_dirs)
    failed = any(step.outcome is not True for step in done[len(steps) :])
    touched = now != before or any(step.outcome for step in done[len(steps) :])
    kept = frozen.update(
        kept,
        state=frozen.DONE if not failed else frozen.FAILED if touched else frozen.TAKEN_BACK,
        changed=frozen.difference(before, now),
        rebuilt=tuple(work.rebuilt),
    )
    if failed:
        back = f"; undo with `{undo_command(python)}`" if touched else ""
        done.append(VerificationStep("state", False if touched else None, state(before, now) + back))
    remembered = tilde(str(kept.path)) if touched else None
    undo = undo_command(python) if touched else None
    on_step("checking …")
    began = time.monotonic()
    try:
        after, why_not = diagnose_after(python, report, request, fix, on_step)
    except DoctorError as problem:
        done.append(VerificationStep("check", None, problem.message))
        return Verification(VerificationKind.APPLY, fix.title, tuple(done), remembered, undo), None
    step = check_step(after, report, fix, round(time.monotonic() - began, 2))
    old, new = (
        ", ".join(f.rule for f in item.findings if f.severity == Severity.ERROR) or "none" for item in (report, after)
    )
    done.append(step._replace(reason="; ".join(filter(None, (f"errors before: {old}; now: {new}", step.reason)))))
    done.append(kernel_step(after, why_not))
    return Verification(VerificationKind.APPLY, fix.title, tuple(done), remembered, undo), after


def plan_of(
    report: Report, pins: InstallPlan, resolution: Resolution, before: Mapping[str, frozen.Kept]
) -> InstallSteps:
    """Return what has to be done, given what is installed."""

    lines = sort_lines(pins, platform_of(FactResolver(report.facts)), load_index())
    stack = {line.package for line in (*pins.changed, *pins.overridden, *pins.held, *pins.built)}
    local = {name for name, kept in before.items() if kept.origin}
    moved = [
        f"{name}=={version}"
        for name, version in sorted(resolution.versions.items())
        if name in before and name not in stack | local and not owner_of(name)
        and before[name].version.partition("+")[0] != version
    ]  # fmt: skip
    plain = [line.requirement for line in lines.plain if not line.held]
    left_out = set(resolution.left_out)
    kept = [  # as constraints: what is there stays, and what it lacks is no part of this change
        f"{line.package}=={line.version}"
        for line in lines.plain
        if line.held and line.package not in local and line.requirement not in left_out
    ]
    sources = [line for line in lines.sources if not line.held]
    compiled = [line for line in lines.compiled if not line.held or pins.moves_torch]
    constraints = [
        f"{name}=={version}"
        for name, version in sorted(resolution.versions.items())
        if not owner_of(name) and name not in local and name not in stack
    ]
    versions = {name: version for name, version in resolution.versions.items() if name in before}
    versions |= {line.package: line.version for line in (*pins.changed, *pins.overridden, *sources, *compiled)}
    changes = [_change(name, before.get(name), version) for name, version in sorted(versions.items())]
    gone = tuple(name for name in pins.removed if name in before)
    again = [line for line in compiled if line.package in before and before[line.package].version == line.version]
    return InstallSteps(
        removed=gone,
        requirements=tuple([*plain, *moved]),
        reinstall=pins.reinstall if gone else (),
        built=tuple([*sources, *compiled]),
        constraints=tuple([*kept, *constraints]),
        changes=(
            *filter(None, changes),
            *(f"{name} {before[name].version} → gone" for name in gone),
            *(f"{line.package} {line.version}, rebuilt" for line in again),
        ),
    )


def _change(name: str, kept: frozen.Kept | None, version: str) -> str | None:
    if kept is not None and (kept.version == version or kept.version.partition("+")[0] == version):
        return None
    return f"{name} {kept.version if kept else 'nothing'} → {version}"


@dataclass(frozen=True)
class Work:
    """Run an installer in one environment."""

    installer: Installer
    place: InstallLocation
    pins: InstallPlan
    timeout: float
    break_system_packages: bool = False
    allow_builds: bool = False  # before the user agreed; what is installed may be built

    @property
    def options(self) -> list[str]:
        """Options of every command."""
        return ["--break-system-packages"] if self.place.managed and self.break_system_packages else []

    @property
    def rebuilt(self) -> list[str]:
        """Compiled packages that keep their release and get another build."""
        return [line.package for line in self.pins.built if line.held and self.pins.moves_torch]

    def commands(self, plan: InstallSteps, constraints: Path | None = None) -> Iterator[tuple[str, list[str]]]:
        """(step, command) of all that is not compiled."""
        python = self.place.python
        if plan.removed:
            yield "removes", [*self.installer.uninstall(python, plan.removed), *self.options]
        if plan.requirements:
            yield (
                "installs",
                first_step(self.installer, python, plan.requirements, self.pins, constraints, self.options),
            )
        if self.pins.overridden:
            lines = (line.requirement for line in self.pins.overridden)
            yield "overrides", self.installer.install(python, ["--no-deps", *self.options, *lines])
        if plan.reinstall:
            arguments = ["--no-deps", self.installer.reinstall_option, *self.options, *plan.reinstall]
            yield "reinstalls", self.installer.install(python, arguments)

    def foreseen(self, plan: InstallSteps, before: Mapping[str, frozen.Kept]) -> InstallSteps:
        """Return the plan with all changes that the installer's own dry run lists, dependencies included."""
        if not plan.requirements:
            return plan
        with tempfile.TemporaryDirectory(prefix="attn-doctor-") as folder:
            path = Path(folder) / "constraints.txt"
            path.write_text("".join(f"{line}\n" for line in plan.constraints), "utf-8")
            options = [*self.options, "--dry-run", *(() if self.allow_builds else ONLY_WHEELS)]
            ran = run_child(
                first_step(self.installer, self.place.python, plan.requirements, self.pins, path, options),
                timeout=self.timeout,
            )
        coming = would_install(ran.said) if ran.good else {}
        if not coming:
            return plan
        named = {text.partition(" ")[0] for text in plan.changes}
        more = [_change(name, before.get(name), version) for name, version in coming.items() if name not in named]
        stale = {name for name in named if name in before and name not in coming and _moves(plan, name)}
        kept = [text for text in plan.changes if text.partition(" ")[0] not in stale]
        return replace(plan, changes=tuple(sorted([*kept, *filter(None, more)])))

    def steps(self, plan: InstallSteps, report: Report, on_step: Callable[[str], None]) -> Iterator[VerificationStep]:
        """Yield the steps as they are done; the first failure ends them."""
        with tempfile.TemporaryDirectory(prefix="attn-doctor-") as folder:
            path = Path(folder) / "constraints.txt"
            path.write_text("".join(f"{line}\n" for line in plan.constraints), "utf-8")
            for name, command in self.commands(plan, path if plan.constraints else None):
                on_step(f"{shown(command)} …")
                ran = run_child(command, timeout=self.timeout)
                found = installed(ran)
                yield VerificationStep(name, found.outcome, found.reason, shown(ran.command), ran.seconds)
                if not found.outcome:
                    return
        for line in plan.built:
            on_step(f"`{line.package}` …")
            yield self.compiled(line, report)

    def compiled(self, line: PinnedRequirement, report: Report) -> VerificationStep:
        """Install one package that has no wheel on the index; here it is a failure if that is not possible."""
        step = compiled(self.installer, self.place.python, line, self.pins, report, self.timeout, self.options)
        return step._replace(outcome=False) if step.outcome is None else step


def would_install(said: str) -> dict[str, str]:
    """Package → version out of uv's ` + six==1.16.0` or pip's `Would install six-1.16.0 …`."""
    found = dict(re.findall(r"^\s*\+ ([A-Za-z0-9][\w.-]*)==(\S+)", said, re.MULTILINE))
    for line in re.findall(r"^Would install (.+)$", said, re.MULTILINE):
        found |= dict(word.rsplit("-", 1) for word in line.split() if "-" in word)
    return {normalized(name): version for name, version in found.items()}


def _moves(plan: InstallSteps, name: str) -> bool:
    """Whether this name is in the plan only because a resolver had to consider it."""
    built = {line.package for line in plan.built}
    requested = {normalized(re.split(r"[\[=]", text)[0]) for text in plan.requirements}
    return name not in requested | built | set(plan.removed)


def state(before: Mapping[str, frozen.Kept], now: Mapping[str, frozen.Kept]) -> str:
    """Return what has changed so far, in a sentence."""
    changed = frozen.difference(before, now)
    if not changed:
        return "no package has changed"
    shown_ = [
        f"{name} {before[name].version if name in before else 'nothing'} → "
        f"{now[name].version if name in now else 'gone'}"
        for name in changed
    ]
    more = f" and {len(shown_) - 12} more" if len(shown_) > 12 else ""
    return f"changed so far: {', '.join(shown_[:12])}{more}"


def _plan_text(plan: InstallSteps, work: Work, folder: Path, before: Mapping[str, frozen.Kept]) -> str:
    lines = [f"the environment of `{tilde(work.place.python)}` will change:"]
    lines += [f"  {text}" for text in plan.changes[:_SHOWN]]
    if len(plan.changes) > _SHOWN:
        lines.append(f"  and {len(plan.changes) - _SHOWN} more")
    lines.append("by:")
    lines += [f"  {tilde(shown(command))}" for _, command in work.commands(plan)]
    if plan.built:
        tools = work.installer.install(work.place.python, [*work.options, *TOOLS])
        lines.append(f"  {tilde(shown(tools))}  (where no wheel fits)")
    for line in plan.built:
        lines.append(f"  {tilde(shown(from_source(work.installer, work.place.python, line, work.options)))}")
    moved = {text.partition(" ")[0] for text in plan.changes}
    by_conda = sorted(name for name in moved if name in before and before[name].by == "conda")
    if by_conda:
        lines.append(f"conda installed {', '.join(by_conda)}; its records will be out of date")
    lines.append(f"the current state is saved in `{tilde(str(folder))}`; undo with `{undo_command(work.place.python)}`")
    return "\n".join(lines) + "\n"


def _folder(place: InstallLocation) -> Path:
    own, cache = frozen.folders_for(place.prefix)
    return own if os.access(place.prefix, os.W_OK) and (place.prefix / "pyvenv.cfg").exists() else cache


def undo_command(python: str) -> str:
    """Return the command that undoes the fix; without the interpreter it would look at another environment."""
    path = tilde(python)
    plain = re.fullmatch(r"[\w~@+=:,./-]+", path)
    return f"attn-doctor fix --rollback --python {path if plain else quote(python)}"


def _attach_recovery_hint(
    problem: BaseException, kept: frozen.Freeze, before: Mapping[str, frozen.Kept], now: Mapping[str, frozen.Kept],
    python: str,
) -> None:  # fmt: skip
    """Attach to an exception what the interruption changed and how to undo it."""
    words = f"{state(before, now)}; `{undo_command(python)}` restores `{kept.path}`"
    problem.args = (*problem.args, words)
