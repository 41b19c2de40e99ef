"""Many cases judged at once: environments × GPUs × jobs, one report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from doctor.diagnosis.case_model import CaseMatrix, CaseResult, EnvironmentCases
from doctor.errors import DoctorError
from doctor.model import SEVERITIES, Case, DriftCoverage, Facts, Finding, Fix, Report, Undetermined
from doctor.report.fingerprint import fingerprint
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.shared import SharedEvaluations, same
from doctor.sources.workload.files import split_part

from .api_rules import ApiRules, api_rules, sources_of
from .baseline import read_baseline
from .diagnosis_input import DiagnosisInput
from .environment import environment_of
from .examine import InputCache, names_no_job, takes_project_gpus, with_job
from .input_files import input_files
from .joint_fixes import fixes_for
from .judge import TOOL, Clock, apply_rules, limits_of_request, require_subject, unconcerned
from .records import records_date, unexamined, unrecorded
from .request import Request
from .same_options import target_options
from .single import diagnose_one
from .suppressions import apply_suppressions, without_ignored
from .version_ranges import RangeChoices, ranges_of

MOST_CASES = 10_000
MOST_JUDGED = 1_500  # choices of releases in all the cases of one environment, about a millisecond each
_NOT_ALL = (
    "every release that the ranges admit was judged in {0} of {1} cases of {2}, in the others what an installer takes "
    "today: fewer GPUs or jobs at once have all of it judged"
)


def case_matrices(request: Request, rulebook: Rulebook) -> tuple[CaseMatrix, ...]:
    """Every environment, read once, with its cases."""
    read = ((name, own, environment_of(own, rulebook)) for name, own in _environments(request))
    return tuple(CaseMatrix(name, examined, tuple(_cases(own, examined))) for name, own, examined in read)


def judge_environment(
    plan: CaseMatrix, rulebook: Rulebook, inputs: InputCache, api: ApiRules | None = None
) -> EnvironmentCases:
    """The cases of one environment, judged; what they share is judged once. `api` is what its sources add."""
    return EnvironmentCases(plan.name, plan.examined, tuple(_cells(plan, api or ApiRules(rulebook), inputs)))


def _cells(plan: CaseMatrix, api: ApiRules, inputs: InputCache) -> Iterator[CaseResult]:
    rulebook = api.rulebook
    grounds = SharedEvaluations(rulebook)
    name, cases = plan.name, plan.cases
    ranges, whole_in = _ranges(rulebook, plan.examined, cases)
    for number, (gpu, workload, one_case) in enumerate(cases):
        whole = with_job(plan.examined, one_case, inputs)
        own = ranges if ranges is None or number in whole_in else replace(ranges, rounds=())
        verdict = apply_rules(rulebook, whole, grounds, own)
        if own is not ranges:
            verdict = verdict._replace(notes=(*verdict.notes, _NOT_ALL.format(len(whole_in), len(cases), name)))
        base = verdict.assessment
        found = api.findings(verdict.found)
        case = Case(name, gpu, workload, whole.facts, found, base.predictions, base.undetermined)
        yield CaseResult(case, whole, verdict)


def _ranges(
    rulebook: Rulebook, examined: DiagnosisInput, cases: Sequence[tuple[str | None, str | None, Request]]
) -> tuple[RangeChoices | None, frozenset[int]]:
    """What the declared ranges admit, and the cases in which all of it is judged: of many, every GPU and every job."""
    if examined.declaration is None or not examined.declaration.open:
        return None, frozenset()

    ranges = ranges_of(rulebook, examined.declaration)
    room = max(1, MOST_JUDGED // max(ranges.count, 1))
    seen: set[tuple[str, str | None]] = set()
    first: list[int] = []
    for number in _diagonally(cases):
        names = {("gpu", cases[number][0]), ("job", cases[number][1])}
        if not names <= seen:
            first.append(number)
            seen |= names
    rest = [number for number in range(len(cases)) if number not in set(first)]
    return ranges, frozenset([*first, *rest][:room])


def _diagonally(cases: Sequence[tuple[str | None, str | None, Request]]) -> list[int]:
    """The cases in an order in which each step meets another GPU and another job."""
    jobs = max(1, len(cases) // len(dict.fromkeys(gpu for gpu, _, _ in cases)))
    return sorted(range(len(cases)), key=lambda number: ((number % jobs - number // jobs) % jobs, number))


def _environments(request: Request) -> Iterator[tuple[str, Request]]:
    named = request.python or request.site_packages or ", ".join(request.facts) or ", ".join(request.declared)
    if request.project and not named and request.defaults.environments:
        for name, files in request.defaults.environments.items():
            yield name, request._replace(declared=files)
    else:
        yield named or "the active environment", request


def _cases(request: Request, examined: DiagnosisInput) -> Iterator[tuple[str | None, str | None, Request]]:
    """(GPU, job, the request for this case alone), every combination, in the order in which they were named."""
    of_project = request.defaults
    gpus: tuple[str | None, ...] = request.gpus or ((request.gpu,) if request.gpu else ())
    if not gpus and request.project and takes_project_gpus(request, examined):
        gpus = of_project.gpus
    models: tuple[str | None, ...] = request.models or ((request.model,) if request.model else ())
    jobs: tuple[str | None, ...] = request.workloads or ((request.workload,) if request.workload else ())
    one_case = request._replace(gpus=(), models=(), workloads=(), project=False)
    if models or jobs:
        made = [(model, job, one_case._replace(model=model, workload=job)) for model, job in _pairs(models, jobs)]
    elif request.project and names_no_job(request, examined.job_facts):
        made = [
            (model, job, one_case._replace(defaults=of_project._replace(models=_one(model), workloads=_one(job))))
            for model, job in _pairs(of_project.models, of_project.workloads)
        ]
    else:
        made = [(None, None, one_case)]
    names = _job_names([(model, job) for model, job, _ in made])
    if len(made) * max(len(gpus), 1) > MOST_CASES:
        raise DoctorError(f"{len(made) * len(gpus)} cases are too many", f"at most {MOST_CASES} are judged at once")
    for gpu in gpus or (None,):
        for name, (_, _, one) in zip(names, made, strict=True):
            yield gpu, name, one._replace(gpu=gpu)


def _pairs(
    models: Sequence[str | None], jobs: Sequence[str | None]
) -> Iterator[tuple[str | None, str | None]]:  # every model with every workload file, which is laid over it
    yield from product(models or (None,), jobs or (None,))


def _one(name: str | None) -> tuple[str, ...]:
    return (name,) if name is not None else ()


def _job_names(pairs: Sequence[tuple[str | None, str | None]]) -> list[str | None]:
    """The name of each job: what differs from the others, the files' names where these suffice."""
    models, jobs = (_names([pair[axis] for pair in pairs]) for axis in (0, 1))
    shown: list[str | None] = []
    for model, job in pairs:
        parts = [models[model]] if model is not None and (len(models) > 1 or job is None) else []
        parts += [jobs[job]] if job is not None and (len(jobs) > 1 or not parts) else []
        shown.append(" + ".join(parts) or None)
    return shown


