"""What sources look for, taken from the rulebook of the request."""

from __future__ import annotations

from doctor.rulebook.rulebook import Rulebook, load_rulebook
from doctor.sources.watch import Watch

from .request import Request


def rulebook_of(request: Request) -> Rulebook:
    """Return the rules of a request: the built-in ones, those of its project, and its own."""
    return request.rulebook or load_rulebook((*request.defaults.rules, *request.rules))


def watch_of(rulebook: Rulebook) -> Watch:
    """Return the names and tables of all libraries of the rulebook."""
    return Watch(
        rulebook.watched_environment,
        rulebook.watched_distributions,
        rulebook.gpus,
        rulebook.cuda_drivers,
        rulebook.images,
        rulebook.packages,
        rulebook.script_calls,
        rulebook.trainers,
    )
