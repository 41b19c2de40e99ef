"""Run kernels in as few processes as possible: cases that can share a process do, so torch is imported once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from doctor.util.resources import programs_dir
from doctor.util.variables import is_kernel_switch

from .result import KernelOutcome, KernelResult
from .run import PrewarmedProcess, run_program

Cases = Mapping[str, Sequence[Mapping[str, Any]]]
Environment = tuple[tuple[str, "str | None"], ...]

#: The program that runs cases of the others.
_DISPATCH = "dispatch"
#: Importing TransformerEngine changes which cuDNN a process holds: cases about torch alone must not share with it.
_IMPORTS_TE = "te_attention"
#: Runs torch's backends first and TransformerEngine last: it can share with either.
_EITHER = "strided_qkv"


@dataclass(frozen=True)
class KernelRunner:
    """Runs kernels: the target interpreter, the longest wait in seconds, and the folder of the programs."""

    python: str
    timeout: float
    kernels: Path
    prewarmed: PrewarmedProcess | None = None  # a process of the interpreter that was started before the cases existed
    variables: Mapping[str, str | None] = field(default_factory=dict)  # laid over our own; None removes one

    def run(self, cases: Cases) -> dict[str, list[KernelResult]]:
        """Return the results per kernel, in the order of its cases; a crash costs its case and a new process."""
        results: dict[str, list[KernelResult]] = {}
        for kernel, requests in cases.items():
            missing = KernelResult(KernelOutcome.UNAVAILABLE, reason=f"there is no kernel `{kernel}`")
            results[kernel] = [missing] * len(requests)
        known = {kernel: requests for kernel, requests in cases.items() if self._has(kernel)}
        prewarmed = self.prewarmed
        for environment, places in groups(known):
            requests = [{"kernel": kernel, "request": _without_env(known[kernel][index])} for kernel, index in places]
            programs = self._sources(dict.fromkeys(kernel for kernel, _ in places))
            first = prewarmed if not environment and not self.variables else None  # it has our own variables
            collected = run_program(
                self.python, _DISPATCH, requests, timeout=self.timeout, env={**self.variables, **dict(environment)},
                programs=programs, prewarmed=first,
            )  # fmt: skip
            prewarmed = None if first is not None else prewarmed
            for position, (kernel, index) in enumerate(places):
                result = collected[position]
                if position and _is_suspect(result):
                    result = self._run_alone(requests[position], result, environment, programs)
                results[kernel][index] = result
        return results

    def _run_alone(
        self, request: Mapping[str, Any], before: KernelResult, environment: Environment, programs: Mapping[str, str]
    ) -> KernelResult:
        """Run the case once more in a process of its own: state that earlier cases left may be to blame."""
        (again,) = run_program(
            self.python, _DISPATCH, [request], timeout=self.timeout, env={**self.variables, **dict(environment)},
            programs=programs,
        )  # fmt: skip
        if _is_suspect(again):
            return again
        return replace(again, observed={**again.observed, "behind_others": before.reason or "a wrong result"})

    def _has(self, kernel: str) -> bool:
        named = kernel.isidentifier() and not kernel.startswith("_") and kernel != _DISPATCH
        return named and (self.kernels / f"{kernel}.py").is_file()

    def _sources(self, kernels: Mapping[str, None]) -> dict[str, str]:
        """Return the sources of the kernels that are not among our own."""
        if self.kernels == programs_dir():
            return {}
        return {kernel: (self.kernels / f"{kernel}.py").read_text("utf-8") for kernel in kernels}


def prewarm(python: str) -> PrewarmedProcess:
    """Start the dispatch program in this interpreter, for a runner whose cases are not known yet."""
    return PrewarmedProcess(python, _DISPATCH)


def _is_suspect(result: KernelResult) -> bool:
    """Return whether the result is bad in a way that earlier cases of the process may have caused."""
    wrong = result.outcome == KernelOutcome.RAN and bool(result.observed.get("wrong"))
    return wrong or result.outcome == KernelOutcome.FAILED


def groups(cases: Cases) -> list[tuple[Environment, list[tuple[str, int]]]]:
    """Return (environment, places) for each process; a place is a kernel and the number of its case.

    One process per environment, because libraries read their variables at import; and one for TransformerEngine's
    cases, apart from those about torch.
    """
    processes: dict[tuple[Any, bool], list[tuple[str, int]]] = {}
    te = {environment_of(request) for request in cases.get(_IMPORTS_TE, ())}
    for kernel in sorted(cases, key=lambda name: (name != _IMPORTS_TE, name == _EITHER)):
        for index, request in enumerate(cases[kernel]):
            environment = environment_of(request)
            with_te = kernel == _IMPORTS_TE or (kernel == _EITHER and environment in te)
            processes.setdefault((environment, with_te), []).append((kernel, index))
    return [(environment, places) for (environment, _), places in processes.items()]


def spent(results: Mapping[str, Sequence[KernelResult]]) -> dict[str, float]:
    """Return the seconds per stage over all results, named as in the report's timing: `kernels.import` and so on."""
    total: dict[str, float] = {}
    for result in {id(result): result for several in results.values() for result in several}.values():
        for stage, seconds in result.spent.items():
            name = f"kernels.{stage}"
            total[name] = round(total.get(name, 0.0) + seconds, 4)
    return total


def environment_of(request: Mapping[str, Any]) -> Environment:
    """Return the variables that a request sets (null: removes) before anything is imported.

    Requests come from rules, which are data: what is no switch of an attention library is left out.
    """
    wanted = request.get("env")
    if not isinstance(wanted, Mapping):
        return ()
    switches = ((name, value) for name, value in wanted.items() if is_kernel_switch(name, value))
    return tuple(sorted((str(name), None if value is None else str(value)) for name, value in switches))


def _without_env(request: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.items() if key != "env"}
