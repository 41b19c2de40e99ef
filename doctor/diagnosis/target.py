"""Examine an installed environment: an interpreter, or a folder of packages. Facts from files need none of this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from doctor.model import ReadInput
from doctor.rulebook.rulebook import Rulebook
from doctor.sources.probes.collect import collect
from doctor.sources.probes.distributions import installed_requirements
from doctor.sources.probes.interpreter import InterpreterQuery
from doctor.sources.probes.locate import find_target, query_interpreter
from doctor.util.redact import tilde

from .diagnosis_input import DiagnosisInput
from .request import Request
from .watch import watch_of


def query_ahead(request: Request) -> InterpreterQuery | None:
    """Start the interpreter under examination, if it is another than ours, so that it runs while the rules are read."""
    return None if request.site_packages is not None else query_interpreter(request.python)


def examine_target(request: Request, rulebook: Rulebook, query: InterpreterQuery | None) -> DiagnosisInput:
    """Return the facts of what is installed, and the interpreter in which kernels can run."""
    target = find_target(request.python, request.site_packages, query)
    facts = collect(target, watch_of(rulebook))

    def requirements() -> Mapping[str, Sequence[str]]:
        return installed_requirements(target)

    return DiagnosisInput(
        facts,
        target.python,
        "" if target.python else "a bare tree has no interpreter to run in",
        requirements,
        target=tilde(target.describe()),
        site_dirs=target.site_dirs,
        read=(ReadInput(tilde(target.describe()), "interpreter" if target.python else "packages"),),
    )
