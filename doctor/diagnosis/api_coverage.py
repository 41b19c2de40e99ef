"""Which installed packages a job uses, and what the analysis of their sources did not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from doctor.drift.findings import DriftReport, Release
from doctor.model import DriftCoverage, Facts, NotAnalyzed
from doctor.packages.records import OTHER, TRAINER, names_with
from doctor.rulebook.rulebook import Rulebook

from .request import Request
from .same_options import shell_word

_MOST_NAMED = 6  # packages in one command; more are named by leaving all out


def packages_of_job(rulebook: Rulebook, facts: Facts) -> tuple[str, ...] | None:
    """Return the distributions that a described job calls itself; None where the job may use any.

    A job through torch or a library of kernels has code of its own, which may call everything.
    """
    framework = facts.get("workload.framework")
    if framework is None or framework.assumed:
        return None
    library = rulebook.libraries.get(str(framework.value))
    called = library.distributions[:1] if library is not None else ()
    if not names_with(rulebook.packages, TRAINER, OTHER).intersection(called):
        return None
    if "transformers" not in called or facts.value("workload.training") is False:
        return called
    trainer = rulebook.libraries.get(str(facts.value("workload.trainer")).partition(".")[0])
    trainers = sorted(names_with(rulebook.packages, TRAINER)) if trainer is None else trainer.distributions
    return (*called, *trainers)


def coverage_of(report: DriftReport, request: Request, models: Sequence[Path]) -> DriftCoverage:
    """Return what was analyzed, and which command analyzes the rest."""
    found, limit = report.coverage, report.coverage.limit
    reasons = {item.subject: item.reason.removeprefix("not analyzed: ") for item in report.failed}
    late = [NotAnalyzed(str(item), f"it takes longer than the limit of {limit:g} s") for item in found.late]
    failed = [NotAnalyzed(str(item), reasons.get(item.name, "the analysis failed")) for item in found.failed]
    unused = [NotAnalyzed(str(item), "the described job does not use it") for item in found.unused]
    rest = (*found.late, *found.failed)
    command = _command(rest or found.unused, request, models) if rest or found.unused else None
    note = ""
    if late:
        names = ", ".join(item.package for item in late)
        note = f"API drift: not analyzed within {limit:g} s: {names}; `{command}` does it, without a limit"
    return DriftCoverage(tuple(map(str, found.analyzed)), (*late, *failed, *unused), limit, command, note)


def _command(packages: Sequence[Release], request: Request, models: Sequence[Path]) -> str:
    """Return the command that analyzes these packages as this check would: the cache keeps what it finds."""
    return " ".join(["attn-doctor drift", *_options(packages, request, models)])


def _options(packages: Sequence[Release], request: Request, models: Sequence[Path]) -> Iterator[str]:
    if request.python is not None:
        yield f"--python {shell_word(request.python)}"
    if request.site_packages is not None:
        yield f"--site-packages {shell_word(request.site_packages)}"
    yield from (f"--code {shell_word(folder)}" for folder in request.code)
    yield from (f"--model {shell_word(str(path))}" for path in models)
    if len(packages) <= _MOST_NAMED:
        yield from (f"--caller {shell_word(item.name)}" for item in packages if item.version)
