"""`fix --dry-run`, `--verify`, `--apply`, `--rollback`: how far a fix is verified and carried out."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

from doctor.apply.install.options import InstallOptions as InstallOptions  # the command fills it
from doctor.apply.install.rollback import roll_back
from doctor.apply.install.workflow import prove
from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.model import Report, Severity
from doctor.report.proof import proof_text

from .output import remark
from .progress import Progress


def check_options(options: InstallOptions, request: Request) -> None:
    """DoctorError for options that exclude each other, or that do nothing without another."""
    changing = [f"--{name}" for name in ("rollback", "apply") if getattr(options, name)]
    given = [*changing, *(f"--{name.replace('_', '-')}" for name in ("verify", "dry_run") if getattr(options, name))]
    if len(given) > 1 and (given[0] == "--rollback" or {"--apply", "--dry-run"} <= set(given)):
        raise DoctorError(f"`{given[0]}` and `{given[-1]}` exclude each other")
    if options.yes and not changing:
        raise DoctorError("`--yes` goes with `--apply` or `--rollback`")
    if options.break_system_packages and not changing:
        raise DoctorError("`--break-system-packages` goes with `--apply` or `--rollback`")
    if options.allow_builds and not set(given) - {"--rollback"}:
        raise DoctorError("`--allow-builds` goes with `--dry-run`, `--verify` or `--apply`")
    if options.installer and not given:
        raise DoctorError("`--installer` goes with `--dry-run`, `--verify`, `--apply` or `--rollback`")
    named = {"--facts": request.facts, "--site-packages": request.site_packages, "--requirements": request.declared}
    for name, value in named.items():
        if changing and value:
            where = f"`{name}`"
            if name == "--requirements" and value == request.defaults.requirements:
                where = "`requirements` of the project's section"
            raise DoctorError(
                f"`{changing[0]}` needs an interpreter to install into, and {where} names none",
                "name it with `--python PATH`",
            )


def refused(report: Report) -> bool:
    """Whether a verification was requested and failed somewhere."""
    return report.proof is not None and any(step.outcome is False for step in report.proof.steps)


def proven(report: Report, options: InstallOptions, request: Request, progress: Progress) -> tuple[Report, int | None]:
    """The report with its proof; the exit code where the proof decides it."""
    with _ended_properly():
        proof, after = prove(report, request, options, lambda text: _confirmed(text, options, progress), progress.step)
    if proof is None:
        return report._replace(notes=(*report.notes, "no package changes: nothing to install")), None
    verified = report._replace(proof=proof)
    if after is not None:
        left = any(finding.severity == Severity.ERROR for finding in after.findings)
        return verified, int(left or refused(verified))
    return verified, 1 if refused(verified) else None


def taken_back(options: InstallOptions, request: Request, progress: Progress) -> tuple[Report, int]:
    """`--rollback`: the report on what was restored."""
    with _ended_properly():
        report = roll_back(request, options, lambda text: _confirmed(text, options, progress), progress.step)
    return report, int(refused(report))


def tell_proof(report: Report) -> None:
    """The proof on stderr, where stdout carries something else."""
    if report.proof is not None:
        remark(proof_text(report.proof))


def _confirmed(plan: str, options: InstallOptions, progress: Progress) -> bool:
    """Show what will be done, and return whether the user agrees."""
    if not options.yes and not sys.stdin.isatty():
        raise DoctorError("cannot request confirmation: stdin is no terminal", "`--yes` continues without confirmation")
    with progress.paused():
        remark(plan)
        if options.yes:
            return True
        remark("go ahead? [y/N] ")
        return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextlib.contextmanager
def _ended_properly() -> Iterator[None]:
    """A request to end counts as Ctrl-C: what was begun is ended, and what is temporary removed."""

    def interrupted(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    for number in (getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)):
        with contextlib.suppress(ValueError):  # not in the main thread
            if signal.getsignal(number) is not signal.SIG_IGN:  # under `nohup` a closed terminal is to be ignored
                before[number] = signal.signal(number, interrupted)
    try:
        yield
    except KeyboardInterrupt as stop:
        for text in stop.args:  # in which state it leaves things
            remark(f"{text}\n")
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
