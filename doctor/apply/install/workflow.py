"""Run the steps of `--dry-run`, `--verify` and `--apply`; a failed step ends the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from doctor.diagnosis.request import Request
from doctor.model import InstallPlan, Report, Verification, VerificationKind, VerificationStep
from doctor.packages.index import load_index
from doctor.sources.probes.locate import find_target

from .apply import apply
from .dry_run import Resolution, resolve
from .installers import Installer, find_installer
from .location import appliable
from .options import InstallOptions
from .surroundings import Surroundings, question_of, surroundings_of
from .trial import trial

_NAMED = 6  # packages named of each kind
Agree = Callable[[str], bool]  # shows a plan; true if the user agrees
OnStep = Callable[[str], None]


def prove(
    report: Report, request: Request, options: InstallOptions, agree: Agree, on_step: OnStep
) -> tuple[Verification | None, Report | None]:
    """Return (the verification of the fix, the report after `--apply`); no verification where no package changes."""
    fix = report.package_fix
    if fix is None or not fix.changes_packages:
        return None, None
    python = interpreter_of(request)
    if options.apply:
        appliable(request, python, options.break_system_packages)
    kind = (
        VerificationKind.APPLY
        if options.apply
        else VerificationKind.VERIFY
        if options.verify
        else VerificationKind.DRY_RUN
    )
    installer, why_not = find_installer(python, options.installer)
    if installer is None:
        steps = [VerificationStep("resolves", None, f"not checked: {why_not}")]
        if options.verify or options.apply:
            steps.append(VerificationStep("installs", None, f"not installed: {why_not}"))
        return Verification(kind, fix.title, tuple(steps)), None
    pins = fix.plan
    on_step(f"resolving with {installer.title} …")
    resolution, around = resolved(report, request, pins, installer, python, options)
    steps = [resolve_step(resolution, pins, installer, around)]
    if resolution.outcome is False:
        if kind != VerificationKind.DRY_RUN:
            steps.append(VerificationStep("installs", None, "skipped: it does not resolve"))
        return Verification(kind, fix.title, tuple(steps)), None
    if options.verify:
        steps += trial(report, request, fix, pins, installer, python, options.proof_timeout, on_step)
    failed = any(step.outcome is False for step in steps)
    if not options.apply or failed:
        if options.apply:
            steps.append(VerificationStep("applied", None, "skipped: the verification failed"))
        return Verification(kind, fix.title, tuple(steps)), None

    assert python is not None
    return apply(report, request, fix, pins, resolution, steps, installer, python, options, agree, on_step)


def interpreter_of(request: Request) -> str | None:
    """Return the interpreter that the request examines; None for files, trees and stated packages."""
    if request.facts or request.declared or request.site_packages:
        return None

    return find_target(request.python, None).python


def resolved(
    report: Report,
    request: Request,
    pins: InstallPlan,
    installer: Installer,
    python: str | None,
    options: InstallOptions,
) -> tuple[Resolution, Surroundings]:
    """Resolve these pins together with everything that stays."""
    around = surroundings_of(python) if python is not None else Surroundings()
    question = replace(question_of(report, pins, around, request), builds=options.allow_builds)
    return resolve(question, installer, load_index(), timeout=options.proof_timeout, python=python), around


def resolve_step(
    resolution: Resolution, pins: InstallPlan, installer: Installer, around: Surroundings
) -> VerificationStep:
    """Return the resolution as a step of the verification."""
    parts = [resolution.reason] if resolution.reason else []
    if resolution.left_out:
        parts.append(f"not checked, no wheel available: {', '.join(resolution.left_out)}")
    changed = {line.package for line in pins.changed}
    broken = [text for name, text in around.broken.items() if name not in changed]
    if broken:
        parts.append(f"not checked, already broken: {'; '.join(broken[:_NAMED])}")
    if around.local:
        parts.append(f"kept, installed from outside the index: {', '.join(list(around.local)[:_NAMED])}")
    if installer.kind == "pip" and pins.built:
        names = ", ".join(line.requirement for line in pins.built)
        parts.append(f"not checked, source builds: {names}")
    if pins.overridden:
        names = ", ".join(line.requirement for line in pins.overridden)
        parts.append(f"overrides a pin: {names}; `pip check` reports it afterwards")
    if resolution.outcome is None:
        parts.append("not verified")
    return VerificationStep(
        "resolves", resolution.outcome, "; ".join(parts), resolution.command or None, resolution.seconds
    )