def _names(paths: Sequence[str | None]) -> Mapping[str, str]:
    """Path → a short name; the path itself where two would be called alike."""
    short = {path: _short(path) for path in paths if path is not None}
    return {path: name if list(short.values()).count(name) == 1 else path for path, name in short.items()}


def _short(path: str) -> str:
    """`llama-3-8b` for models/llama-3-8b.json, and for models/llama-3-8b/config.json."""
    path, part = split_part(path)
    parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".")]
    last = parts[-1] if parts else path
    stem = last.rpartition(".")[0] if last.lower().endswith((".json", ".yaml", ".yml")) else last
    short = parts[-2] if stem == "config" and len(parts) > 1 and parts[-2] != ".." else stem or last
    return short if part is None else f"{short}[{part}]"


def merge_findings(cases: Sequence[Case]) -> tuple[Finding, ...]:
    """What any case shows: one finding for the same rule, cause and severity, with the numbers of its cases."""
    found: dict[tuple[object, ...], list[int]] = {}
    first: dict[tuple[object, ...], Finding] = {}
    environments = len({case.environment for case in cases}) > 1
    for number, case in enumerate(cases):
        for finding in case.findings:
            cause = fingerprint(finding._replace(cases=(number,)))
            own = case.environment if environments and finding.evidence else None
            way = tuple(sorted(finding.alternatives[0].require.items())) if finding.alternatives else ()
            key = (finding.rule, finding.severity, cause, own, way)
            first.setdefault(key, finding)
            found.setdefault(key, []).append(number)
    made = [first[key]._replace(cases=tuple(dict.fromkeys(numbers))) for key, numbers in found.items()]
    return tuple(sorted(made, key=lambda item: (SEVERITIES.index(item.severity), -len(item.cases))))


def common_facts(cases: Sequence[Case]) -> Facts:
    """The facts that are the same in every case."""
    head, *rest = [case.facts for case in cases]
    return Facts(fact for key, fact in head.items() if all(same(other.get(key), fact) for other in rest))


def merge_undetermined(cases: Sequence[Case]) -> tuple[Undetermined, ...]:
    """What was skipped in some case, with the same missing facts."""
    rules: dict[tuple[tuple[str, ...], str], dict[str, None]] = {}
    for case in cases:
        for item in case.undetermined:
            rules.setdefault((item.missing, item.problem), {}).update(dict.fromkeys(item.rules))
    return tuple(Undetermined(missing, tuple(own), problem) for (missing, problem), own in sorted(rules.items()))


