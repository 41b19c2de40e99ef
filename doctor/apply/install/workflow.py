"""The course of a proof: which steps are taken for which option, and where one ends the others."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from doctor.diagnosis.request import Request
from doctor.model import ChangeKind, Report, Verification, VerificationKind, VerificationStep
from doctor.packages.index import load_index
from doctor.solver.install_plan import InstallPlan, install_plan, pinnable
from doctor.sources.probes.locate import find_target

from .apply import apply
from .dry_run import Resolution, resolve
from .installers import Installer, find_installer
from .location import appliable
from .surroundings import Surroundings, question_of, surroundings_of
from .trial import trial

_TOLD = 6  # packages named of each kind
Ask = Callable[[str], bool]  # shows a plan and hears whether it may be carried out
Tell = Callable[[str], None]


def prove(
    report: Report, request: Request, options: argparse.Namespace, ask: Ask, tell: Tell
) -> tuple[Verification | None, Report | None]:
    """(the proof of the recommended fix, what the check says after `--apply`); no proof where nothing is installed."""
    fix = pinnable(report) if report.fixes else None
    if fix is None or not any(change.kind == ChangeKind.PACKAGE for change in fix.changes):
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
        steps = [VerificationStep("resolves", None, f"{why_not}: nothing was asked")]
        if options.verify or options.apply:
            steps.append(VerificationStep("installs", None, f"{why_not}: nothing was installed"))
        return Verification(kind, fix.title, tuple(steps)), None
    pins = install_plan(report, fix)
    tell(f"asking {installer.title} whether it resolves …")
    resolution, around = asked(report, request, pins, installer, python, options.proof_timeout)
    steps = [resolve_step(resolution, pins, installer, around)]
    if resolution.outcome is False:
        if kind != VerificationKind.DRY_RUN:
            steps.append(VerificationStep("installs", None, "not tried, as it does not resolve"))
        return Verification(kind, fix.title, tuple(steps)), None
    if options.verify:
        steps += trial(report, request, fix, pins, installer, python, options.proof_timeout, tell)
    failed = any(step.outcome is False for step in steps)
    if not options.apply or failed:
        if options.apply:
            steps.append(VerificationStep("applied", None, "not tried, as the proof failed"))
        return Verification(kind, fix.title, tuple(steps)), None

    assert python is not None
    return apply(report, request, fix, pins, resolution, steps, installer, python, options, ask, tell)


def interpreter_of(request: Request) -> str | None:
    """The interpreter that the request examines; None for a file, a tree, or packages that are only said."""
    if request.facts or request.declared or request.site_packages:
        return None

    return find_target(request.python, None).python


def asked(
    report: Report, request: Request, pins: InstallPlan, installer: Installer, python: str | None, timeout: float
) -> tuple[Resolution, Surroundings]:
    """The resolver's answer about these pins and everything that stays."""
    around = surroundings_of(python) if python is not None else Surroundings()
    question = question_of(report, pins, around, request)
    return resolve(question, installer, load_index(), timeout=timeout, python=python), around


def resolve_step(
    resolution: Resolution, pins: InstallPlan, installer: Installer, around: Surroundings
) -> VerificationStep:
    """The answer as a step of the proof."""
    parts = [resolution.reason] if resolution.reason else []
    if resolution.left_out:
        parts.append(
            f"not asked about, as the registry has no wheel of it (any more): {', '.join(resolution.left_out)}"
        )
    mended = {line.package for line in pins.changed}
    broken = [text for name, text in around.broken.items() if name not in mended]
    if broken:
        parts.append(f"not asked about, as it is broken already: {'; '.join(broken[:_TOLD])}")
    if around.local:
        parts.append(f"from no registry, and kept as it is: {', '.join(list(around.local)[:_TOLD])}")
    if installer.kind == "pip" and pins.built:
        names = ", ".join(line.requirement for line in pins.built)
        parts.append(f"pip cannot be asked about what is compiled: {names}")
    if resolution.outcome is None:
        parts.append("not proven")
    return VerificationStep(
        "resolves", resolution.outcome, "; ".join(parts), resolution.command or None, resolution.seconds
    )
