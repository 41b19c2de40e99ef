"""The whole pipeline: facts, rules, confirmation, fixes, report. Read this first."""

from __future__ import annotations

from collections.abc import Callable

from doctor.diagnosis.judge import Clock
from doctor.diagnosis.single import diagnose_one
from doctor.model import Report

from .diagnosis_input import DiagnosisInput
from .request import Request
from .watch import rulebook_of


def diagnose(
    request: Request,
    on_step: Callable[[str], None] = lambda text: None,
    examined: DiagnosisInput | None = None,
    on_verdict: Callable[[Report], None] | None = None,
) -> Report:
    """Answer one request.

    `on_step` is called with each step that takes time; `examined` is the input where it was examined already.
    `on_verdict` is called with the report without the installed sources, where their analysis takes time.
    """
    clock = Clock()
    if request.several:
        from .cases import diagnose_all  # door: a matrix of cases

        rulebook = rulebook_of(request)
        clock.lap("rules")
        return diagnose_all(request, rulebook, clock, on_step, on_verdict)
    ahead = None
    if examined is None and request.run and request.examines_installed:
        from .prewarm import prewarm_kernels  # door: kernels

        ahead = prewarm_kernels(request)
    try:
        return diagnose_one(request, on_step, examined, clock, ahead, on_verdict)
    finally:
        if ahead is not None:
            ahead.close()