def diagnose_all(
    request: Request,
    rulebook: Rulebook,
    clock: Clock,
    on_step: Callable[[str], None],
    on_verdict: Callable[[Report], None] | None = None,
) -> Report:
    """The report of every case of the request; of a single one, that of a check of it.

    Where the sources take time to analyze, `on_verdict` gets the report without them first.
    """

    if request.baseline is not None:
        read_baseline(Path(request.baseline))  # a bad one is reported before all the work
    planned, inputs = case_matrices(request, rulebook), InputCache(rulebook, request)
    clock.lap("facts")
    if sum(len(plan.cases) for plan in planned) == 1:  # the project's matrix shrinks where there is a GPU
        (_, _, one), examined = planned[0].cases[0], planned[0].examined
        return diagnose_one(one, on_step, with_job(examined, one, inputs), Clock(), None, on_verdict)
    sources = [sources_of(rulebook, request, plan.examined) for plan in planned]
    before = None
    if on_verdict is not None and any(one is not None and one.takes_time for one in sources):
        before = _report(request, rulebook, clock, planned, inputs, [ApiRules(rulebook)] * len(planned))
        on_verdict(before)
    apis = [api_rules(rulebook, one, on_step) for one in sources]
    clock.lap("api drift")
    if before is None or any(api.uses for api in apis):
        return _report(request, rulebook, clock, planned, inputs, apis)
    notes = (*before.notes, *(note for api in apis for note in api.notes))
    return before._replace(drift=_coverage(apis), notes=tuple(dict.fromkeys(notes)), timing=clock.laps())


def _coverage(apis: Sequence[ApiRules]) -> DriftCoverage | None:
    """Return what of the sources was read: at most one of several environments is installed."""
    return next((api.coverage for api in apis if api.coverage is not None), None)


def _report(
    request: Request,
    rulebook: Rulebook,
    clock: Clock,
    planned: Sequence[CaseMatrix],
    inputs: InputCache,
    apis: Sequence[ApiRules],
) -> Report:
    """Return the report of the cases with what their sources add."""
    environments = tuple(
        judge_environment(plan, rulebook, inputs, api) for plan, api in zip(planned, apis, strict=True)
    )
    for environment in environments:
        require_subject(rulebook, environment.examined, *(cell.verdict.assessment for cell in environment.cells))
    clock.lap("evaluate")
    cases = tuple(cell.case for environment in environments for cell in environment.cells)
    found, undetermined = merge_findings(cases), merge_undetermined(cases)
    judged = [cell.verdict.assessment for environment in environments for cell in environment.cells]
    reported = {finding.rule for finding in found}
    shown = apply_suppressions(request, rulebook, found, undetermined, cases)
    kept = tuple(_without(case, set(request.defaults.ignored)) for case in cases)
    fixes: list[Fix] = []
    if request.fixes:
        for environment, api in zip(environments, apis, strict=True):
            limits = limits_of_request(request, environment.cells[0].verdict.assessment, environment.examined)
            book, counting = _counting(api.rulebook, environment, request)
            made = api.fixes(fixes_for(book, counting, limits))
            named = len(environments) > 1
            fixes += [fix._replace(title=f"in {environment.name}: {fix.title}") if named else fix for fix in made]
        clock.lap("fixes")
    notes = dict.fromkeys(note for environment in environments for note in _notes(environment))
    notes |= dict.fromkeys(note for api in apis for note in api.notes)
    if request.run and any(finding.confirm for finding in found):
        notes["no kernel was run: several cases were checked at once; check one case alone to run kernels"] = None
    return Report(
        tool=TOOL,
        rulebook={"version": rulebook.version, "rules": len(rulebook.rules)},
        facts=common_facts(cases),
        findings=shown.findings,
        predictions=(),
        fixes=tuple(fix for fix in fixes if not set(fix.resolves) <= shown.silent),
        undetermined=undetermined,
        timing=clock.laps(),
        target=" | ".join(dict.fromkeys(environment.examined.target for environment in environments)),
        notes=(*notes, *shown.notes),
        unread=tuple(dict.fromkeys(fault for environment in environments for fault in environment.examined.unread)),
        cases=kept,
        known=shown.known,
        ignored=shown.ignored,
        records=records_date(),
        unrecorded=unrecorded(case.facts for case in cases),
        unexamined=unexamined(((case.facts, case.predictions) for case in cases), rulebook),
        unconcerned=tuple(item for item in unconcerned(judged) if item.rule not in reported),
        inputs=input_files(request),
        read=tuple(dict.fromkeys(item for one in environments for cell in one.cells for item in cell.examined.read)),
        today=tuple(dict.fromkeys(name for one in environments for cell in one.cells for name in cell.examined.today)),
        options=target_options(request),
        drift=_coverage(apis),
    )


def _notes(environment: EnvironmentCases) -> Iterator[str]:
    yield from environment.examined.notes
    for cell in environment.cells:
        yield from cell.verdict.notes


def _counting(rulebook: Rulebook, environment: EnvironmentCases, request: Request) -> tuple[Rulebook, EnvironmentCases]:
    """Return both without the rules that the project ignores."""
    cells = []
    for cell in environment.cells:
        made, to_fix = without_ignored(rulebook, cell.verdict.to_fix, request.defaults)
        rulebook = made if len(made.rules) < len(rulebook.rules) else rulebook
        cells.append(replace(cell, verdict=cell.verdict._replace(to_fix=to_fix)))
    return rulebook, replace(environment, cells=tuple(cells))


def _without(case: Case, ignored: set[str]) -> Case:
    return case._replace(findings=tuple(finding for finding in case.findings if finding.rule not in ignored))
