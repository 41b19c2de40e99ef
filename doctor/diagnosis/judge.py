"""Apply the rulebook to one case; what single diagnoses and matrices of cases share."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from doctor._version import __version__
from doctor.errors import DoctorError, NoDiagnosis
from doctor.model import ABSENT, AttentionCost, Facts, Finding, Severity
from doctor.rulebook.categories import DECLARED_RANGE
from doctor.rulebook.evaluate import Assessment, evaluate, with_backend_findings
from doctor.rulebook.nightly import judge_nightly
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.usual import weigh
from doctor.sources.workload.defaults import complete_workload

from .diagnosis_input import DiagnosisInput
from .request import Request
from .todays_releases import called_unstated
from .unresolvable import unresolvable

if TYPE_CHECKING:
    from doctor.rulebook.shared import SharedEvaluations
    from doctor.solver.limits import Limits

    from .version_ranges import RangeChoices

LOGGER = logging.getLogger(__name__)
TOOL = f"attn-doctor {__version__}"


class RuleVerdict(NamedTuple):
    """What the rulebook says of one case."""

    assessment: Assessment
    found: tuple[Finding, ...]
    to_fix: Assessment  # of ranges: what an installer would take today
    notes: tuple[str, ...] = ()
    chosen: frozenset[str] = frozenset()  # rules whose finding the project decided for: no fix is wanted
    costs: tuple[AttentionCost, ...] = ()  # of each kind of layer


def apply_rules(
    rulebook: Rulebook,
    examined: DiagnosisInput,
    grounds: SharedEvaluations | None = None,
    ranges: RangeChoices | None = None,
    *,
    costs: bool = False,
) -> RuleVerdict:
    """The rules on these facts, on every release that declared ranges admit, and on the model's other layers.

    `costs`: what every backend takes is to be reported, not only one that is far better. `grounds` and `ranges` are
    what the cases of one environment share.
    """
    verdict = _with_costs(rulebook, _of_main_layers(rulebook, examined, grounds, ranges), every=costs)
    more: dict[str, Finding] = {}
    made = list(verdict.costs)
    known = {item.rule for item in verdict.found}
    for layer in examined.layers:
        whole = complete_workload(examined.facts.with_(*layer.facts.values()))
        own = _of_main_layers(rulebook, examined._replace(facts=whole, layers=()), None, ranges)
        own = _with_costs(rulebook, own, layer.name, every=costs)
        made += own.costs
        for item in own.found:
            if item.rule not in known:
                more.setdefault(item.rule, item._replace(message=f"in the {layer.name}: {item.message}"))
    verdict = verdict._replace(costs=tuple(made))
    if not more:
        return verdict
    return verdict._replace(found=tuple(sorted((*verdict.found, *more.values()), key=lambda item: item.severity.rank)))


def _with_costs(rulebook: Rulebook, verdict: RuleVerdict, layer: str = "", *, every: bool) -> RuleVerdict:
    """Return the verdict with what attention costs, and a finding where another backend is far better."""
    known = verdict.assessment.known
    if known.value("gpu.sm") in (None, ABSENT) or not known.has_workload or not verdict.assessment.predictions:
        return verdict
    if not every and any(item.severity == Severity.ERROR for item in verdict.found):
        return verdict  # a job that does not run has no speed yet
    from .attention_costs import compare, costs_of, with_better_backend  # door: a job on a known GPU

    compared = compare(rulebook, known, every=every)
    found = with_better_backend(rulebook, known, compared, verdict.found)
    return verdict._replace(found=found, costs=costs_of(rulebook, known, compared, layer) if every else ())


def _of_main_layers(
    rulebook: Rulebook, examined: DiagnosisInput, grounds: SharedEvaluations | None, ranges: RangeChoices | None
) -> RuleVerdict:
    """The rules on the layers that the facts describe."""
    facts = examined.facts
    assessment = evaluate(rulebook, facts) if grounds is None else grounds.evaluate(None, facts)
    assessment = judge_nightly(rulebook, facts, weigh(rulebook, facts, assessment))
    found = with_backend_findings(rulebook, assessment)
    verdict = RuleVerdict(assessment, found, assessment)
    called = tuple(called_unstated(rulebook, examined, assessment.known))
    declaration = examined.declaration
    if called or (declaration is not None and declaration.open):
        from .version_ranges import judge_ranges, judge_unstated  # door: manifests

        if declaration is not None and declaration.open:
            verdict = RuleVerdict(*judge_ranges(rulebook, facts, declaration, assessment, ranges, grounds))
        found, to_fix = judge_unstated(rulebook, facts, called, verdict.found)
        verdict = verdict._replace(found=found, to_fix=to_fix or verdict.to_fix)
    if declaration is None:
        return verdict
    return _with_unresolvable(rulebook, examined, _with_choices(rulebook, facts, verdict))


def _with_choices(rulebook: Rulebook, facts: Facts, verdict: RuleVerdict) -> RuleVerdict:
    """Return the verdict; ranges that metadata declares are notes without a fix where the project decided so.

    Only an override leaves them unmet in a lock; of other files, an override names its packages.
    """
    complete = facts.value("distributions.complete") is True
    overridden = {f"{name}.version" for name in facts.value("declared.overridden") or ()}
    chosen = frozenset(
        item.rule
        for item in verdict.found
        if item.severity == Severity.WARNING
        and item.rule in rulebook.rules  # not one that the program itself states
        and rulebook.rules[item.rule].category == DECLARED_RANGE
        and (complete or any(piece.key in overridden for piece in item.evidence))
    )
    found = tuple(
        item._replace(severity=Severity.NOTE, alternatives=()) if item.rule in chosen else item
        for item in verdict.found
    )
    return verdict._replace(found=found, chosen=chosen)


def _with_unresolvable(rulebook: Rulebook, examined: DiagnosisInput, verdict: RuleVerdict) -> RuleVerdict:
    """Return the verdict; what no resolver meets is an error."""
    errors, at_bounds = unresolvable(rulebook, examined, verdict.found, DECLARED_RANGE, verdict.chosen)
    if not errors:
        return verdict
    base = at_bounds or verdict.to_fix
    to_fix = base._replace(findings=_raised(base.findings, errors))
    return verdict._replace(found=_raised(verdict.found, errors), to_fix=to_fix)


def _raised(found: tuple[Finding, ...], errors: tuple[Finding, ...]) -> tuple[Finding, ...]:
    names = {item.rule for item in errors}
    kept = (*errors, *(item for item in found if item.rule not in names))
    return tuple(sorted(kept, key=lambda item: item.severity.rank))


def require_subject(rulebook: Rulebook, examined: DiagnosisInput, *assessments: Assessment) -> None:
    """NoDiagnosis where there is nothing to judge."""
    watched = (*(f"{name}.version" for name in rulebook.watched_distributions), "torch.cuda", "torch.arch_list")
    if not any(item.findings for item in assessments) and not any(key in examined.facts for key in watched):
        if examined.unread:
            raise DoctorError("; ".join(examined.unread))
        silent = [item.path for item in examined.read if item.kind == "script" and not _says_job(item.gave)]
        also = f", and nothing in {', '.join(silent)} says who computes attention" if silent else ""
        if examined.declaration is not None:
            raise NoDiagnosis(
                f"no attention libraries (torch, flash-attn, …) are {examined.target or 'declared'}{also}",
                "name the files that pin torch",
            )
        raise NoDiagnosis(
            f"no attention libraries (torch, flash-attn, …) found in {examined.target or 'the facts'}{also}",
            "name the training environment with `--python PATH`, `--site-packages DIR` or `--facts FILE`",
        )


def _says_job(keys: Iterable[str]) -> bool:
    return any(key in ("workload.framework", "workload.attn_implementation") for key in keys)


def limits_of_request(request: Request, assessment: Assessment, examined: DiagnosisInput) -> Limits | None:
    """What the user wants to keep, and the project's own lines; None where there is nothing of that."""
    declared = examined.declaration.requested if examined.declaration is not None else {}
    if not (request.hold or request.allow or request.constraints or declared):
        return None
    from .kept import limits_of_options  # door: solver

    return limits_of_options(request, assessment.known, declared)


def unconcerned(assessments: Iterable[Assessment]) -> tuple[Finding, ...]:
    """Return what is true of the environment but of no concern to the job: one finding for each rule."""
    found = {item.rule: item for assessment in assessments for item in assessment.unconcerned}
    return tuple(sorted(found.values(), key=lambda item: (item.severity.rank, item.rule)))


class Clock:
    """Seconds per stage."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """The stage `name` ends here."""
        now = time.perf_counter()
        self._laps[name], self._last = round(now - self._last, 4), now
        LOGGER.debug("%s took %.1f ms", name, 1000 * self._laps[name])

    def laps(self) -> dict[str, float]:
        """Seconds of every stage and in total."""
        return {**self._laps, "total": round(time.perf_counter() - self._began, 4)}
