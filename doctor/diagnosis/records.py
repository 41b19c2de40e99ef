"""Up to where the releases of the examined packages are on record."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import InvalidVersion

from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, Facts, NewRelease
from doctor.packages.index import load_index


def records_date() -> str:
    """Return the date of the newest release on record, as 2026-11-13."""
    return load_index().refreshed


def unrecorded(cases: Iterable[Facts]) -> tuple[NewRelease, ...]:
    """Return the releases in these environments that are newer than the newest on record of their package."""
    found = (item for facts in cases for item in _of(facts))
    return tuple(dict.fromkeys(found))


def _of(facts: Facts) -> Iterable[NewRelease]:
    for package, newest in load_index().newest.items():
        version = facts.value(f"{package}.version")
        if not isinstance(version, str) or version == ABSENT:
            continue
        try:
            is_newer = parse_version(version.partition("+")[0]) > parse_version(newest)
        except InvalidVersion:
            continue
        if is_newer:
            yield NewRelease(package, version, newest)
