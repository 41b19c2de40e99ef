"""Analyze several callers at once, each in a forked process."""

from __future__ import annotations

from multiprocessing import get_context

from .analysis import CallerResult, analyze_caller
from .findings import Notice
from .sources import Environment, Package

_SHARED: list[tuple[Environment, list[Package]]] = []


def _analyze(name: str) -> tuple[str, CallerResult]:
    environment, callees = _SHARED[-1]
    caller = environment.packages[name]
    try:
        return name, analyze_caller(environment, caller, callees)
    except (RecursionError, MemoryError) as error:
        return name, CallerResult((), (), (Notice(caller.name, f"not analyzed: {type(error).__name__}"),), ())


def analyze_in_processes(
    environment: Environment, callers: list[Package], callees: list[Package], jobs: int
) -> list[tuple[Package, CallerResult]]:
    """Return the result of each caller; the largest are started first."""
    ordered = sorted(callers, key=lambda item: -len(environment.files(item)))
    _SHARED.append((environment, callees))
    try:
        with get_context("fork").Pool(min(jobs, len(ordered)), maxtasksperchild=1) as pool:
            results = dict(pool.imap_unordered(_analyze, [item.name for item in ordered]))
    finally:
        _SHARED.pop()
    return [(item, results[item.name]) for item in callers]
