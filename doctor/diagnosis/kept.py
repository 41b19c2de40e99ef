"""Read what the user wants to keep, from the options of a request and the lines of the project."""

from __future__ import annotations

from collections.abc import Mapping

from doctor.errors import DoctorError
from doctor.facts.vocabulary import nearest
from doctor.rulebook.resolver import FactResolver
from doctor.solver.constraints import limits_of, unknown_names
from doctor.solver.environment import known_names, platform_of
from doctor.solver.limits import Limits
from doctor.sources.manifests.base import DeclaredRequirement

from .request import Request


def limits_of_options(request: Request, known: FactResolver, declared: Mapping[str, DeclaredRequirement]) -> Limits:
    """Return the limits; DoctorError for a name that is neither installed nor on record: most likely misspelt."""
    if not (request.hold or request.allow or request.constraints):
        return Limits(declared=declared)
    limits = limits_of(request.hold, request.allow, request.constraints, platform_of(known))
    names = known_names(known.given)
    strangers = unknown_names((*request.hold, *request.allow), names)
    if strangers:
        hint = nearest(strangers[0], names)
        raise DoctorError(f"`{strangers[0]}` is neither installed there nor on record", hint)
    return limits._replace(declared=declared)
