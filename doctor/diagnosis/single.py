"""Diagnose one case: facts, rules, confirmation, fixes, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from doctor.model import ABSENT, Facts, Finding, Fix, Infeasible, Report
from doctor.rulebook.evaluate import Assessment
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rulebook import Rulebook

from .api_rules import ApiRules, api_rules, sources_of
from .diagnosis_input import DiagnosisInput
from .examine import examine
from .input_files import input_files
from .judge import TOOL, Clock, apply_rules, limits_of_request, require_subject, unconcerned
from .records import records_date, unexamined, unrecorded
from .request import Request
from .same_options import target_options
from .suppressions import apply_suppressions, without_ignored
from .watch import rulebook_of

if TYPE_CHECKING:
    from doctor.runner.run import PrewarmedProcess

    from .confirm_on_gpu import AfterRuns


def diagnose_one(
    request: Request,
    on_step: Callable[[str], None],
    examined: DiagnosisInput | None,
    clock: Clock,
    ahead: PrewarmedProcess | None,
    on_verdict: Callable[[Report], None] | None = None,
) -> Report:
    """Diagnose one environment and workload; `examined` is its input where it was examined already.

    Where the sources take time to analyze, `on_verdict` gets the report without them first.
    """
    rulebook, examined = _read(request, examined, clock)
    case = _CaseDiagnosis(rulebook, examined, request, clock, on_step, ahead)
    sources = sources_of(rulebook, request, examined)
    before = None
    if on_verdict is not None and sources is not None and sources.takes_time:
        before = case.report(ApiRules(rulebook))
        on_verdict(before)
    api = api_rules(rulebook, sources, on_step)
    clock.lap("api drift")
    if before is None or api.uses:
        return case.report(api)
    timing = {**before.timing, **clock.laps()}
    return before._replace(drift=api.coverage, notes=(*before.notes, *api.notes), timing=timing)


@dataclass
class _CaseDiagnosis:
    """The diagnosis of one case; a second report of it runs no kernel again."""

    rulebook: Rulebook
    examined: DiagnosisInput
    request: Request
    clock: Clock
    on_step: Callable[[str], None]
    ahead: PrewarmedProcess | None
    runs: AfterRuns | None = None

    def report(self, api: ApiRules) -> Report:
        """Return the report with the rules of the sources, `api`."""
        rulebook, examined, request, clock = self.rulebook, self.examined, self.request, self.clock
        verdict = apply_rules(api.rulebook, examined, costs=request.costs)
        assessment, to_fix = verdict.assessment, verdict.to_fix
        require_subject(rulebook, examined, assessment)
        clock.lap("evaluate")
        findings, runs, notes, predictions, laps = self._confirmed(verdict.found, assessment, api.rulebook)
        clock.lap("kernels")
        shown = apply_suppressions(request, rulebook, api.findings(findings), assessment.undetermined)
        done = shown.silent | verdict.chosen | {item.rule for item in shown.findings if item.refuted}
        fixes: tuple[Fix, ...] = ()
        hopeless: tuple[Infeasible, ...] = ()
        limits = limits_of_request(request, assessment, examined)
        if request.fixes and any(item.rule not in done for item in to_fix.findings):
            from doctor.solver.solve import no_fix, solve

            self.on_step("searching for a fix")
            given, requires = to_fix.known.given, examined.requirements
            book, to_fix = without_ignored(api.rulebook, to_fix, request.defaults)
            fixes = solve(book, given, to_fix, limits=limits, installed=requires, thorough=request.thorough)
            hopeless = api.infeasible(no_fix(book, given, to_fix, fixes, limits=limits, installed=requires))
            fixes = api.fixes(fixes)
            clock.lap("fixes")
        return Report(
            tool=TOOL,
            rulebook={"version": rulebook.version, "rules": len(rulebook.rules)},
            facts=examined.facts,
            findings=shown.findings,
            predictions=predictions,
            fixes=tuple(fix for fix in fixes if not set(fix.resolves) <= done),
            no_fix=tuple(item for item in hopeless if item.rule not in done),
            undetermined=assessment.undetermined,
            timing={**clock.laps(), **laps},
            target=examined.target,
            kernels_run=bool(runs) or any(finding.confirmation for finding in findings),
            runs=runs,
            notes=(
                *examined.notes,
                *_other_attention(request, examined.facts),
                *verdict.notes,
                *api.notes,
                *notes,
                *shown.notes,
            ),
            expected=notes if examined.why_not else (),
            unread=examined.unread,
            known=shown.known,
            ignored=shown.ignored,
            unconcerned=unconcerned((assessment, to_fix)),
            records=records_date(),
            unrecorded=unrecorded((examined.facts,)),
            unexamined=unexamined(((examined.facts, predictions),), rulebook),
            inputs=input_files(request),
            read=examined.read,
            today=examined.today,
            options=target_options(request),
            drift=api.coverage,
            costs=verdict.costs,
        )

    def _confirmed(self, found: tuple[Finding, ...], assessment: Assessment, rulebook: Rulebook) -> AfterRuns:
        """Run kernels; after they ran, add what is found besides: kernels say nothing of sources."""
        if self.runs is None:
            self.runs = _confirm(found, assessment, rulebook, self.examined, self.request, self.on_step, self.ahead)
            return self.runs
        earlier, runs, notes, predictions, laps = self.runs
        judged = {item.rule for item in earlier}
        more = (*earlier, *(item for item in found if item.rule not in judged))
        return tuple(sorted(more, key=lambda item: item.severity.rank)), runs, notes, predictions, laps


def _other_attention(request: Request, facts: Facts) -> tuple[str, ...]:
    """Say which parts of the model have an attention of their own that was not checked."""
    model, parts = request.model or request.defaults.model, facts.value("workload.other_attention")
    if model is None or not isinstance(parts, tuple):
        return ()
    names = " and ".join(f"`{part}`" for part in parts)
    return (f"the attention of {names} was not checked: add `--model '{model}[{parts[0]}]'`",)


def _read(request: Request, examined: DiagnosisInput | None, clock: Clock) -> tuple[Rulebook, DiagnosisInput]:
    """Rules and facts: while another interpreter starts and says who it is, the rules are read."""
    query = None
    if examined is None and request.examines_installed:
        from .target import query_ahead  # door: probes

        query = query_ahead(request)
    try:
        rulebook = rulebook_of(request)
        clock.lap("rules")
        examined = examined or examine(request, rulebook, query)
        clock.lap("facts")
    finally:
        if query is not None:
            query.close()
    return rulebook, examined


def _confirm(
    found: tuple[Finding, ...],
    assessment: Assessment,
    rulebook: Rulebook,
    examined: DiagnosisInput,
    request: Request,
    on_step: Callable[[str], None],
    ahead: PrewarmedProcess | None,
) -> AfterRuns:
    """Confirm findings on the GPU, where there may be one and it may be used."""
    known = assessment.known
    if not request.run or not examined.python or not _may_have_gpu(known):
        callers = any(finding.confirm for finding in found)
        gpu = examined.facts.get("gpu.sm")
        hidden = f": {gpu.problem}" if gpu is not None and gpu.problem else ""
        why = examined.why_not or f"no GPU was found{hidden}"
        notes = (f"no kernel was run: {why}",) if request.run and callers else ()
        return found, (), notes, assessment.predictions, {}
    from .confirm_on_gpu import confirm_on_gpu  # door: kernels

    return confirm_on_gpu(found, assessment, rulebook, examined.python, examined, request, on_step, ahead)


def _may_have_gpu(known: FactResolver) -> bool:
    """Whether a kernel is worth running: also where there is a driver that does not list its GPUs."""
    capability, count = known.value("gpu.sm"), known.value("gpu.count")
    if capability is not None:
        return bool(capability != ABSENT)
    if count is not None:
        return count not in (0, ABSENT)
    return known.value("driver.version") not in (None, ABSENT)
