"""The part of `fix` that proves and carries out: its options, and what they do to the report."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.model import Report, Severity

from .options import Parser, seconds

if TYPE_CHECKING:
    from .commands import Streams

LONGEST = 1800.0  # seconds for one program of the proof


def add_proof(made: Parser) -> None:
    """`--dry-run`, `--verify`, `--apply`, `--rollback` and what goes with them."""
    group = made.add_argument_group("how far it is proven, and carried out")
    group.add_argument(
        "--dry-run", action="store_true", help="ask uv or pip whether the pins resolve with all that stays"
    )
    group.add_argument(
        "--verify", action="store_true", help="install them into an environment that is thrown away, and check that"
    )
    group.add_argument(
        "--apply", action="store_true", help="install them into what is examined, after asking, and check again"
    )
    group.add_argument("--rollback", action="store_true", help="take the last `--apply` back, after asking")
    group.add_argument("--yes", action="store_true", help="do not ask")
    group.add_argument("--installer", choices=("uv", "pip"), help="the program to use (default: uv, else pip)")
    group.add_argument(
        "--proof-timeout", type=seconds, default=LONGEST, metavar="SECONDS",
        help=f"longest wait for one of its programs (default: {LONGEST:g})",
    )  # fmt: skip
    group.add_argument(
        "--break-system-packages", action="store_true", help="apply even to a Python that the system manages"
    )


def check_options(options: argparse.Namespace) -> None:
    """DoctorError for options that exclude each other, or that do nothing without another."""
    deeds = [f"--{name}" for name in ("rollback", "apply") if getattr(options, name)]
    asked = [*deeds, *(f"--{name.replace('_', '-')}" for name in ("verify", "dry_run") if getattr(options, name))]
    if len(asked) > 1 and (asked[0] == "--rollback" or {"--apply", "--dry-run"} <= set(asked)):
        raise DoctorError(f"`{asked[0]}` and `{asked[-1]}` exclude each other")
    if options.yes and not deeds:
        raise DoctorError("`--yes` goes with `--apply` or `--rollback`")
    if options.break_system_packages and not deeds:
        raise DoctorError("`--break-system-packages` goes with `--apply` or `--rollback`")
    if options.installer and not asked:
        raise DoctorError("`--installer` goes with `--dry-run`, `--verify`, `--apply` or `--rollback`")
    for name in ("facts", "site_packages", "requirements"):
        if deeds and getattr(options, name):
            raise DoctorError(
                f"`{deeds[0]}` needs an interpreter to install into, and `--{name.replace('_', '-')}` names none",
                "name it with `--python PATH`",
            )


def wants_proof(options: argparse.Namespace) -> bool:
    """Whether anything is to be proven or applied once the fix is found."""
    return bool(options.dry_run or options.verify or options.apply)


def refused(report: Report) -> bool:
    """Whether a proof was asked for and says no somewhere."""
    return report.proof is not None and any(step.outcome is False for step in report.proof.steps)


def proven(
    report: Report, options: argparse.Namespace, request: Request, streams: Streams
) -> tuple[Report, int | None]:
    """The report with its proof; the exit code where the proof decides it."""
    from doctor.apply.install.workflow import prove

    with _ended_properly():
        proof, after = prove(report, request, options, lambda text: _ask(text, options, streams), streams.tell)
    if proof is None:
        return replace(report, notes=(*report.notes, "no package has to change: there is nothing to install")), None
    told = replace(report, proof=proof)
    if after is not None:
        left = any(finding.severity == Severity.ERROR for finding in after.findings)
        return told, int(left or refused(told))
    return told, 1 if refused(told) else None


def taken_back(options: argparse.Namespace, request: Request, streams: Streams) -> tuple[Report, int]:
    """`--rollback`: the report on what was restored."""
    from doctor.apply.install.rollback import roll_back

    with _ended_properly():
        report = roll_back(request, options, lambda text: _ask(text, options, streams), streams.tell)
    return report, int(refused(report))


def tell_proof(report: Report) -> None:
    """The proof on stderr, where stdout carries something else."""
    if report.proof is not None:
        from doctor.report.proof import proof_text

        sys.stderr.write(proof_text(report.proof))


def _ask(plan: str, options: argparse.Namespace, streams: Streams) -> bool:
    """Show what will be done, and hear whether it may be."""
    if not options.yes and not streams.stdin.isatty():
        raise DoctorError("nobody can be asked here, as stdin is no terminal", "`--yes` goes ahead without asking")
    sys.stderr.write(plan)
    if options.yes:
        return True
    sys.stderr.write("go ahead? [y/N] ")
    sys.stderr.flush()
    return streams.stdin.readline().strip().lower() in ("y", "yes")


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
            sys.stderr.write(f"{text}\n")
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
