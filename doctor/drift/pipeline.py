"""Analyze an environment: which packages call which, from the cache where nothing has changed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from doctor.errors import DoctorError

from .cache import ResultCache
from .findings import CallerResult, Coverage, DriftReport, Finding, Limits, Pair, Reach, Release, Severity
from .history import ApiHistory
from .mentions import reached_callees
from .sources import COMPILED, Environment, Package, is_readable, normalized

#: Seconds for one caller, after which only its imports are checked.
SECONDS = 30.0
#: Analyzes callers against callees, and yields each result when it is there.
Run = Callable[
    [Environment, Sequence[Package], Sequence[Package], Limits, Callable[[str], None]],
    Generator[tuple[Package, CallerResult], None, None],
]


@dataclass(frozen=True)
class DriftRequest:
    """What to analyze."""

    site_packages: tuple[Path, ...]
    stack: frozenset[str]
    """The distributions whose sources are read."""
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
    limit: float = 0.0
    """Seconds for all callers that the cache does not know; 0 for no limit."""
    roots: tuple[str, ...] | None = None
    """Distributions that the job calls itself: only they and what they reach are callers; None for all of the stack."""


def analyze(
    request: DriftRequest, on_step: Callable[[str], None] = lambda text: None, run: Run | None = None
) -> DriftReport:
    """Return what the packages of an environment call that is not there.

    `run` analyzes the callers that the cache does not know: by default in processes of their own.
    Raises DoctorError for a folder that does not exist.
    """
    return Analysis(request).finish(on_step, run)


class Analysis:
    """One analysis: what earlier ones know is read when it is made, and the rest is analyzed by `finish`."""

    def __init__(self, request: DriftRequest) -> None:
        """Read the cache; DoctorError for a folder that does not exist."""
        self.request = request
        self.environment = environment_of(request)
        readable = [item for item in self.environment.packages.values() if is_readable(item)]
        self.callees = [item for item in readable if _has_source(item) and _chosen(item, request.callees)]
        chosen = [item for item in readable if item.is_code or _chosen(item, request.callers)]
        self._cache = ResultCache(request.cache, self.environment) if request.cache is not None else None
        self._known: dict[str, CallerResult] = {}
        for caller in chosen if request.roots is None else ():
            self._read(caller)
        self.wanted = chosen if request.roots is None else self._reached(chosen, request.roots)
        names = {item.name for item in self.wanted}
        self.unused = [item for item in chosen if item.name not in names]
        self.missing: list[Package] = []
        self.hopeless: list[Package] = []
        for caller in self.wanted:
            if caller.name not in self._known:
                (self.hopeless if self._needs_more(caller) else self.missing).append(caller)

    def _read(self, caller: Package) -> CallerResult | None:
        """Return what an earlier analysis found for a caller; None where there is none, or a file has changed."""
        found = self._cache.read(caller, self.callees) if self._cache is not None else None
        if found is not None:
            self._known[caller.name] = found
        return found

    def _reached(self, chosen: Sequence[Package], roots: Sequence[str]) -> list[Package]:
        """Return the callers that the user's code or a root is or reaches, nearest first."""
        names = {normalized(name) for name in roots}
        found = {item.name: item for item in chosen if item.is_code or item.release.name in names}
        waiting = list(found.values())
        for caller in waiting:  # it grows
            known = self._read(caller)
            reached = reached_callees(self.environment, caller, self.callees) if known is None else known.reaches
            new = [item for item in chosen if item.name in reached and item.name not in found]
            found.update((item.name, item) for item in new)
            waiting += new
        return waiting

    def _needs_more(self, caller: Package) -> bool:
        """Return whether an earlier analysis of this caller took all of a limit as long as this one."""
        limit = self.request.limit
        return bool(limit and self._cache is not None and self._cache.longer_than(caller, self.callees) >= limit)

    def finish(self, on_step: Callable[[str], None] = lambda text: None, run: Run | None = None) -> DriftReport:
        """Analyze the callers that the cache does not know, until the limit; return what is known then."""
        limit = self.request.limit
        if self.missing:
            until = time.monotonic() + limit if limit else math.inf
            self._analyze(Limits(self.request.seconds, until), on_step, run)
        late = [item for item in self.wanted if item.name not in self._known]
        results = [self._known[item.name] for item in self.wanted if item.name in self._known]
        failed = [item for item in self.wanted if item.name in self._known and self._known[item.name].failed]
        analyzed = [item for item in self.wanted if item.name in self._known and item not in failed]
        coverage = Coverage(_releases(analyzed), _releases(late), _releases(self.unused), _releases(failed), limit)
        return _report(results, self.environment, self.request.context_parallel, coverage)

    def _analyze(self, limits: Limits, on_step: Callable[[str], None], run: Run | None) -> None:
        if run is None:
            from .processes import analyze_in_processes  # door: processes of the analyzer

            run = partial(analyze_in_processes, self.request.jobs)
        order = self.missing
        if self.request.roots is None and limits.until < math.inf:  # as many as possible; else the nearest first
            order = sorted(order, key=lambda item: len(self.environment.files(item)))
        elif limits.until == math.inf:  # the last one would keep one process busy
            order = sorted(order, key=lambda item: -len(self.environment.files(item)))
        with closing(run(self.environment, order, self.callees, limits, on_step)) as results:
            for caller, result in results:
                self._known[caller.name] = result
                if self._cache is not None and not result.failed:
                    self._cache.write(caller, self.callees, result)
        if self._cache is not None:
            for caller in order[: self.request.jobs]:  # each had all of the time; the next analysis begins with others
                if caller.name not in self._known:
                    self._cache.note_limit(caller, self.callees, self.request.limit)


def _report(
    results: Sequence[CallerResult], environment: Environment, context_parallel: bool | None, coverage: Coverage
) -> DriftReport:
    findings = [item for each in results for item in each.findings]
    if findings:
        history = ApiHistory.load()
        findings = [_for_workload(history.explain(item), context_parallel) for item in findings]
    order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
    findings.sort(key=lambda item: (order[item.severity], item.caller.name, item.site, item.code, item.name))
    pairs: list[Pair] = sorted((pair for each in results for pair in each.pairs), key=_names)
    notices = [*environment.notices, *(notice for each in results for notice in each.notices)]
    failed = dict.fromkeys(notice for each in results if each.failed for notice in each.notices)
    return DriftReport(tuple(pairs), tuple(findings), tuple(dict.fromkeys(notices)), tuple(failed), coverage)


def _releases(packages: Sequence[Package]) -> tuple[Release, ...]:
    return tuple(item.release for item in packages)


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
    return Environment(
        list(request.site_packages), request.stack, code=request.code, models=models, overlay=request.overlay
    )


def _for_workload(finding: Finding, context_parallel: bool | None) -> Finding:
    """Set the severity of code that runs under context parallelism only."""
    if finding.reach is not Reach.CONTEXT_PARALLEL or finding.severity is not Severity.WARNING:
        return finding
    if context_parallel is None:
        return finding
    return finding._replace(severity=Severity.ERROR if context_parallel else Severity.NOTE)
