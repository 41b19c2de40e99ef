"""Analyze an environment: which packages call which, from the cache where nothing has changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from doctor.errors import DoctorError

from .analysis import CallerResult, analyze_caller, is_readable
from .cache import ResultCache
from .download import fetch_release, parse_pin
from .findings import DriftReport, Finding, Notice, Pair, Reach, Severity
from .history import ApiHistory
from .parallel import analyze_in_processes
from .sources import COMPILED, Environment, Package, normalized


@dataclass(frozen=True)
class DriftRequest:
    """What to analyze."""

    site_packages: tuple[Path, ...]
    code: tuple[Path, ...] = ()
    """Folders of the user's own code."""
    model: Path | None = None
    """A model's `config.json` or folder: the `*.py` files next to it are analyzed as code."""
    against: tuple[str, ...] = ()
    """Pins such as `flash-attn==2.8.3` that replace what is installed."""
    context_parallel: bool | None = None
    """Whether the workload uses context parallelism; None when unknown."""
    callers: tuple[str, ...] = ()
    """Distributions to analyze as callers; empty for all of the stack."""
    callees: tuple[str, ...] = ()
    """Distributions to check against; empty for all of the stack."""
    cache: Path | None = None
    """Folder of the cache; None for no cache."""
    jobs: int = 1


def analyze(request: DriftRequest, tell: Callable[[str], None] = lambda text: None) -> DriftReport:
    """Return what the packages of an environment call that is not there.

    Raises DoctorError for a bad pin, a release that pip does not find, or a folder that does not exist.
    """
    environment = environment_of(request, tell)
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
    for caller, result in _run(environment, missing, callees, request.jobs, tell):
        if cache is not None:
            cache.write(caller, callees, result)
        results.append(result)
    history = ApiHistory.load()
    findings = [
        _for_workload(history.explain(item), request.context_parallel) for each in results for item in each.findings
    ]
    order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
    findings.sort(key=lambda item: (order[item.severity], item.caller.name, item.site, item.code, item.name))
    pairs: list[Pair] = sorted((pair for each in results for pair in each.pairs), key=_names)
    notices = [*environment.notices, *(notice for each in results for notice in each.notices)]
    return DriftReport(tuple(pairs), tuple(findings), tuple(dict.fromkeys(notices)))


def _names(pair: Pair) -> tuple[str, str]:
    return pair.caller.name, pair.callee.name


def _has_source(package: Package) -> bool:
    """Return whether a package can be checked against: the names of a compiled module are unknown."""
    return not package.is_code and package.root.suffix not in COMPILED


def _chosen(package: Package, names: Sequence[str]) -> bool:
    return not names or package.release.name in {normalized(name) for name in names}


def environment_of(request: DriftRequest, tell: Callable[[str], None]) -> Environment:
    """Return the packages of a request, with the releases of `against` in front of the installed ones."""
    overlay = []
    for pin in request.against:
        name, version = parse_pin(pin)
        tell(f"fetching the sources of {name} {version}")
        overlay.append(fetch_release(name, version, _downloads()))
    code = list(request.code)
    for folder in code:
        if not folder.is_dir():
            raise DoctorError(f"folder `{folder}` does not exist", "`--code` needs a folder with Python files")
    if request.model is not None:
        folder = request.model if request.model.is_dir() else request.model.parent
        if any(folder.glob("*.py")):
            code.append(folder)
    return Environment(list(request.site_packages), code=code, overlay=overlay)


def _downloads() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "attn-doctor" / "sources"


def _run(
    environment: Environment, callers: list[Package], callees: list[Package], jobs: int, tell: Callable[[str], None]
) -> list[tuple[Package, CallerResult]]:
    if jobs > 1 and len(callers) > 1 and hasattr(os, "fork"):
        return analyze_in_processes(environment, callers, callees, jobs)
    found = []
    for caller in callers:
        tell(f"reading {caller.release}")
        found.append((caller, guarded(environment, caller, callees)))
    return found


def guarded(environment: Environment, caller: Package, callees: Sequence[Package]) -> CallerResult:
    """Analyze one caller; a fault of the analysis costs this caller only, and is said."""
    try:
        return analyze_caller(environment, caller, callees)
    except (RecursionError, MemoryError) as error:
        return CallerResult((), (), (Notice(caller.name, f"not analyzed: {type(error).__name__}"),), ())


def _for_workload(finding: Finding, context_parallel: bool | None) -> Finding:
    """Set the severity of code that runs under context parallelism only."""
    if finding.reach is not Reach.CONTEXT_PARALLEL or finding.severity is not Severity.WARNING:
        return finding
    if context_parallel is None:
        return finding
    return replace(finding, severity=Severity.ERROR if context_parallel else Severity.NOTE)
