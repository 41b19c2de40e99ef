"""The cases of a matrix: environments x GPUs x workloads, and the verdict on each."""

from __future__ import annotations

from dataclasses import dataclass

from doctor.model import Case

from .diagnosis_input import DiagnosisInput
from .judge import RuleVerdict
from .request import Request


@dataclass(frozen=True)
class CaseResult:
    """One case, judged, with what its fixes are worked out from."""

    case: Case
    examined: DiagnosisInput
    verdict: RuleVerdict


@dataclass(frozen=True)
class EnvironmentCases:
    """One environment with all its cases."""

    name: str
    examined: DiagnosisInput
    cells: tuple[CaseResult, ...]


@dataclass(frozen=True)
class CaseMatrix:
    """One environment, and what is checked in it: GPU, job and the request for each case alone."""

    name: str
    examined: DiagnosisInput
    cases: tuple[tuple[str | None, str | None, Request], ...]
