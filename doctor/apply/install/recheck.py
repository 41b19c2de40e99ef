"""Check the environment after an installation: what is fixed, what still fires, and what no check can see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from doctor.diagnosis.diagnosis_input import DiagnosisInput
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.diagnosis.watch import rulebook_of, watch_of
from doctor.errors import DoctorError
from doctor.facts.vocabulary import TERMS, parse
from doctor.model import (
    ABSENT,
    TORCH,
    ChangeKind,
    Fact,
    Facts,
    Finding,
    Fix,
    Report,
    RunVerdict,
    Severity,
    VerificationStep,
)
from doctor.packages.relations import owner_of
from doctor.sources.probes.collect import collect
from doctor.sources.probes.locate import find_target

#: Facts that packages do not change: taken from the environment that the fix is for.
_MACHINE = ("gpu.", "driver.", "platform.", "env.", "ranks.", "workload.")


def diagnose_after(
    python: str,
    report: Report,
    request: Request,
    fix: Fix,
    on_step: Callable[[str], None],
    assumed: Mapping[str, str] | None = None,
) -> tuple[Report, str]:
    """(the report on the environment of `python`, with machine, job and settings of the old; why no kernel was run).

    `assumed` are packages that could not be installed there, as if they were; None: this is the target itself.
    """
    rulebook = rulebook_of(request)
    variables = {c.name.removeprefix("env."): c.after for c in fix.changes if c.kind == ChangeKind.ENV}
    target = find_target(python)
    environ = {name: text for name, text in {**target.environ, **variables}.items() if text is not None}
    found = collect(replace(target, environ=environ), watch_of(rulebook))
    facts = _overlaid(found, report.facts, fix, assumed)
    why_not = _why_no_kernels(found, facts, assumed or {}, request)
    examined = DiagnosisInput(facts, None if why_not else python, why_not, variables=variables)
    after = diagnose(request._replace(fixes=False, run=True), on_step, examined)
    return after, why_not or ("" if after.kernels_run else "no kernel program covers this job")


def _overlaid(found: Facts, old: Facts, fix: Fix, assumed: Mapping[str, str] | None) -> Facts:
    here = [fact for key, fact in found.items() if not key.startswith(_MACHINE)]
    kept = [fact for key, fact in old.items() if key.startswith(_MACHINE)]
    path = old.value("cudnn.path")
    if path not in (None, ABSENT) and "nvidia/cudnn/" not in str(path):  # the system's shadows any wheel's
        kept += [old[key] for key in ("cudnn.version", "cudnn.path") if key in old]
    if assumed is None:
        return Facts([*here, *kept, *_settings(fix)])
    # Only the stack was put there: what else the target has, or lacks, is as little known as before.
    here = [fact for fact in here if fact.key != "distributions.complete"]
    kept += [old["distributions.complete"]] if "distributions.complete" in old else []
    removed = {change.name for change in fix.changes if change.kind == ChangeKind.PACKAGE and change.after is None}
    others = [
        fact
        for key, fact in old.items()
        if key.endswith(".version") and key not in found and key not in ("cudnn.version", "driver.version")
        and _is_package(key) and not owner_of(key[:-8]) and key[:-8] not in removed
    ]  # fmt: skip
    if TORCH in assumed:  # another build replaces it there
        kept += [fact for key, fact in old.items() if key.startswith(("torch.", "cudnn."))]
    facts = Facts([*others, *here, *kept, *_settings(fix)])
    why = "not available here; assumed to be installed"
    return facts.with_(*(Fact(f"{name}.version", version, why) for name, version in assumed.items()))


def _is_package(key: str) -> bool:
    return key not in TERMS


def _settings(fix: Fix) -> Iterator[Fact]:
    """Yield the changes that are not packages, as facts."""
    for change in fix.changes:
        if change.kind == ChangeKind.ENV:
            yield Fact(f"env.{change.name.removeprefix('env.')}", change.after or ABSENT, "the fix")
        elif change.kind == ChangeKind.CONFIG:
            key = change.name if "." in change.name else f"workload.{change.name}"
            try:
                yield Fact(key, ABSENT if change.after is None else parse(key, change.after), "the fix")
            except DoctorError:
                continue  # a setting that is no fact


def _why_no_kernels(found: Facts, facts: Facts, assumed: Mapping[str, str], request: Request) -> str:
    """Return why no kernel can be run; empty if one can."""
    if found.value("gpu.sm") in (None, ABSENT):
        return "no GPU here"
    if request.facts or request.declared or facts.value("gpu.sm") != found.value("gpu.sm"):
        return "this GPU is not the one the fix is for"
    if assumed:
        return f"{', '.join(f'`{name}`' for name in assumed)} could not be installed"
    return ""


def check_step(after: Report, before: Report, fix: Fix, seconds: float) -> VerificationStep:
    """Return whether no error fires, apart from those that only a change of code fixes."""
    errors = [finding for finding in after.findings if finding.severity == Severity.ERROR]
    by_code = {rule for change in fix.changes if change.kind == ChangeKind.CALL for rule in change.resolves}
    old = {finding.rule for finding in before.findings}
    parts: list[str] = []
    hard = [finding for finding in errors if finding.rule not in by_code]
    if hard:
        parts.append("still fires: " + "; ".join(_finding_text(finding, old, fix) for finding in hard))
    code = [finding.rule for finding in errors if finding.rule in by_code]
    if code:
        parts.append(f"{', '.join(code)} needs a change of code, which this check cannot see")
    warnings = [finding.rule for finding in after.findings if finding.severity == Severity.WARNING]
    if warnings:
        parts.append(f"warnings: {', '.join(warnings)}")
    gone = [rule for rule in fix.resolves if rule not in {finding.rule for finding in after.findings}]
    if gone:
        parts.insert(0, f"fixed: {', '.join(gone)}")
    outcome = False if hard else None if code else True
    return VerificationStep("check", outcome, "; ".join(parts), None, seconds)


def _finding_text(finding: Finding, old: set[str], fix: Fix) -> str:
    why = " (the fix leaves it)" if finding.rule in fix.leaves else "" if finding.rule in old else " (new)"
    return f"{finding.rule}{why}: {finding.message}"


def kernel_step(after: Report, why_not: str) -> VerificationStep:
    """Return what kernel runs on the GPU show."""
    if why_not:
        return VerificationStep("kernels", None, f"not verified: {why_not}")
    failed = [run for run in after.runs if run.verdict == RunVerdict.FAILED]
    failed += [
        f.confirmation for f in after.findings if f.confirmation and f.confirmation.verdict == RunVerdict.CONFIRMED
    ]
    if failed:
        return VerificationStep(
            "kernels", False, "; ".join(f"`{run.kernel}`: {run.reason or run.outcome}" for run in failed)
        )
    healthy = [run for run in after.runs if run.verdict == RunVerdict.HEALTHY]
    if healthy:
        names = ", ".join(f"`{run.kernel}`" for run in healthy)
        return VerificationStep("kernels", True, f"the job's attention ran without a problem: {names}")
    reason = next((run.reason for run in after.runs if run.reason), "no kernel program covers this job")
    return VerificationStep("kernels", None, reason)
