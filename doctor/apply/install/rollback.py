"""Undo the last `--apply`: restore exactly the packages that it changed, with their versions and sources."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from doctor.diagnosis.judge import TOOL
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.errors import DoctorError, NoDiagnosis
from doctor.model import (
    Facts,
    InstallPlan,
    PinnedRequirement,
    Report,
    Severity,
    Verification,
    VerificationKind,
    VerificationStep,
)
from doctor.packages.relations import BUILT_AGAINST_TORCH
from doctor.rulebook.rulebook import load_rulebook
from doctor.runner.command import run_child
from doctor.sources.probes.locate import find_target
from doctor.util.redact import tilde

from . import state as frozen
from .apply import Work
from .dry_run import shown
from .installer_output import installed
from .installers import Installer, find_installer
from .location import appliable
from .options import InstallOptions
from .workflow import interpreter_of


@dataclass(frozen=True)
class Undoing:
    """What restores an environment."""

    added: tuple[str, ...]  # to be removed
    old: Mapping[str, frozen.Kept]  # to be restored
    built: tuple[PinnedRequirement, ...]  # to be built again


def roll_back(
    request: Request, options: InstallOptions, agree: Callable[[str], bool], on_step: Callable[[str], None]
) -> Report:
    """The report on the environment as it is again; DoctorError where nothing was applied."""
    python = interpreter_of(request)
    place = appliable(request, python, options.break_system_packages)
    kept = frozen.last(frozen.folders_for(place.prefix))
    if kept is None:
        raise DoctorError(f"no applied fix to undo in `{place.python}`")
    site_dirs = find_target(place.python, None).site_dirs
    rules = (*request.defaults.rules, *request.rules)
    load_rulebook(rules)  # its libraries say what is compiled against torch
    undoing = undoing_of(kept, frozen.packages_of(site_dirs))
    installer, why_not = find_installer(place.python, options.installer)
    if installer is None:
        raise DoctorError(f"cannot install: {why_not}")
    work = Work(installer, place, InstallPlan(), options.proof_timeout, options.break_system_packages)
    if not agree(_plan_text(kept, undoing, work, rules)):
        steps = [VerificationStep("restores", None, "cancelled; nothing was changed")]
    else:
        steps = list(_steps(undoing, installer, work, rules, on_step))
        now = frozen.packages_of(site_dirs)
        left = [name for name in frozen.difference(kept.packages, now) if name in {*undoing.added, *undoing.old}]
        good = not left and all(step.outcome for step in steps)
        if good:
            frozen.update(kept, state=frozen.TAKEN_BACK)
        what = f"restored to {kept.when}" if not left else f"not restored: {', '.join(left)}"
        steps.append(VerificationStep("state", not left, what))
    report = _report(request, on_step)
    found = ", ".join(finding.rule for finding in report.findings if finding.severity == Severity.ERROR) or "none"
    steps.append(
        VerificationStep(
            "check",
            True if report.rulebook else None,
            f"errors now: {found}" if report.rulebook else "no attention libraries are installed",
        )
    )
    return report._replace(
        proof=Verification(VerificationKind.ROLLBACK, kept.fix or None, tuple(steps), tilde(str(kept.path)))
    )


def undoing_of(kept: frozen.Freeze, now: Mapping[str, frozen.Kept]) -> Undoing:
    """What the change touched, seen from what is there now; of one that broke off, all that is different."""
    touched = frozen.difference(kept.packages, now)
    if kept.changed is not None:
        touched = tuple(name for name in touched if name in kept.changed)
    added = tuple(name for name in touched if name not in kept.packages)
    compiled = {name for name in (*touched, *kept.rebuilt) if name in BUILT_AGAINST_TORCH and name in kept.packages}
    built = {name for name in compiled if not kept.packages[name].origin}
    names = [name for name in dict.fromkeys((*touched, *compiled)) if name in kept.packages and name not in built]
    lines = tuple(PinnedRequirement(name, kept.packages[name].version, "as it was") for name in sorted(built))
    return Undoing(added, {name: kept.packages[name] for name in names}, lines)


def _steps(
    undoing: Undoing, installer: Installer, work: Work, rules: Sequence[str], on_step: Callable[[str], None]
) -> Iterator[VerificationStep]:
    for name, command in _commands(undoing, installer, work, rules):
        on_step(f"{shown(command)} …")
        ran = run_child(command, timeout=work.timeout)
        if not ran.good and re.search(r"no RECORD|RECORD file was not found|uninstall-no-record-file", ran.said):
            ran = run_child([*command, "--ignore-installed"], timeout=work.timeout)  # what a crash left half done
        found = installed(ran)
        yield VerificationStep(name, found.outcome, found.reason, shown(ran.command), ran.seconds)
    empty = Report(TOOL, {}, Facts(), (), (), (), (), {})
    for line in undoing.built:
        yield work.compiled(line, empty)


def _commands(
    undoing: Undoing, installer: Installer, work: Work, rules: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """New ones go before old ones come back: a file that both own is there in the end."""
    python = work.place.python
    if undoing.added:
        yield "removes", [*installer.uninstall(python, undoing.added), *work.options]
    if undoing.old:
        wanted = [word for name, kept in sorted(undoing.old.items()) for word in kept.requirement(name)]
        options = ["--no-deps", installer.reinstall_option, *work.options, *_indexes(undoing, rules)]
        yield "restores", installer.install(python, [*options, *wanted])


def _indexes(undoing: Undoing, rules: Sequence[str]) -> list[str]:
    """The indexes of builds that the registry does not have (2.6.0+cu126), as rules name them."""
    labels = {
        match[1] for kept in undoing.old.values() if not kept.origin
        if (match := re.search(r"\+(cu\d+|cpu|rocm[\d.]+|xpu)$", kept.version))
    }  # fmt: skip
    if not labels:
        return []
    named = (
        way.index_url for rule in load_rulebook(rules).rules.values() for way in rule.alternatives if way.index_url
    )  # fmt: skip
    bases = {match[1] for url in named if (match := re.fullmatch(r"(https://.+/)cu\d+/?", url))}
    return [word for base in sorted(bases) for label in sorted(labels) for word in ("--extra-index-url", base + label)]


def _plan_text(kept: frozen.Freeze, undoing: Undoing, work: Work, rules: Sequence[str]) -> str:
    lines = [f"the environment of `{tilde(work.place.python)}` will be restored to its state of {kept.when}:"]
    lines += [f"  remove {name}" for name in undoing.added]
    lines += [f"  {name} {item.version}" for name, item in sorted(undoing.old.items())]
    lines += [f"  {line.requirement}, rebuilt" for line in undoing.built]
    lines.append("by:")
    lines += [f"  {tilde(shown(command))}" for _, command in _commands(undoing, work.installer, work, rules)]
    return "\n".join(lines) + "\n"


def _report(request: Request, on_step: Callable[[str], None]) -> Report:
    began = time.monotonic()
    try:
        return diagnose(request._replace(fixes=False, run=False), on_step)
    except NoDiagnosis as problem:
        seconds = round(time.monotonic() - began, 3)
        return Report(TOOL, {}, Facts(), (), (), (), (), {"total": seconds}, notes=(problem.message,))
