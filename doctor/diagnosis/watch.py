"""What sources look for, taken from the rulebook of the request."""

from __future__ import annotations

from doctor.rulebook.rulebook import Rulebook
from doctor.sources.watch import Watch


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
    )
