"""Analyze an environment: which packages call which, from the cache where nothing has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from doctor.errors import DoctorError

from .cache import ResultCache
from .findings import CallerResult, DriftReport, Finding, Pair, Reach, Severity
from .history import ApiHistory
from .sources import COMPILED, Environment, Package, is_readable, normalized

#: Seconds for one caller, after which only its imports are checked.
SECONDS = 30.0
#: Analyzes callers against callees, each within some seconds.
Run = Callable[
    [Environment, Sequence[Package], Sequence[Package], float, Callable[[str], None]],
    list[tuple[Package, CallerResult]],
]


@dataclass(frozen=True)
class DriftRequest:
    """What to analyze."""

    site_packages: tuple[Path, ...]
    code: tuple[Path, ...] = ()
    """Folders of the user's own code."""
    models: tuple[Path, ...] = ()
    """Model configs or their folders: the `*.py` files next to each are analyzed as code."""
    overlay: tuple[Path, ...] = ()
    """Folders of releases that replace what is installed."""
    context_parallel: bool | None = None
    """Whether the workload uses context parallelism; None when unknown."""
    callers: tuple[str, ...] = ()
    """Distributions to analyze as callers; empty for all of the stack."""
    callees: tuple[str, ...] = ()
    """Distributions to check against; empty for all of the stack."""
    cache: Path | None = None
    """Folder of the cache; None for no cache."""
    jobs: int = 1
    seconds: float = SECONDS
    """For one caller, after which only its imports are checked."""


def analyze(
    request: DriftRequest, on_step: Callable[[str], None] = lambda text: None, run: Run | None = None
) -> DriftReport:
    """Return what the packages of an environment call that is not there.

    `run` analyzes the callers that the cache does not know: by default in processes of their own.
    Raises DoctorError for a folder that does not exist.
    """
    environment = environment_of(request)
    callers = [item for item in environment.packages.values() if is_readable(item)]
    callees = [item for item in callers if _has_source(item) and _chosen(item, request.callees)]
    wanted = [item for item in callers if item.is_code or _chosen(item, request.callers)]
    cache = ResultCache(request.cache, environment) if request.cache is not None else None
    results: list[CallerResult] = []
    missing: list[Package] = []
    for caller in wanted:
        known = cache.read(caller, callees) if cache is not None else None
        if known is not None:
            results.append(known)
        else:
            missing.append(caller)
    if missing:
        if run is None:
            from .processes import analyze_in_processes  # door: processes of the analyzer

            run = partial(analyze_in_processes, request.jobs)
        for caller, result in run(environment, missing, callees, request.seconds, on_step):
            if cache is not None and not result.failed:
                cache.write(caller, callees, result)
            results.append(result)
    findings = [item for each in results for item in each.findings]
    if findings:
        history = ApiHistory.load()
        findings = [_for_workload(history.explain(item), request.context_parallel) for item in findings]
    order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
    findings.sort(key=lambda item: (order[item.severity], item.caller.name, item.site, item.code, item.name))
    pairs: list[Pair] = sorted((pair for each in results for pair in each.pairs), key=_names)
    notices = [*environment.notices, *(notice for each in results for notice in each.notices)]
    failed = dict.fromkeys(notice for each in results if each.failed for notice in each.notices)
    return DriftReport(tuple(pairs), tuple(findings), tuple(dict.fromkeys(notices)), tuple(failed))


def _names(pair: Pair) -> tuple[str, str]:
    return pair.caller.name, pair.callee.name


def _has_source(package: Package) -> bool:
    """Return whether a package can be checked against: the names of a compiled module are unknown."""
    return not package.is_code and package.root.suffix not in COMPILED


def _chosen(package: Package, names: Sequence[str]) -> bool:
    return not names or package.release.name in {normalized(name) for name in names}


def environment_of(request: DriftRequest) -> Environment:
    """Return the packages of a request."""
    for folder in request.code:
        if not folder.is_dir():
            raise DoctorError(f"folder `{folder}` does not exist", "`--code` needs a folder with Python files")
    folders = [item if item.is_dir() else item.parent for item in request.models]
    models = [item for item in dict.fromkeys(folders) if any(item.glob("*.py"))]
    return Environment(list(request.site_packages), code=request.code, models=models, overlay=request.overlay)


def _for_workload(finding: Finding, context_parallel: bool | None) -> Finding:
    """Set the severity of code that runs under context parallelism only."""
    if finding.reach is not Reach.CONTEXT_PARALLEL or finding.severity is not Severity.WARNING:
        return finding
    if context_parallel is None:
        return finding
    return finding._replace(severity=Severity.ERROR if context_parallel else Severity.NOTE)
