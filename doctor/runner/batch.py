"""Where kernels run: cases grouped by the process they can share, so that torch is imported once and not per kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .result import KernelResult
from .run import PrewarmedProcess, run_program

Cases = Mapping[str, Sequence[Mapping[str, Any]]]
Environment = tuple[tuple[str, "str | None"], ...]

#: The program that holds others, and those that it cannot hold together with just any.
_HOST = "several"
#: Importing TransformerEngine changes which cuDNN a process holds; who asks about torch alone must not share with it.
_BRINGS_TE = "te_attention"
#: Asks torch's backends first and TransformerEngine last: at home in either company.
_EITHER = "strided_qkv"


@dataclass(frozen=True)
class KernelRunner:
    """Where kernels run: the patient's interpreter, the longest wait, and the folder with the programs."""

    python: str
    timeout: float
    kernels: Path
    ahead: PrewarmedProcess | None = None  # a process of it that was started before there were cases
    variables: Mapping[str, str | None] = field(default_factory=dict)  # over our own; None removes one

    def run(self, cases: Cases) -> dict[str, list[KernelResult]]:
        """Answers per kernel, in the order of its cases; a crash costs the case that crashed and a new process."""
        answers: dict[str, list[KernelResult]] = {}
        for kernel, requests in cases.items():
            lacking = KernelResult("unavailable", reason=f"there is no kernel `{kernel}`")
            answers[kernel] = [lacking] * len(requests)
        here = {kernel: requests for kernel, requests in cases.items() if self._has(kernel)}
        ahead = self.ahead
        for environment, places in groups(here):
            asked = [{"kernel": kernel, "request": _bare(here[kernel][index])} for kernel, index in places]
            programs = [self.kernels / f"{kernel}.py" for kernel in dict.fromkeys(kernel for kernel, _ in places)]
            first = ahead if not environment and not self.variables else None  # its variables are ours
            got = run_program(
                self.python, _HOST, asked, timeout=self.timeout, env={**self.variables, **dict(environment)},
                beside=programs, ahead=first,
            )  # fmt: skip
            ahead = None if first is not None else ahead
            for position, (kernel, index) in enumerate(places):
                answer = got[position]
                if position and _suspect(answer):
                    answer = self._alone(asked[position], answer, environment, programs)
                answers[kernel][index] = answer
        return answers

    def _alone(
        self, asked: Mapping[str, Any], before: KernelResult, environment: Environment, programs: Sequence[Path]
    ) -> KernelResult:
        """The case once more with a process to itself: what others left behind is no fault of its own."""
        (again,) = run_program(
            self.python, _HOST, [asked], timeout=self.timeout, env={**self.variables, **dict(environment)},
            beside=programs,
        )  # fmt: skip
        if _suspect(again):
            return again
        return replace(again, observed={**again.observed, "behind_others": before.reason or "a wrong result"})

    def _has(self, kernel: str) -> bool:
        named = kernel.isidentifier() and not kernel.startswith("_") and kernel != _HOST
        return named and (self.kernels / f"{kernel}.py").is_file()


def prewarm(python: str) -> PrewarmedProcess:
    """The program that holds all others, begun in this interpreter: for a bench whose cases are not known yet."""
    return PrewarmedProcess(python, _HOST)


def _suspect(answer: KernelResult) -> bool:
    """Whether something went wrong that cases before it in the process may have had a part in."""
    return answer.outcome == "failed" or (answer.outcome == "ran" and bool(answer.observed.get("wrong")))


def groups(cases: Cases) -> list[tuple[Environment, list[tuple[str, int]]]]:
    """(environment, places) for each process: a place is a kernel and the number of its case.

    One process per environment, as libraries read their variables when they are imported; and TransformerEngine's
    cases, wherever there are any, apart from those about torch.
    """
    made: dict[tuple[Any, bool], list[tuple[str, int]]] = {}
    te = {environment_of(request) for request in cases.get(_BRINGS_TE, ())}
    for kernel in sorted(cases, key=lambda name: (name != _BRINGS_TE, name == _EITHER)):
        for index, request in enumerate(cases[kernel]):
            environment = environment_of(request)
            with_te = kernel == _BRINGS_TE or (kernel == _EITHER and environment in te)
            made.setdefault((environment, with_te), []).append((kernel, index))
    return [(environment, places) for (environment, _), places in made.items()]


def spent(answers: Mapping[str, Sequence[KernelResult]]) -> dict[str, float]:
    """Seconds by stage over all answers, as the report's timing names them: `kernels.import` and so on."""
    total: dict[str, float] = {}
    for answer in {id(answer): answer for several in answers.values() for answer in several}.values():
        for stage, seconds in answer.spent.items():
            name = f"kernels.{stage}"
            total[name] = round(total.get(name, 0.0) + seconds, 4)
    return total


def environment_of(request: Mapping[str, Any]) -> Environment:
    """The variables that a request wants set (or, with null, unset) before anything is imported."""
    wanted = request.get("env")
    if not isinstance(wanted, Mapping):
        return ()
    return tuple(sorted((str(name), None if value is None else str(value)) for name, value in wanted.items()))


def _bare(request: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.items() if key != "env"}
