"""Values that the shell completes: names of GPUs, formats and rules. Imported for completion only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from doctor.errors import DoctorError
from doctor.report.formats import FORMATS
from doctor.rulebook.rulebook import load_rulebook


def values_of(kind: str, incomplete: str) -> list[str]:
    """Return the values of one kind that begin with what is typed; of a list with commas, its last value counts."""
    before, comma, last = incomplete.rpartition(",")
    try:
        values = _VALUES[kind]()
    except DoctorError:  # the shell shows no errors
        return []
    return [f"{before}{comma}{value}" for value in values if value.lower().startswith(last.lower())]


def _gpus() -> Iterable[str]:
    return [name.lower().replace(" ", "") for name in load_rulebook().gpus]


_VALUES: Mapping[str, Callable[[], Iterable[str]]] = {
    "gpus": _gpus,
    "formats": lambda: FORMATS,
    "rules": lambda: load_rulebook().rules,
}
